package connector

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Binding holds what one engine process adds to a profile. The zero value is rank 0 of the
// client's first tenant, for an engine whose memory is not paged.
type Binding struct {
	Tenant string // one of Options.Tenants by name
	Rank   int    // tensor-parallel rank

	BlockTokens int    // engine block size; 0 = not paged
	Connector   string // names and versions, shown to people; at most wire.MaxName bytes
	Engine      string

	// Memory is the engine's KV memory, which Rotate and Assemble write to; nil = none.
	Memory *Memory
}

// Memory describes engine memory that block tables address.
type Memory struct {
	// File is a memfd with F_SEAL_SHRINK. All its pages must be allocated: the daemon does not
	// allocate missing pages, and fails a request that names one. Register duplicates the file;
	// the caller keeps its own descriptor.
	File   *os.File
	Bytes  int64
	Layers []wire.MemoryLayer
}

// probeTokens is the number of interior tokens for which the daemon compares its sizes with the
// client's, and refuses a profile if they differ. It is odd, so that a difference in the padding
// of a per-token size changes the total.
const probeTokens = 509

// A Model is a profile registered for one tenant and rank. It stays valid across restarts of
// the daemon.
type Model struct {
	client  *Client
	profile *profile.Profile
	binding Binding
	tenant  int // index in Options.Tenants
	request wire.ProfileRequest
	layouts layouts

	mu struct {
		sync.Mutex
		memory *os.File // our duplicate of Binding.Memory.File
		reg    *registration
		salt   []byte // of the last daemon that registered us
	}
}

// A registration is a model registered on one attachment. The fields after the field done are
// set before the channel done is closed.
type registration struct {
	a       *link.Attachment
	done    chan struct{}
	tenant  uint32
	profile uint32
	memory  uint32
	err     error
	last    error // until done: why the previous registration failed
}

// failed reports whether the registration got no answer.
func (r *registration) failed() bool {
	select {
	case <-r.done:
		return r.err != nil && !r.refused()
	default:
		return false
	}
}

// refused reports whether the daemon answered and refused the profile.
func (r *registration) refused() bool {
	return r.err != nil && !errors.Is(r.err, ErrUnavailable) && !errors.Is(r.err, ErrLate) &&
		!errors.Is(r.err, ErrBusy) && !errors.Is(r.err, ErrCanceled) && !errors.Is(r.err, ErrStale)
}

// Register makes a Model. Without a daemon Register succeeds, and the client registers the
// profile once a daemon is found. If an attached daemon refuses the profile, Register returns
// that error. A client has at most 64 models.
func (c *Client) Register(p *profile.Profile, b Binding) (*Model, error) {
	m, err := c.newModel(p, b)
	if err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	c.mu.Lock()
	closed, n := c.mu.closed, len(c.mu.models)
	if !closed && n < maxModels {
		c.mu.models = append(c.mu.models, m)
	}
	a := c.mu.current
	c.mu.Unlock()
	switch {
	case closed:
		m.close()
		return nil, fmt.Errorf("register: client closed: %w", ErrUnavailable)
	case n >= maxModels:
		m.close()
		return nil, fmt.Errorf("register: %d models, at most %d: %w", n, maxModels, ErrFull)
	case a == nil:
		return m, nil
	}
	// The goroutine that sent the request waits for the reply. It may be Client.run, not this
	// goroutine.
	r := m.attach(a)
	<-r.done
	if r.refused() {
		c.unregister(m)
		return nil, r.err
	}
	if r.err != nil {
		select {
		case c.again <- struct{}{}: // run tries again
		default:
		}
	}
	return m, nil
}

func (c *Client) newModel(p *profile.Profile, b Binding) (*Model, error) {
	if p == nil {
		return nil, fmt.Errorf("no profile: %w", ErrInvalid)
	}
	tenant := slices.IndexFunc(c.opt.Tenants, func(t Tenant) bool { return t.Name == b.Tenant })
	if b.Tenant == "" && tenant < 0 {
		tenant = 0
	}
	switch {
	case tenant < 0:
		return nil, fmt.Errorf("tenant %q is not among the client's: %w", b.Tenant, ErrInvalid)
	case b.Rank < 0 || b.Rank >= p.TPSize():
		return nil, fmt.Errorf("rank %d of %d: %w", b.Rank, p.TPSize(), ErrInvalid)
	case b.BlockTokens < 0:
		return nil, fmt.Errorf("negative size: %w", ErrInvalid)
	case len(b.Connector) > wire.MaxName || len(b.Engine) > wire.MaxName:
		return nil, fmt.Errorf("names of %d and %d bytes, at most %d: %w", len(b.Connector), len(b.Engine), wire.MaxName, ErrInvalid)
	case len(p.Canonical()) > wire.MaxIdentity:
		return nil, fmt.Errorf("identity of %d bytes, at most %d: %w", len(p.Canonical()), wire.MaxIdentity, ErrInvalid)
	}
	m := &Model{client: c, profile: p, binding: b, tenant: tenant}
	m.request = wire.ProfileRequest{
		Identity: p.Canonical(), BlockTokens: uint32(b.BlockTokens), Connector: b.Connector, Engine: b.Engine, ProbeTokens: probeTokens,
		SegmentBytes: uint64(p.SegmentLayout(probeTokens).Bytes), CheckpointBytes: uint64(p.CheckpointLayout(probeTokens).Bytes),
	}
	if b.Memory == nil {
		return m, nil
	}
	return m, m.keepMemory(b.Memory)
}

func (m *Model) keepMemory(e *Memory) error {
	if e.File == nil || e.Bytes <= 0 || len(e.Layers) > wire.MaxMemoryLayers {
		return fmt.Errorf("memory of %d bytes, %d layers: %w", e.Bytes, len(e.Layers), ErrInvalid)
	}
	fd, err := unix.FcntlInt(e.File.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("memory: %v: %w", err, ErrInvalid)
	}
	m.mu.memory = os.NewFile(uintptr(fd), e.File.Name())
	m.request.MemoryBytes, m.request.Memory = uint64(e.Bytes), slices.Clone(e.Layers)
	return nil
}

// attach registers the model with attachment a, once. Concurrent callers get the same
// registration and wait until its channel done is closed. A registration that got no answer is
// retried.
func (m *Model) attach(a *link.Attachment) *registration {
	m.mu.Lock()
	r := &registration{a: a, done: make(chan struct{})}
	if old := m.mu.reg; old != nil && old.a == a {
		if !old.failed() {
			m.mu.Unlock()
			return old
		}
		r.last = old.err
	}
	m.mu.reg = r
	m.mu.Unlock()

	r.tenant = a.Grants[m.tenant].ID
	r.err = m.register(r)
	if r.err != nil {
		m.client.opt.Log.Warn().Err(r.err).Str("model", m.profile.Identity().Model).Msg("the cache daemon refuses the profile, no hits for it")
	} else {
		m.mu.Lock()
		m.mu.salt = a.Grants[m.tenant].Salt
		m.mu.Unlock()
	}
	close(r.done)
	return r
}

// register sends the registration request.
func (m *Model) register(r *registration) error {
	var fds []int
	if m.request.MemoryBytes > 0 {
		file, err := m.duplicate()
		if err != nil {
			return err
		}
		defer file.Close()
		fds = []int{int(file.Fd())}
	}
	if m.profile.MaxError() > 0 && !r.a.HasPacked {
		return fmt.Errorf("profile: tolerance %v needs packing, which the daemon does not support: %w", m.profile.MaxError(), ErrUnsupported)
	}
	c := m.client
	k := r.a.Get(c.ctx, wire.OpProfile, c.opt.Timeouts.Attach)
	defer r.a.Put(k)
	body, err := r.a.Do(c.ctx, k, r.tenant, &m.request, fds)
	if err != nil {
		return err
	}
	var reply wire.ProfileReply
	if err := r.a.Decode(wire.OpProfile, &reply, body); err != nil {
		return err
	}
	if reply.Fingerprint != m.profile.Fingerprint() {
		return fmt.Errorf("profile: the daemon's fingerprint is %x, ours %x: %w", reply.Fingerprint, m.profile.Fingerprint(), ErrInvalid)
	}
	r.profile, r.memory = reply.Profile, reply.Memory
	return nil
}

// duplicate duplicates the descriptor of the engine memory. Close may close the original while
// the duplicate is being sent.
func (m *Model) duplicate() (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.memory == nil {
		return nil, fmt.Errorf("client closed: %w", ErrUnavailable)
	}
	fd, err := unix.FcntlInt(m.mu.memory.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("memory: %v: %w", err, ErrUnavailable)
	}
	return os.NewFile(uintptr(fd), "memory"), nil
}

func (m *Model) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.memory != nil {
		m.mu.memory.Close()
		m.mu.memory = nil
	}
}

// registerAll registers every model with a. It returns false if one got no answer.
func (c *Client) registerAll(a *link.Attachment) bool {
	c.mu.Lock()
	models := slices.Clone(c.mu.models)
	c.mu.Unlock()
	all := true
	for _, m := range models {
		r := m.attach(a)
		<-r.done
		all = all && !r.failed()
	}
	return all
}

func (c *Client) unregister(m *Model) {
	c.mu.Lock()
	c.mu.models = slices.DeleteFunc(c.mu.models, func(o *Model) bool { return o == m })
	c.mu.Unlock()
	m.close()
}

// enter returns the registration to use for one call and keeps its attachment mapped. The caller
// releases the attachment afterwards.
func (m *Model) enter() (*registration, error) {
	m.mu.Lock()
	r := m.mu.reg
	m.mu.Unlock()
	if r == nil || r.a.HasEnded() {
		return nil, link.ErrNotAttached
	}
	select {
	case <-r.done:
	default:
		if r.last != nil {
			return nil, r.last
		}
		return nil, link.ErrNotAttached
	}
	if r.err != nil {
		return nil, r.err
	}
	if !r.a.Retain() {
		return nil, link.ErrNotAttached
	}
	return r, nil
}

// begin does what enter does, and prepares a call. Afterwards the caller passes both to end.
func (m *Model) begin(ctx context.Context, op wire.Op, timeout time.Duration) (*registration, *link.Call, error) {
	r, err := m.enter()
	if err != nil {
		return nil, nil, err
	}
	return r, r.a.Get(ctx, op, timeout), nil
}

// end ends a call that begin prepared.
func (r *registration) end(k *link.Call) {
	r.a.Put(k)
	r.a.Release()
}

// ask sends a request and decodes its reply.
func (r *registration) ask(ctx context.Context, k *link.Call, request, reply wire.Message) error {
	return r.a.Ask(ctx, k, r.tenant, request, reply)
}

// Profile returns the model's profile.
func (m *Model) Profile() *profile.Profile { return m.profile }

// Rank returns the tensor-parallel rank of the binding.
func (m *Model) Rank() int { return m.binding.Rank }

// Ready returns nil if calls can be answered now. Otherwise it returns the reason why the daemon
// refuses the profile, or ErrUnavailable.
func (m *Model) Ready() error {
	r, err := m.enter()
	if err != nil {
		return err
	}
	r.a.Release()
	return nil
}

// WaitReady blocks until Ready is nil or the daemon has refused the profile.
func (m *Model) WaitReady(ctx context.Context) error {
	for {
		if err := m.client.WaitAttached(ctx); err != nil {
			return err
		}
		a := m.client.current()
		if a == nil {
			continue
		}
		r := m.attach(a)
		select {
		case <-r.done:
		case <-ctx.Done():
			return link.ErrNotAttached
		}
		if r.err == nil || r.refused() {
			return r.err
		}
		select {
		case <-a.Dead:
		case <-time.After(backoffFirst):
		case <-ctx.Done():
			return r.err
		}
	}
}

// Salt returns the tenant's salt, which is part of segment keys and prefix hashes. The daemon
// provides it, so Salt returns false until the client has first attached.
func (m *Model) Salt() ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.salt, m.mu.salt != nil
}

// SegmentKey returns the key of a segment of this model and tenant; false without a salt.
func (m *Model) SegmentKey(s profile.SegmentSpec, tokens []uint32) (profile.SegmentKey, bool) {
	salt, ok := m.Salt()
	if !ok {
		return profile.SegmentKey{}, false
	}
	return m.profile.SegmentKey(salt, s, tokens), true
}

// PrefixHashes returns the hashes of a prompt's leading tokens at each of the ascending
// positions; false without a salt.
func (m *Model) PrefixHashes(blockTokens int, tokens []uint32, positions []int) ([]profile.PrefixHash, bool) {
	salt, ok := m.Salt()
	if !ok {
		return nil, false
	}
	return m.profile.PrefixHashes(salt, blockTokens, tokens, positions), true
}
