package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// local is a daemon that we started, a client of it, and the measured models.
type local struct {
	daemon *child.Daemon
	client *connector.Client
	small  *model
	large  *model
	flat   *model // attention only: segments of exactly 1 MiB
	next   int    // segments made so far; each has its own tokens
}

// model is a registered profile with segments of one shape.
type model struct {
	*connector.Model
	spec   profile.SegmentSpec
	layout profile.Layout
	source connector.Source
}

// arenaArgs returns the daemon's sizes. The arena has room for all resident segments of a run,
// but is so small that repeated commits soon reuse pages. Otherwise most commits would measure
// the kernel's page faults.
func arenaArgs() []string { return []string{"-arena", "768MiB", "-private", "16MiB"} }

// patient are timeouts that only a hang exceeds, so that a busy machine does not turn a row into
// a miss.
var patient = connector.Timeouts{Lookup: 20 * time.Second, Transfer: 20 * time.Second, Attach: 20 * time.Second}

func startLocal(ctx context.Context, s *session) (*local, error) {
	d, err := child.Start(ctx, child.Options{Binary: s.options.Daemon, Args: arenaArgs()})
	if err != nil {
		return nil, err
	}
	l := &local{daemon: d}
	l.client, err = connector.Open(connector.Options{Socket: d.Socket, Name: "splicectl bench",
		StagingBytes: 16 << 20, SlotBytes: 1 << 20, Timeouts: patient})
	if err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	if err := l.register(ctx); err != nil {
		return nil, errors.Join(err, l.stop())
	}
	return l, nil
}

func (l *local) stop() error { return errors.Join(l.client.Close(), l.daemon.Stop()) }

func (l *local) register(ctx context.Context) (err error) {
	if l.small, err = l.model(ctx, "bench-small", 1, smallHeads, smallTokens); err != nil {
		return err
	}
	if l.large, err = l.model(ctx, "bench-large", largeLayers, largeHeads, largeTokens); err != nil {
		return err
	}
	if l.flat, err = l.model(ctx, "bench-flat", 0, 0, flatTokens); err != nil {
		return err
	}
	return checkSizes(l.small.layout, l.large.layout, l.flat.layout)
}

func (l *local) model(ctx context.Context, name string, linear, heads, tokens int) (*model, error) {
	p, err := benchProfile(name, linear, heads)
	if err != nil {
		return nil, err
	}
	if err := l.client.WaitAttached(ctx); err != nil {
		return nil, err
	}
	m := &model{spec: profile.FirstSpec(tokens), layout: p.SegmentLayout(tokens)}
	m.source.Parts = contents(m.layout)
	if m.Model, err = l.client.Register(p, connector.Binding{Connector: "splicectl bench"}); err != nil {
		return nil, err
	}
	return m, m.WaitReady(ctx)
}

// put publishes a new segment and returns its key.
func (l *local) put(ctx context.Context, m *model) (profile.SegmentKey, error) {
	l.next++
	tokens := tokensOf(l.next, m.spec.Tokens)
	stored, err := m.Put(ctx, &connector.PutQuery{Spec: m.spec, Tokens: tokens, Source: m.source})
	if err == nil && !stored.Published {
		err = errors.New("the segment was not published")
	}
	key, ok := m.SegmentKey(m.spec, tokens)
	if err == nil && !ok {
		err = errors.New("no salt of the tenant")
	}
	if err != nil {
		return key, fmt.Errorf("put segment %d of %d bytes: %w", l.next, m.layout.Bytes, err)
	}
	return key, nil
}

func (l *local) putMany(ctx context.Context, m *model, n int) ([]profile.SegmentKey, error) {
	keys := make([]profile.SegmentKey, n)
	for i := range keys {
		var err error
		if keys[i], err = l.put(ctx, m); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// acquire leases one segment, which must be present.
func (l *local) acquire(ctx context.Context, m *model, key profile.SegmentKey, digests bool) (*connector.Lease, error) {
	got, err := m.Acquire(ctx, []profile.SegmentKey{key}, connector.AcquireOptions{Digests: digests})
	if err != nil {
		return nil, err
	}
	if got[0].Err != nil {
		return nil, fmt.Errorf("acquire %x: %w", key[:6], got[0].Err)
	}
	return got[0].Lease, nil
}
