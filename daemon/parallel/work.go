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

// Tenant is a tenant of this node. Parallel allows other engines to receive its token ids.
type Tenant struct {
	ID       tier.TenantID
	Salt     []byte
	Parallel bool
}

// Config configures a Work.
type Config struct {
	Store   *tiering.Store // required
	Tenants []Tenant
	Cluster *Cluster // nil = only engines of this node help each other
	Now     func() time.Time
	Log     zerolog.Logger
	Offers  time.Duration // longest time that a plan waits for offers; 0 = offerTime
}

// Cluster gives access to other nodes.
type Cluster struct {
	Peers *peer.Peers
	Names *peer.Names
	Self  string // this node's name
	// Node returns the number of a member by its name. Name returns the name by the number.
	Node func(name string) (peer.Node, bool)
	Name func(peer.Node) (string, bool)
	// Mark announces to other nodes whether this node has engines of a scope.
	Mark func(w tier.Want, has bool)
	// PeerOf identifies the peer of a request.
	PeerOf func(*fasthttp.RequestCtx) string
}

// Work is a node's part in computing segments in parallel.
type Work struct {
	cfg     Config
	tenants map[tier.TenantID]Tenant
	counts  Counts
	board   *board
	session *tiering.Session // owns the leases of fetched rows
	ctx     context.Context  // ended by Close
	end     context.CancelFunc
	running sync.WaitGroup // goroutines of plans and of fetches
	wake    chan struct{}  // tells Run that a sweep may be needed

	markMu sync.Mutex // serializes calls of Mark, so that the latest state is announced last

	mu     sync.Mutex
	closed bool
	plans  map[uint64]*plan
	polls  map[string]int // waiting requests for results, by peer
	room   int64          // bytes reserved for rows of plans
	tokens int            // token ids in all plans
}

// New creates a Work. The caller must start the method Run, which enforces the deadlines of jobs
// and of the rows of plans. The caller must call Close before it closes the store.
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

// Allows reports whether token ids of a tenant's prompts may be sent to other engines of the
// tenant.
func (w *Work) Allows(id tier.TenantID) bool { return w.tenants[id].Parallel }

// mark announces whether this node has engines of a scope.
func (w *Work) mark(s Scope) {
	signal(w.wake)
	if w.cfg.Cluster == nil || !w.tenants[s.Tenant].Parallel {
		return
	}
	w.markMu.Lock()
	defer w.markMu.Unlock()
	w.cfg.Cluster.Mark(peer.Workers(s.Fingerprint, s.Tenant), w.board.has(s))
}

// sweepEvery is the time between sweeps, and so the precision of the deadlines of jobs and rows.
const sweepEvery = 20 * time.Millisecond

// Run ends jobs, rows and plans whose time is over, until the context ends. It sleeps while there
// are none.
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

// Sweep ends everything whose time is over now. It reports whether another sweep is needed later.
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

// Leave ends the plans and workers of a connection.
func (w *Work) Leave(conn uint64) {
	w.board.leave(func(x *worker) bool { return x.conn == conn })
	for _, p := range w.list() {
		if p.conn == conn {
			p.finish()
		}
	}
}

// Stop ends all plans, jobs and waiting calls. Later calls do nothing.
func (w *Work) Stop() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.end()
	for _, p := range w.list() {
		p.finish()
	}
	w.board.leave(func(*worker) bool { return true })
}

// Close calls Stop and waits for running goroutines. That takes at most as long as a request that
// is being interrupted.
func (w *Work) Close() {
	w.Stop()
	w.running.Wait()
	w.session.Close()
}

// Published records that a commit has stored a segment here.
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

// Exists records that an engine tried to reserve a segment that is cached or being filled. If the
// segment is cached, the jobs for it are done.
func (w *Work) Exists(s Scope, key profile.SegmentKey) {
	if w.board.awaits(s, key) && w.holds(s, []profile.SegmentKey{key})[0] {
		w.board.published(s, key)
	}
}

// holds returns for each key whether this node has the segment locally.
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

// lease fetches a segment and leases it. The caller ends the lease with the returned function let.
// lease returns false if the segment is not available.
func (w *Work) lease(ctx context.Context, s Scope, key profile.SegmentKey, until time.Time) (let func(), ok bool) {
	q := tiering.AcquireQuery{
		Profile: s.Profile, Tenant: s.Tenant, Planned: true, Keys: [][32]byte{key}, TTL: max(until.Sub(w.cfg.Now()), 0) + lingerTime,
	}
	rows, err := w.session.AwaitAcquire(ctx, &q, nil)
	if err != nil || !rows[0].Hit {
		return nil, false
	}
	id := rows[0].Lease
	return func() { _ = w.session.Release(id) }, true // an error means that the lease has expired
}

func busy(format string, args ...any) error {
	return fmt.Errorf("parallel: "+format+": %w", append(args, tier.ErrBusy)...)
}
