package tiering

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// neighbour is a tier.Remote over what another store has in memory. It copies bytes, and
// checks them against the digests as every Remote has to.
type neighbour struct {
	t    testing.TB
	home *bench // the other store
	dev  gpuipc.Device
	near *Store // whose lock is checked
	own  bool   // one goroutine at a time uses near

	mu       sync.Mutex
	believed map[tier.Name]bool // hints
	hint     tier.Hint
	stall    chan struct{} // reads wait for it
	deaf     chan struct{} // finds wait for it
	spoil    func(data []byte)
	lie      func(e *tier.Entry)
	renumber bool  // token ids are others
	gone     bool  // reads find nothing
	unread   error // what reads answer
	unfound  error // what finds answer

	bases               []tier.Name // of what was asked for
	finds, asked, reads int
	open                int // copies
}

// farBytes is fast enough for everything to be worth it.
const farBytes = 100e9

type apart struct {
	*twoTiers
	far *neighbour
}

// newApart is a store with a lower tier and a neighbour, used by one goroutine.
func newApart(t testing.TB, id profile.Identity, options ...option) *apart {
	t.Helper()
	n := &neighbour{
		t: t, home: newBench(t, id), believed: map[tier.Name]bool{}, own: true,
		hint: tier.Hint{Latency: time.Microsecond, BytesPerSecond: farBytes},
	}
	x := &apart{far: n}
	x.twoTiers = newTwoTiers(t, id, append([]option{func(c *Config) { c.Remote = n }}, options...)...)
	n.near, n.dev = x.Store, x.dev
	t.Cleanup(func() {
		if n.open != 0 { // the store is open still, and holds what was found lately
			x.clock.advance(time.Hour)
			x.Sweep()
		}
		if n.open != 0 {
			t.Errorf("%d copies were not closed", n.open)
		}
	})
	return x
}

// keep publishes a segment at the neighbour, which is hinted from then on.
func (x *apart) keep(ps ...piece) {
	x.Helper()
	c := x.far.home.NewSession("far")
	for _, p := range ps {
		x.far.home.publish(c, p)
		x.far.believe(tier.Name{Key: p.key}, true)
	}
}

// keepChain saves checkpoints that extend each other at the neighbour.
func (x *apart) keepChain(prompt int, ends ...int) (data [][][]byte) {
	x.Helper()
	c := x.far.home.NewSession("far")
	parent := 0
	for _, end := range ends {
		data = append(data, x.far.home.save(c, x.saveQuery(prompt, end, parent, tier.Exact), parent))
		x.far.believe(tier.Name{Kind: tier.Exact, Key: hashOf(prompt, end)}, true)
		parent = end
	}
	return data
}

func (n *neighbour) believe(name tier.Name, held bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.believed[name] = held
}

func (n *neighbour) Hint(w *tier.Want) (tier.Hint, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.near != nil && n.near.cat.Mu.TryLock() {
		n.near.cat.Mu.Unlock()
		n.t.Error("Hint without the store's lock")
	}
	return n.hint, n.believed[w.Name]
}

// unlocked checks that the store's lock can be had.
func (n *neighbour) unlocked(what string) {
	if n.own {
		wantUnlocked(n.t, n.near, what)
	}
}

func (n *neighbour) Find(ctx context.Context, wants []tier.Want) ([]tier.Copy, error) {
	n.unlocked("Find")
	n.mu.Lock()
	n.finds++
	n.asked += len(wants)
	for i := range wants {
		n.bases = append(n.bases, wants[i].Base)
	}
	deaf, unfound := n.deaf, n.unfound
	n.mu.Unlock()
	if deaf != nil {
		select {
		case <-deaf:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if unfound != nil {
		return nil, unfound
	}
	copies := make([]tier.Copy, len(wants))
	for i := range wants {
		if c := n.find(&wants[i]); c != nil {
			copies[i] = c
		}
	}
	return copies, nil
}

func (n *neighbour) find(w *tier.Want) *farCopy {
	s := n.home.Store
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	for _, p := range *s.cat.Profiles.Load() {
		if p.Fingerprint() != w.Fingerprint {
			continue
		}
		o := s.cat.Objects.Names.Find(w.Name, p, s.cat.Objects.Tenants[w.Tenant])
		if o == nil || o.Phase != objects.Whole {
			return nil
		}
		s.cat.Objects.Use(o)
		c := &farCopy{of: n, object: o, described: s.cat.Objects.Memory.Describe(o)}
		c.entry = tier.Entry{
			Name: w.Name, Fingerprint: w.Fingerprint, Tenant: w.Tenant, Spec: o.Spec, Begin: o.Begin, End: o.End,
			Parent: c.described.Parent, Bytes: 1 << 40, Level: tier.LevelSynced, Generation: 77,
		}
		if n.lie != nil {
			n.lie(&c.entry)
		}
		n.mu.Lock()
		n.open++
		n.mu.Unlock()
		return c
	}
	return nil
}

type farCopy struct {
	of        *neighbour
	object    *objects.Object
	described *tier.Object
	entry     tier.Entry
	closed    bool
}

func (c *farCopy) Entry() *tier.Entry { return &c.entry }

func (c *farCopy) Read(ctx context.Context, dst []gpuipc.Ref) (*tier.Content, error) {
	n := c.of
	n.unlocked("Read")
	n.mu.Lock()
	n.reads++
	stall, spoil, renumber, gone, unread := n.stall, n.spoil, n.renumber, n.gone, n.unread
	n.mu.Unlock()
	if stall != nil {
		select {
		case <-stall:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", tier.ErrUnavailable, ctx.Err())
		}
	}
	switch {
	case gone:
		return nil, fmt.Errorf("neighbour: %w", tier.ErrGone)
	case unread != nil:
		return nil, unread
	}
	content := &tier.Content{Publisher: c.described.Publisher, Tokens: slices.Clone(c.described.Tokens)}
	if renumber && len(content.Tokens) > 0 {
		content.Tokens[0]++
	}
	for i := range c.described.Shares {
		sh := &c.described.Shares[i]
		data := make([]byte, sh.Ref.Len())
		if err := n.home.dev.Load(ctx, data, sh.Ref); err != nil {
			return nil, err
		}
		if spoil != nil {
			spoil(data)
		}
		if !intact(c.object.Layout().Parts, data, sh.Digests) {
			return nil, fmt.Errorf("neighbour: not what its digests say: %w", tier.ErrCorrupt)
		}
		if err := n.dev.Store(ctx, dst[i], data); err != nil {
			return nil, fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
		}
		content.Digests = append(content.Digests, slices.Clone(sh.Digests))
	}
	return content, nil
}

func intact(parts []profile.Part, data []byte, want []uint64) bool {
	for _, p := range parts {
		for at := int64(0); at < p.Len; at += gpuipc.ChunkBytes {
			if gpuipc.DigestBytes(data[p.Off+at:p.Off+min(at+gpuipc.ChunkBytes, p.Len)]) != want[0] {
				return false
			}
			want = want[1:]
		}
	}
	return true
}

func (c *farCopy) Close() {
	n := c.of
	n.unlocked("Close")
	s := n.home.Store
	s.cat.Mu.Lock()
	s.cat.Objects.Unuse(c.object)
	s.cat.Mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.closed {
		n.t.Error("a copy is closed twice")
	}
	c.closed = true
	n.open--
}

// seekAll does what the goroutines of Run do for searches.
func (x *apart) seekAll() (n int) {
	for x.move.Remote.Engine.Try(x.ctx, 0) {
		n++
	}
	return n
}

// fetchAll does the same for fetches.
func (x *apart) fetchAll() (n int) {
	for x.move.Promotions.Engine.Try(x.ctx, move.LaneBeyond) {
		n++
	}
	x.cat.Launch()
	return n
}

// wantFar checks that a match answers peer, with so many tokens.
func (x *apart) wantFar(p piece, tokens uint32) {
	x.Helper()
	if got, want := x.status(p), (SegmentStatus{Status: tier.StatusHit, Place: tier.PlacePeer, Tokens: tokens}); got != want {
		x.Fatalf("segment %x: got %v, want %v", p.key[:4], got, want)
	}
}
