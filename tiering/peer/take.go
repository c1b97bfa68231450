package peer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// TakerConfig configures a Taker. Fields marked "required" must be set. Any other field
// that is zero takes the default that its comment states.
type TakerConfig struct {
	Store  *tiering.Store                    // required
	Names  *Names                            // required
	PeerOf func(*fasthttp.RequestCtx) string // identifies the peer of a request; default ByAddress

	Bytes        int64         // most bytes being fetched, unless one object is larger; default 256 MiB
	BytesPerPeer int64         // the same for one peer; default 64 MiB
	Most         int           // most objects being fetched; default 32
	Time         time.Duration // timeout of a fetch, shorter than the peer's TakeTime; default 8 seconds
}

// TakerCounters counts events since NewTaker.
type TakerCounters struct {
	Taken      uint64 `count:"copies_taken" prom:"peer_copies_total,result=taken"`
	TakenBytes uint64 `count:"copies_taken_bytes" prom:"peer_copied_bytes_total,result=taken"`
	NoRoom     uint64 `count:"copies_no_room" prom:"peer_copies_total,result=no_room"`
	Busy       uint64 `count:"copies_busy" prom:"peer_copies_total,result=busy"`
	NotTaken   uint64 `count:"copies_not_taken" prom:"peer_copies_total,result=not_taken"`
}

// Taker takes copies that members offer to this node, if memory has room without
// evictions. It fetches them like an engine's acquire does: from the holders in the index,
// if the cost model finds that worthwhile, and with verification. The size that the
// requester states is only used to refuse copies. All methods may be called concurrently.
type Taker struct {
	cfg     TakerConfig
	session *tiering.Session
	ctx     context.Context // ended by Close
	end     context.CancelFunc
	counts  struct{ taken, takenBytes, noRoom, busy, notTaken atomic.Uint64 }

	mu      sync.Mutex
	closed  bool
	bytes   int64
	n       int
	peers   map[string]int64 // bytes being fetched, by peer; at most Most entries
	running sync.WaitGroup
}

// NewTaker returns a taker. It starts nothing.
func NewTaker(cfg TakerConfig) (*Taker, error) {
	setDefault(&cfg.Bytes, 256<<20)
	setDefault(&cfg.BytesPerPeer, 64<<20)
	setDefault(&cfg.Most, 32)
	setDefault(&cfg.Time, 8*time.Second)
	if cfg.Store == nil || cfg.Names == nil || cfg.Bytes < 0 || cfg.BytesPerPeer < 0 || cfg.Most < 0 || cfg.Time < 0 {
		return nil, fmt.Errorf("peer: taker without store or names, or with a negative bound: %w", tier.ErrInvalid)
	}
	if cfg.PeerOf == nil {
		cfg.PeerOf = ByAddress
	}
	t := &Taker{cfg: cfg, session: cfg.Store.NewSession("taken"), peers: map[string]int64{}}
	t.ctx, t.end = context.WithCancel(context.Background())
	return t, nil
}

// Stop refuses further copies: the node is shutting down.
func (t *Taker) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// Close cancels running fetches and waits for them. It is called before the store closes.
func (t *Taker) Close() {
	t.Stop()
	t.end()
	t.running.Wait()
	t.session.Close()
}

// Counters returns a snapshot.
func (t *Taker) Counters() TakerCounters {
	c := &t.counts
	return TakerCounters{
		Taken: c.taken.Load(), TakenBytes: c.takenBytes.Load(), NoRoom: c.noRoom.Load(), Busy: c.busy.Load(), NotTaken: c.notTaken.Load(),
	}
}

// Handler answers TakePath once the copy is here or has been refused.
func (t *Taker) Handler(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.SetContentType("application/octet-stream")
	if !ctx.IsPost() || len(ctx.PostBody()) != takeBytes {
		ctx.Response.SetStatusCode(fasthttp.StatusBadRequest)
		return
	}
	n, bytes, err := decodeTake(ctx.PostBody())
	if err != nil {
		ctx.Response.SetStatusCode(fasthttp.StatusBadRequest)
		return
	}
	v := t.take(t.cfg.PeerOf(ctx), &n, bytes)
	switch v {
	case taken:
		t.counts.taken.Add(1)
		t.counts.takenBytes.Add(uint64(bytes))
	case noRoom:
		t.counts.noRoom.Add(1)
	case takeBusy:
		t.counts.busy.Add(1)
	default:
		t.counts.notTaken.Add(1)
	}
	ctx.Response.SetBodyRaw([]byte{byte(v)})
}

func (t *Taker) take(peer string, n *name, bytes int64) taking {
	tenant := t.cfg.Names.tenants[n.tenant]
	id, _, ok := t.cfg.Store.FindProfile(n.fingerprint)
	if tenant == nil || !ok {
		return notTaken
	}
	leave, v := t.enter(peer, n.Kind, tenant.ID, bytes)
	if v != taken {
		return v
	}
	defer leave()
	ctx, cancel := context.WithTimeout(t.ctx, t.cfg.Time)
	defer cancel()
	lease := tier.LeaseID(0)
	if n.Kind == 0 {
		rows, err := t.session.AwaitAcquire(ctx, &tiering.AcquireQuery{Profile: id, Tenant: tenant.ID, Keys: [][32]byte{n.Key}}, nil)
		if err != nil || rows[0].Err != nil || !rows[0].Hit {
			return notTaken
		}
		lease = rows[0].Lease
	} else {
		got, err := t.session.AwaitLoad(ctx, &tiering.LoadQuery{Profile: id, Tenant: tenant.ID, Accept: n.Kind, Hash: n.Key})
		if err != nil || !got.Hit {
			return notTaken
		}
		lease = got.Lease
	}
	_ = t.session.Release(lease) // ErrGone only if it has expired
	return taken
}

// The method enter counts an object's bytes if they, together with the copies being
// fetched, fit into the limits and into the free room of memory. The caller then has to
// call the function leave. If they do not fit, leave is nil and v says why.
func (t *Taker) enter(peer string, kind tier.CheckpointKind, tenant tier.TenantID, bytes int64) (leave func(), v taking) {
	spare := t.cfg.Store.Spare(kind, tenant)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed, t.n >= t.cfg.Most, t.n > 0 && bytes > t.cfg.Bytes-t.bytes, t.peers[peer] > 0 && bytes > t.cfg.BytesPerPeer-t.peers[peer]:
		return nil, takeBusy
	case bytes > spare-t.bytes:
		return nil, noRoom
	}
	t.n++
	t.bytes += bytes
	t.peers[peer] += bytes
	t.running.Add(1)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.n--
		t.bytes -= bytes
		if t.peers[peer] -= bytes; t.peers[peer] == 0 {
			delete(t.peers, peer)
		}
		t.running.Done()
	}, taken
}
