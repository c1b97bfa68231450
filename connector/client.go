package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
)

// A Client is a connection to the daemon that survives restarts of the daemon.
type Client struct {
	opt  Options
	ctx  context.Context // ends with Close
	stop context.CancelFunc

	counters counters
	host     link.Host
	workers  sync.WaitGroup
	again    chan struct{} // asks run to register models that got no answer

	mu struct {
		sync.Mutex
		closed   bool
		current  *link.Attachment
		live     []*link.Attachment // attachments that are not gone yet, including current
		models   []*Model
		changed  chan struct{} // closed and replaced when current changes
		lastFail string        // logged once
	}
}

// Open starts a client. It makes one attempt to attach, bounded by Timeouts.Attach, and
// retries in the background, so a missing daemon is not an error. Close must be called at the
// end.
func Open(o Options) (*Client, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Client{opt: o.withDefaults(), again: make(chan struct{}, 1)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.host = link.Host{
		Context: c.ctx, DaemonUID: c.opt.DaemonUID, Name: c.opt.Name, StagingBytes: c.opt.StagingBytes, SlotBytes: c.opt.SlotBytes, Device: c.opt.Device,
		AttachTimeout: c.opt.Timeouts.Attach, ReleaseTimeout: c.opt.Timeouts.Lookup, Log: c.opt.Log,
		Counters: &c.counters.Counters, Lost: c.lost, Spawn: c.spawn,
	}
	for _, t := range c.opt.Tenants {
		c.host.Tenants = append(c.host.Tenants, wire.TenantName(t))
	}
	c.mu.changed = make(chan struct{})
	first := c.attach()
	c.workers.Go(func() { c.run(first) })
	return c, nil
}

// run keeps the client attached until Close.
func (c *Client) run(a *link.Attachment) {
	backoff := backoffFirst
	for c.ctx.Err() == nil {
		if a == nil {
			// Jitter keeps the clients of a node from attaching all at once.
			if !c.pause(backoff/2 + rand.N(backoff/2)) {
				return
			}
			backoff = min(2*backoff, backoffMost)
			a = c.attach()
			continue
		}
		backoff = backoffFirst
		var again <-chan time.Time
		if !c.registerAll(a) {
			again = time.After(backoffMost)
		}
		select {
		case <-a.Dead:
			a = nil
		case <-again:
		case <-c.again:
		case <-c.ctx.Done():
		}
	}
}

// pause waits for d. It returns false if the client was closed.
func (c *Client) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// attach makes one attempt to attach. It returns nil if it fails.
func (c *Client) attach() *link.Attachment {
	path := cmp.Or(c.opt.Socket, DefaultSocket())
	a, err := link.Dial(&c.host, path)
	if err != nil {
		c.failed(err)
		return nil
	}
	if !c.publish(a) {
		a.Release()
		return nil
	}
	c.opt.Log.Info().Str("daemon", a.Server).Uint64("epoch", a.Epoch).Msg("attached to the cache daemon")
	return a
}

// publish counts attachment a, makes it the current one and watches it. It returns false if the
// client is closed.
func (c *Client) publish(a *link.Attachment) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return false
	}
	c.counters.attached.Add(1) // before a call can use it
	c.mu.current, c.mu.lastFail = a, ""
	c.mu.live = append(c.mu.live, a)
	c.changedLocked()
	c.workers.Go(func() {
		a.Watch()
		c.forget(a)
	})
	return true
}

// spawn starts a worker that Close waits for, unless the client is closed.
func (c *Client) spawn(work func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.closed {
		c.workers.Go(work)
	}
}

func (c *Client) changedLocked() {
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

// failed logs why there is no daemon, once per reason.
func (c *Client) failed(err error) {
	c.mu.Lock()
	again := c.mu.closed || c.mu.lastFail == err.Error()
	c.mu.lastFail = err.Error()
	c.mu.Unlock()
	if !again {
		c.opt.Log.Warn().Err(err).Msg("no cache daemon, continuing without")
	}
}

// lost handles the end of an attachment. It is called once per attachment.
func (c *Client) lost(a *link.Attachment, cause error) {
	c.mu.Lock()
	closed := c.mu.closed
	if !closed {
		c.counters.lost.Add(1) // before waiters see that it is gone
	}
	if c.mu.current == a {
		c.mu.current = nil
		c.changedLocked()
	}
	c.mu.Unlock()
	if !closed {
		c.opt.Log.Warn().Err(cause).Uint64("epoch", a.Epoch).Msg("lost the cache daemon")
	}
}

func (c *Client) forget(a *link.Attachment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.live = slices.DeleteFunc(c.mu.live, func(b *link.Attachment) bool { return a == b })
}

// Attached reports whether a daemon is attached now.
func (c *Client) Attached() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.current != nil
}

// Epoch returns the boot epoch of the attached daemon, 0 without one.
func (c *Client) Epoch() uint64 {
	if a := c.current(); a != nil {
		return a.Epoch
	}
	return 0
}

func (c *Client) current() *link.Attachment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.current
}

// WaitAttached blocks until a daemon is attached. It is for programs that want to wait. An
// engine should not wait, but treat errors of calls as misses.
func (c *Client) WaitAttached(ctx context.Context) error {
	for {
		c.mu.Lock()
		a, changed, closed, why := c.mu.current, c.mu.changed, c.mu.closed, c.mu.lastFail
		c.mu.Unlock()
		if a != nil {
			return nil
		}
		if closed {
			return fmt.Errorf("client closed: %w", ErrUnavailable)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if why == "" {
				return link.ErrNotAttached
			}
			return fmt.Errorf("%s: %w", why, ErrUnavailable)
		}
	}
}

// Close ends the client. The daemon reclaims the client's leases, staging and slots. Calls in
// progress return ErrUnavailable. Leases that were not released become invalid (see
// Lease.Valid), but their memory stays mapped until Release. A goroutine that still reads a view
// of a lease may therefore read wrong bytes, but does not fault. Close waits at most
// Timeouts.Transfer for the daemon to release engine memory. Calls after the first do nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return nil
	}
	c.mu.closed = true
	live, models := slices.Clone(c.mu.live), c.mu.models
	c.mu.models = nil
	c.changedLocked()
	c.mu.Unlock()

	c.stop()
	for _, a := range live {
		a.Quit(errors.New("client closed"))
	}
	limit, done := context.WithTimeout(context.Background(), c.opt.Timeouts.Transfer)
	defer done()
	for _, a := range live {
		a.Close(limit)
	}
	for _, m := range models {
		m.close()
	}
	c.workers.Wait()
	return nil
}
