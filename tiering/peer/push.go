package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/policy/coding"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// TakePath is the path of requests to take a copy of an object. The member that is asked
// fetches the object before it answers:
//
//	take    name | bytes of all ranks u64
//	answer  verdict u8
//
// A member decides by itself whether it takes the copy (see Taker). Members do not
// publish how much room they have: it changes with each publication, so the number would
// be outdated when it is needed, and would cost every node bytes for few requests.
// Instead, two random members are asked, which finds room nearly as well as complete
// knowledge. A member without room is not asked again for a while.
const TakePath = "/peer/v1/take"

const takeBytes = nameBytes + 8

// taking is a member's answer to TakePath.
type taking uint8

const (
	taken    taking = 0 // it has a copy now
	noRoom   taking = 1
	takeBusy taking = 2 // it is fetching enough already
	notTaken taking = 3 // profile or tenant unknown there, not worth a fetch, or the fetch failed
	takings  taking = 4
)

func appendTake(b []byte, n *name, bytes int64) []byte {
	c := coding.Writer(b)
	n.fields(&c)
	coding.U64(&c, &bytes)
	return c.Bytes()
}

func decodeTake(b []byte) (n name, bytes int64, err error) {
	c := coding.Reader(b)
	n.fields(&c)
	if coding.U64(&c, &bytes); bytes <= 0 || n.Kind > tier.Spliced {
		c.Fail("kind %d, %d bytes", n.Kind, bytes)
	}
	return n, bytes, read("take", &c)
}

// PushConfig configures Neighbours. Fields marked "required" must be set. Any other field
// that is zero takes the default that its comment states.
type PushConfig struct {
	Peers *Peers // required
	Bytes int64  // most bytes in flight, unless a single object is larger; default 64 MiB
	Most  int    // most objects in flight; default 16
	Asked int    // members asked per object; default 2
	// TakeTime is the timeout of a request, which includes the member's fetch; default 10
	// seconds. RestTime is the pause before a member that had no room, was busy or did not
	// answer is asked again; default 5 seconds.
	TakeTime, RestTime time.Duration
}

// PushCounters counts events since NewNeighbours.
type PushCounters struct {
	Pushed      uint64 `count:"copies_pushed" prom:"peer_copies_total,result=pushed" help:"Copies of objects moved between cluster members. Sent from this node: pushed (a member took it), refused and failed (answers of single members), unplaced (no member took it); offered to this node: taken, no_room, busy, not_taken (unknown profile or tenant, not worth a fetch, or the fetch failed)."`
	PushedBytes uint64 `count:"copies_pushed_bytes" prom:"peer_copied_bytes_total,result=pushed" help:"Bytes of the copies that other cluster members took from this node (pushed) and that this node took from them (taken)."`
	Refused     uint64 `count:"copies_refused" prom:"peer_copies_total,result=refused"`
	Failed      uint64 `count:"copies_failed" prom:"peer_copies_total,result=failed"`
	Unplaced    uint64 `count:"copies_unplaced" prom:"peer_copies_total,result=unplaced"`
}

// Neighbours is a tier.Sink over the members of a cluster: it gives copies of objects that
// this node may evict to members with room. The object has to stay a hit here until the
// callback of its write is called (tier.Write.Start), since the member fetches it like any
// other object. All methods may be called concurrently.
type Neighbours struct {
	cfg    PushConfig
	ctx    context.Context // ended by Close
	end    context.CancelFunc
	counts struct{ pushed, pushedBytes, refused, failed, unplaced atomic.Uint64 }

	mu      sync.Mutex
	closed  bool
	bytes   int64
	n       int
	rests   map[*member]time.Time // when a member may be asked again; only members in the table
	running sync.WaitGroup
}

var _ tier.Sink = (*Neighbours)(nil)

// NewNeighbours returns the sink. It starts nothing.
func NewNeighbours(cfg PushConfig) (*Neighbours, error) {
	setDefault(&cfg.Bytes, 64<<20)
	setDefault(&cfg.Most, 16)
	setDefault(&cfg.Asked, 2)
	setDefault(&cfg.TakeTime, 10*time.Second)
	setDefault(&cfg.RestTime, 5*time.Second)
	if cfg.Peers == nil || cfg.Bytes < 0 || cfg.Most < 0 || cfg.Asked < 0 || cfg.TakeTime < 0 || cfg.RestTime < 0 {
		return nil, fmt.Errorf("peer: no peers, or a negative bound: %w", tier.ErrInvalid)
	}
	n := &Neighbours{cfg: cfg, rests: map[*member]time.Time{}}
	n.ctx, n.end = context.WithCancel(context.Background())
	return n, nil
}

// Close cancels copies in flight and waits for them. No new ones are accepted.
func (n *Neighbours) Close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.end()
	n.running.Wait()
}

// Counters returns a snapshot.
func (n *Neighbours) Counters() PushCounters {
	c := &n.counts
	return PushCounters{
		Pushed: c.pushed.Load(), PushedBytes: c.pushedBytes.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(), Unplaced: c.unplaced.Load(),
	}
}

// Expect implements tier.Sink. It returns the values of the fastest measured member; zero
// if none is measured.
func (n *Neighbours) Expect() (best tier.Hint) {
	least := 0.0
	now := n.cfg.Peers.cfg.Now()
	for _, m := range *n.cfg.Peers.table.Load() {
		if m == nil || !m.open(now) {
			continue
		}
		if h, seconds := m.expect(); h.BytesPerSecond > 0 && (least == 0 || seconds < least) {
			best, least = h, seconds
		}
	}
	return best
}

// push is a copy in flight to a member.
type push struct {
	*Neighbours
	name    name
	bytes   int64
	members []*member // members to ask, in order
}

// Admit implements tier.Sink.
func (n *Neighbours) Admit(o *tier.Object) (tier.Write, error) {
	p := n.cfg.Peers
	tenant, ok := p.cfg.Names.tags[o.Tenant]
	if !ok {
		return nil, fmt.Errorf("peer: push for tenant %d: %w", o.Tenant, tier.ErrInvalid)
	}
	w := &push{Neighbours: n, name: name{Name: tier.Name{Kind: o.Kind, Key: o.Key}, fingerprint: o.Profile.Fingerprint(), tenant: tenant}}
	for i := range o.Shares {
		w.bytes += o.Shares[i].Ref.Len()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, fmt.Errorf("peer: push: closed: %w", tier.ErrUnavailable)
	}
	if n.n >= n.cfg.Most || n.n > 0 && n.bytes+w.bytes > n.cfg.Bytes {
		return nil, fmt.Errorf("peer: %d objects of %d bytes are being taken: %w", n.n, n.bytes, tier.ErrBusy)
	}
	members, some := n.candidatesLocked(p.cfg.Now())
	switch {
	case len(members) > 0:
	case some:
		return nil, fmt.Errorf("peer: no member has room: %w", tier.ErrFull)
	default:
		return nil, fmt.Errorf("peer: no member: %w", tier.ErrUnavailable)
	}
	rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	n.preferParents(o, members)
	w.members = members[:min(len(members), n.cfg.Asked)]
	n.n++
	n.bytes += w.bytes
	n.running.Add(1)
	return w, nil
}

// candidatesLocked lists the members that may be asked now. The result some is true if a
// member could be asked if the pauses in n.rests were ignored. candidatesLocked drops
// pauses that are over, and pauses of former members.
func (n *Neighbours) candidatesLocked(now time.Time) (list []*member, some bool) {
	table := *n.cfg.Peers.table.Load()
	for m, until := range n.rests {
		if !now.Before(until) || n.cfg.Peers.member(m.Node) != m {
			delete(n.rests, m)
		}
	}
	for _, m := range table {
		if m == nil || !m.open(now) {
			continue
		}
		some = true
		if _, rests := n.rests[m]; !rests {
			list = append(list, m)
		}
	}
	return list, some
}

// preferParents sorts members: those believed to have the parent of a checkpoint come
// first, since a chain is most useful in one place.
func (n *Neighbours) preferParents(o *tier.Object, members []*member) {
	if o.Parent == (tier.Name{}) {
		return
	}
	tag, ok := n.cfg.Peers.cfg.Names.Tag(&tier.Want{Name: o.Parent, Fingerprint: o.Profile.Fingerprint(), Tenant: o.Tenant})
	if !ok {
		return
	}
	var holders [maxHolders]Node
	of := holders[:min(n.cfg.Peers.cfg.Index.Holders(tag, holders[:]), maxHolders)]
	slices.SortStableFunc(members, func(a, b *member) int {
		has := func(m *member) int {
			if slices.Contains(of, m.Node) {
				return 0
			}
			return 1
		}
		return has(a) - has(b)
	})
}

// Cancel implements tier.Write.
func (w *push) Cancel() { w.leave() }

func (w *push) leave() {
	w.mu.Lock()
	w.n--
	w.Neighbours.bytes -= w.bytes
	w.mu.Unlock()
	w.running.Done()
}

// Start implements tier.Write.
func (w *push) Start(_ tier.Level, done func(tier.Level, error)) {
	go func() {
		err := w.run()
		w.leave()
		if err != nil {
			done(tier.LevelMemory, err)
			return
		}
		done(tier.LevelSynced, nil)
	}()
}

// run asks the members one after another, until one takes the copy.
func (w *push) run() error {
	for _, m := range w.members {
		v, err := w.ask(m)
		if err == nil && v == taken {
			w.counts.pushed.Add(1)
			w.counts.pushedBytes.Add(uint64(w.bytes))
			return nil
		}
		if w.ctx.Err() != nil {
			return fmt.Errorf("peer: push: closed: %w", tier.ErrUnavailable)
		}
		if err != nil {
			w.counts.failed.Add(1)
		} else {
			w.counts.refused.Add(1)
		}
		if err != nil || v != notTaken { // notTaken says nothing about other objects
			w.rest(m)
		}
	}
	w.counts.unplaced.Add(1)
	return fmt.Errorf("peer: none of %d members takes %d bytes: %w", len(w.members), w.bytes, tier.ErrFull)
}

func (n *Neighbours) rest(m *member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rests[m] = n.cfg.Peers.cfg.Now().Add(n.cfg.RestTime)
}

// ask asks one member to take the copy. The result says nothing about fetches from this
// member, so its breaker is not informed.
func (w *push) ask(m *member) (v taking, err error) {
	ctx, cancel := context.WithTimeout(w.ctx, w.cfg.TakeTime)
	defer cancel()
	err = m.exchange(ctx, &request{
		path: TakePath, body: appendTake(nil, &w.name, w.bytes), time: w.cfg.TakeTime,
		consume: func(_ context.Context, l *link, n int) error {
			var b [1]byte
			if n != len(b) {
				return fmt.Errorf("%w: node %d answers with %d bytes", errFailed, m.Node, n)
			}
			if _, err := io.ReadFull(l.br, b[:]); err != nil {
				return m.failure(ctx, err)
			}
			if v = taking(b[0]); v >= takings {
				return fmt.Errorf("%w: node %d answers %d", errFailed, m.Node, v)
			}
			return nil
		},
	})
	if _, ok := errors.AsType[*busyError](err); ok {
		return takeBusy, nil
	}
	return v, err
}

// Copies returns how many members the index believes to have an object.
func (p *Peers) Copies(f profile.Fingerprint, t tier.TenantID, n tier.Name) int {
	tag, ok := p.cfg.Names.Tag(&tier.Want{Name: n, Fingerprint: f, Tenant: t})
	if !ok {
		return 0
	}
	var holders [maxHolders]Node
	return p.cfg.Index.Holders(tag, holders[:])
}
