package parallel

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/peer"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Tenant is a tenant of this node. Parallel: its token ids may cross nodes.
type Tenant struct {
	ID       tier.TenantID
	Salt     []byte
	Parallel bool
}

// Config makes a Work.
type Config struct {
	Store   *tiering.Store // required
	Tenants []Tenant
	Cluster *Cluster // nil = only engines of this node help each other
	Now     func() time.Time
	Log     zerolog.Logger
}

// Cluster is what reaches other nodes.
type Cluster struct {
	Peers *peer.Peers
	Names *peer.Names
	Self  string // this node's name
	// Node numbers a member by its name, and Name names it.
	Node func(name string) (peer.Node, bool)
	Name func(peer.Node) (string, bool)
	// Mark tells other nodes that this one has, or has no more, engines of a scope.
	Mark func(w tier.Want, has bool)
	// PeerOf tells peers apart.
	PeerOf func(*fasthttp.RequestCtx) string
}

// Work is a node's part in computing segments in parallel.
type Work struct {
	cfg     Config
	tenants map[tier.TenantID]Tenant
	counts  Counts
	board   *board
	session *tiering.Session // leases of rows that have come
	ctx     context.Context  // ended by Close
	end     context.CancelFunc
	running sync.WaitGroup // of plans, and of what brings first pieces
	wake    chan struct{}  // there is something to sweep

	markMu sync.Mutex // one mark at a time, the latest last

	mu     sync.Mutex
	closed bool
	plans  map[uint64]*plan
	polls  map[string]int // requests for results that wait, by peer
	room   int64          // bytes that rows of plans will take
	tokens int            // token ids of plans
}

// New makes a Work; Run sweeps it, and Close ends it before the store is closed.
func New(cfg Config) *Work {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	w := &Work{
		cfg: cfg, tenants: map[tier.TenantID]Tenant{}, session: cfg.Store.NewSession("parallel"), wake: make(chan struct{}, 1),
		plans: map[uint64]*plan{}, polls: map[string]int{},
	}
	for _, t := range cfg.Tenants {
		w.tenants[t.ID] = t
	}
	w.ctx, w.end = context.WithCancel(context.Background())
	w.board = newBoard(&w.counts, w.mark)
	return w
}

// Allows reports whether token ids of a tenant's prompts may reach its other engines.
func (w *Work) Allows(id tier.TenantID) bool { return w.tenants[id].Parallel }

// mark tells the cluster whether this node has engines of a scope. It is called without a
// lock, so that it looks again.
func (w *Work) mark(s Scope, _ bool) {
	signal(w.wake)
	if w.cfg.Cluster == nil || !w.tenants[s.Tenant].Parallel {
		return
	}
	w.markMu.Lock()
	defer w.markMu.Unlock()
	w.cfg.Cluster.Mark(peer.Workers(s.Fingerprint, s.Tenant), w.board.has(s))
}

// sweepEvery is how exact the times of jobs and rows are kept.
const sweepEvery = 20 * time.Millisecond

// Run ends what is past its time, until the context ends. It rests while there is nothing.
func (w *Work) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		more := w.Sweep()
		if !more {
			select {
			case <-w.wake:
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Sweep ends what is past its time now, and tells whether there is more to look after.
func (w *Work) Sweep() (more bool) {
	now := w.cfg.Now()
	more = w.board.sweep(now)
	for _, p := range w.list() {
		p.sweep(now)
		more = true
	}
	return more
}

func (w *Work) list() (list []*plan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.plans {
		list = append(list, p)
	}
	return list
}

// Leave ends what a connection has: its plans, and its workers.
func (w *Work) Leave(conn uint64) {
	w.board.leaveConn(conn)
	for _, p := range w.list() {
		if p.conn == conn {
			p.finish()
		}
	}
}

// Stop ends all plans and jobs, and whoever waits for them. Again does nothing.
func (w *Work) Stop() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.end()
	for _, p := range w.list() {
		p.finish()
	}
	w.board.leaveAll(func(*worker) bool { return true })
}

// Close stops, and waits for what runs: no longer than a request takes that was cut off.
func (w *Work) Close() {
	w.Stop()
	w.running.Wait()
	w.session.Close()
}

// Published tells that a segment has become held here by a commit.
func (w *Work) Published(object *tier.Want) {
	if object.Kind != 0 {
		return
	}
	id, _, ok := w.cfg.Store.FindProfile(object.Fingerprint)
	if !ok {
		return
	}
	s := Scope{id, object.Fingerprint, object.Tenant}
	w.board.published(s, object.Key)
	for _, p := range w.list() {
		if p.scope == s {
			p.published(object.Key)
		}
	}
}

// Exists tells that somebody wanted to reserve a segment that is held, or being filled: a
// job for it is done if it is held.
func (w *Work) Exists(s Scope, key profile.SegmentKey) {
	if w.board.awaits(s, key) && w.holds(s, []profile.SegmentKey{key})[0] {
		w.board.published(s, key)
	}
}

// holds tells which segments this node has by itself.
func (w *Work) holds(s Scope, keys []profile.SegmentKey) []bool {
	held := make([]bool, len(keys))
	q := tiering.MatchQuery{Profile: s.Profile, Tenant: s.Tenant, Local: true, Keys: make([][32]byte, len(keys))}
	for i := range keys {
		q.Keys[i] = keys[i]
	}
	var r tiering.MatchResult
	if w.cfg.Store.Match(&q, &r) == nil {
		for i := range r.Segments {
			held[i] = r.Segments[i].Status == tier.StatusHit
		}
	}
	return held
}

// lease brings a segment here and keeps it until let is called; false when it cannot be
// had.
func (w *Work) lease(ctx context.Context, s Scope, key profile.SegmentKey, until time.Time) (let func(), ok bool) {
	q := tiering.AcquireQuery{
		Profile: s.Profile, Tenant: s.Tenant, Planned: true, Keys: [][32]byte{key}, TTL: max(until.Sub(w.cfg.Now()), 0) + lingerTime,
	}
	rows, err := w.session.AwaitAcquire(ctx, &q, nil)
	if err != nil || !rows[0].Hit {
		return nil, false
	}
	id := rows[0].Lease
	return func() { _ = w.session.Release(id) }, true // gone only where it has expired
}

func busy(format string, args ...any) error {
	return fmt.Errorf("parallel: "+format+": %w", append(args, tier.ErrBusy)...)
}
