package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// ServerConfig configures a Server. Fields marked "required" must be set. Any other field
// that is zero takes the default that its comment states.
type ServerConfig struct {
	Store  *tiering.Store // required
	Device gpuipc.Device  // device of the store's arena; required
	Names  *Names         // required
	// Known answers requests of HoldersPath; nil = they are refused.
	Known *Known

	MaxRequests int // concurrent requests of all peers together; default 64
	MaxPerPeer  int // concurrent requests of one peer; default 16
	// PeerOf identifies the peer of a request; default ByAddress.
	PeerOf func(*fasthttp.RequestCtx) string
	// PromoteTime is the longest time that a request waits for objects that are only on disk.
	// After that the peer has to ask again. The default is 2 seconds.
	PromoteTime time.Duration
	// StallTime is the longest time that a peer may accept no byte before its connection is
	// closed. The default is 10 seconds.
	StallTime time.Duration
	Log       zerolog.Logger
}

func (c ServerConfig) withDefaults() ServerConfig {
	setDefault(&c.MaxRequests, 64)
	setDefault(&c.MaxPerPeer, 16)
	setDefault(&c.PromoteTime, 2*time.Second)
	setDefault(&c.StallTime, 10*time.Second)
	if c.PeerOf == nil {
		c.PeerOf = ByAddress
	}
	return c
}

// ByAddress identifies a peer by its remote address.
func ByAddress(ctx *fasthttp.RequestCtx) string { return ctx.RemoteIP().String() }

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ServerCounters counts events since NewServer.
type ServerCounters struct {
	Finds     uint64 `count:"served_finds" prom:"peer_served_total,request=find" help:"Requests of other cluster members that this node answered, by kind: find (does this node have these objects), read (bytes of an object), holders (which members have these objects)."`
	Reads     uint64 `count:"served_reads" prom:"peer_served_total,request=read"`
	Tells     uint64 `count:"served_holders" prom:"peer_served_total,request=holders"`
	Found     uint64 `count:"served_found" prom:"peer_served_found_total" help:"Objects that other cluster members looked for and this node had."`
	Later     uint64 `count:"served_later" prom:"peer_served_later_total" help:"Objects that other cluster members looked for and this node could not offer yet, mostly because they were being read into memory."`
	SentBytes uint64 `count:"served_bytes" prom:"fetch_bytes_total,tier=peer,direction=out"`
	Busy      uint64 `count:"refused_busy" prom:"peer_refusals_total,reason=busy" help:"Requests of other cluster members that this node refused, by reason: busy, invalid, changed (the object has other bytes now), gone (the object left this node)."`
	Invalid   uint64 `count:"refused_invalid" prom:"peer_refusals_total,reason=invalid"`
	Changed   uint64 `count:"refused_changed" prom:"peer_refusals_total,reason=changed"`
	Gone      uint64 `count:"refused_gone" prom:"peer_refusals_total,reason=gone"`
	Stalled   uint64 `count:"stalled" prom:"peer_stalled_total" help:"Transfers to other cluster members that ended before all bytes were sent."`
}

// Server answers peers from a store.
type Server struct {
	cfg     ServerConfig
	session *tiering.Session
	flats   flats
	ctx     context.Context // ended by Close
	end     context.CancelFunc
	counts  struct {
		finds, reads, tells, found, later, sent, busy, invalid, changed, gone, stalled atomic.Uint64
	}

	mu      sync.Mutex
	closed  bool
	running int
	peers   map[string]int // concurrent requests by peer; only peers with requests
	idle    sync.Cond
}

// NewServer returns a server. It starts nothing: the caller gives Handler to a
// fasthttp.Server.
func NewServer(cfg ServerConfig) (*Server, error) {
	cfg = cfg.withDefaults()
	if cfg.Store == nil || cfg.Device == nil || cfg.Names == nil || cfg.MaxRequests < 0 || cfg.MaxPerPeer < 0 || cfg.PromoteTime < 0 || cfg.StallTime < 0 {
		return nil, fmt.Errorf("peer: server without store, device or names, or with a negative bound: %w", tier.ErrInvalid)
	}
	s := &Server{cfg: cfg, session: cfg.Store.NewSession("peers"), peers: map[string]int{}}
	s.idle.L = &s.mu
	s.flats.release = s.release
	s.ctx, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Close refuses new requests, waits for running ones and releases all leases. A running
// request takes at most StallTime for each MiB of its answer. Close is called once,
// before the store closes.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.mu.Lock()
	for s.running > 0 {
		s.idle.Wait()
	}
	s.mu.Unlock()
	s.flats.close()
	s.session.Close()
}

// Counters returns a snapshot.
func (s *Server) Counters() ServerCounters {
	c := &s.counts
	return ServerCounters{
		Finds: c.finds.Load(), Reads: c.reads.Load(), Tells: c.tells.Load(), Found: c.found.Load(), Later: c.later.Load(), SentBytes: c.sent.Load(), Busy: c.busy.Load(),
		Invalid: c.invalid.Load(), Changed: c.changed.Load(), Gone: c.gone.Load(), Stalled: c.stalled.Load(),
	}
}

// retryHeader is the response header with the delay before the next attempt, in milliseconds.
const retryHeader = "Retry-After-Ms"

// retryAfter is the delay that a refusal asks for. In this time a range of maxRange is
// sent, which takes about 10 ms (guess).
const retryAfter = 20 * time.Millisecond

// errChanged reports that the object exists, but with other digests than requested.
var errChanged = errors.New("peer: changed")

// Handler answers one request. It waits at most PromoteTime for the disk.
func (s *Server) Handler(ctx *fasthttp.RequestCtx) {
	peer := s.cfg.PeerOf(ctx)
	if err := s.enter(peer); err != nil {
		s.refuse(ctx, err)
		return
	}
	leave := func() { s.leave(peer) }
	switch string(ctx.Path()) {
	case FindPath:
		if err := s.find(ctx); err != nil {
			s.refuse(ctx, err)
		}
	case HoldersPath:
		if err := s.holders(ctx); err != nil {
			s.refuse(ctx, err)
		}
	case ReadPath:
		body, err := s.read(ctx)
		if err != nil {
			s.refuse(ctx, err)
			break
		}
		body.leave = leave // called after its bytes are sent
		ctx.Response.SetBodyStream(body, int(body.n))
		return
	default:
		s.refuse(ctx, fmt.Errorf("peer: path %.64q: %w", ctx.Path(), errNoPath))
	}
	leave()
}

var errNoPath = errors.New("peer: no such path")

func (s *Server) enter(peer string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("peer: the server is closing: %w", tier.ErrUnavailable)
	case s.running >= s.cfg.MaxRequests:
		return fmt.Errorf("peer: %d requests run: %w", s.running, tier.ErrBusy)
	case s.peers[peer] >= s.cfg.MaxPerPeer:
		return fmt.Errorf("peer: %d requests of this peer run: %w", s.peers[peer], tier.ErrBusy)
	}
	s.running++
	s.peers[peer]++
	return nil
}

func (s *Server) leave(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peers[peer]--; s.peers[peer] == 0 {
		delete(s.peers, peer)
	}
	if s.running--; s.running == 0 {
		s.idle.Broadcast()
	}
}

// refuse answers a request with the HTTP status for an error. No other function maps
// errors to statuses.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, err error) {
	status, code, count := fasthttp.StatusServiceUnavailable, "unavailable", (*atomic.Uint64)(nil)
	switch {
	case errors.Is(err, errNoPath):
		status, code, count = fasthttp.StatusNotImplemented, "no_such_path", &s.counts.invalid
	case errors.Is(err, errChanged):
		status, code, count = fasthttp.StatusPreconditionFailed, "changed", &s.counts.changed
	case errors.Is(err, tier.ErrInvalid):
		status, code, count = fasthttp.StatusBadRequest, "invalid", &s.counts.invalid
	case errors.Is(err, tier.ErrGone):
		status, code, count = fasthttp.StatusNotFound, "gone", &s.counts.gone
	case errors.Is(err, tier.ErrBusy), errors.Is(err, tier.ErrFull):
		status, code, count = fasthttp.StatusTooManyRequests, "busy", &s.counts.busy
		ctx.Response.Header.Set(retryHeader, strconv.FormatInt(retryAfter.Milliseconds(), 10))
	}
	if count != nil {
		count.Add(1)
	}
	ctx.Response.SetStatusCode(status)
	ctx.Response.Header.SetContentType("text/plain")
	ctx.Response.SetBodyString(code + ": " + err.Error() + "\n")
}

// wait returns a context that ends when a request has waited for the disk long enough.
func (s *Server) wait() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.ctx, s.cfg.PromoteTime)
}

func (s *Server) find(ctx *fasthttp.RequestCtx) error {
	body := ctx.PostBody()
	if !ctx.IsPost() || len(body) > maxFind {
		return fmt.Errorf("peer: %s of %d bytes: %w", ctx.Method(), len(body), tier.ErrInvalid)
	}
	names, err := decodeFind(body)
	if err != nil {
		return err
	}
	wait, cancel := s.wait()
	defer cancel()
	out := binary.LittleEndian.AppendUint16(nil, uint16(len(names)))
	for i := 0; i < len(names); {
		n := alike(names[i:])
		if out, err = s.findAlike(wait, names[i:i+n], out); err != nil {
			return err
		}
		i += n
	}
	s.counts.finds.Add(1)
	ctx.Response.Header.SetContentType("application/octet-stream")
	ctx.Response.SetBodyRaw(out)
	return nil
}

// alike returns how many names at the front of the list one call of the method acquire can
// lease: several segments of one tenant and profile, or a single name.
func alike(names []name) int {
	n := 1
	for n < len(names) && names[0].Kind == 0 && names[n].Kind == 0 &&
		names[n].fingerprint == names[0].fingerprint && names[n].tenant == names[0].tenant {
		n++
	}
	return n
}

// held is an object under a lease, or a miss.
type held struct {
	lease  tier.LeaseID // zero if flat has the lease
	flat   *flat        // set if the object was built from a chain
	object *tier.Object
	later  bool
}

// letGo ends the use of an object.
func (s *Server) letGo(h *held) {
	s.release(h.lease)
	if h.flat != nil {
		s.flats.leave(h.flat)
	}
}

// findAlike appends the rows for names that one acquire can lease.
func (s *Server) findAlike(ctx context.Context, names []name, out []byte) ([]byte, error) {
	list, err := s.acquire(ctx, names)
	if err != nil {
		return out, err
	}
	for i := range list {
		status, d := notHere, (*description)(nil)
		switch {
		case list[i].later:
			status = later
		case list[i].object != nil:
			d = describe(list[i].object)
			if size := d.size(); len(out)+size+5 <= maxAnswer {
				status = here
			} else if size+len(names) < maxAnswer/2 {
				status = later // the client gets it in a request for fewer objects
			}
		}
		switch status {
		case here:
			s.counts.found.Add(1)
		case later:
			s.counts.later.Add(1)
		}
		out = appendRow(out, status, d)
		s.letGo(&list[i])
	}
	return out, nil
}

func (s *Server) release(id tier.LeaseID) {
	if id != 0 {
		_ = s.session.Release(id) // ErrGone only if the session has ended
	}
}

// acquire leases the objects of names, which the function alike has found to fit one lease.
// An object has no lease if it is not here, or if this node has no tenant of that name and
// salt.
func (s *Server) acquire(ctx context.Context, names []name) ([]held, error) {
	list := make([]held, len(names))
	tenant := s.cfg.Names.tenants[names[0].tenant]
	id, _, ok := s.cfg.Store.FindProfile(names[0].fingerprint)
	if tenant == nil || !ok {
		return list, nil
	}
	var err error
	switch names[0].Kind {
	case 0:
		err = s.acquireSegments(ctx, id, tenant.ID, names, list)
	case tier.Exact, tier.Spliced:
		err = s.acquireCheckpoint(ctx, id, tenant.ID, &names[0], &list[0])
	case tier.Rows: // not sent: the states would have to be rebuilt first
	default:
		return nil, fmt.Errorf("peer: object of kind %d: %w", names[0].Kind, tier.ErrInvalid)
	}
	for i := range list {
		if list[i].lease == 0 {
			continue
		}
		if list[i].object, _ = s.session.Leased(list[i].lease); list[i].object == nil {
			s.release(list[i].lease) // acquiring the others took so long that the lease has expired
			list[i] = held{}
		}
	}
	if list[0].lease != 0 && names[0].Kind != 0 {
		if err := s.asOneNode(ctx, &names[0], &list[0]); err != nil {
			s.letGo(&list[0])
			return make([]held, len(names)), ofStore(err)
		}
	}
	return list, err
}

func (s *Server) acquireSegments(ctx context.Context, id tier.ProfileID, tenant tier.TenantID, names []name, list []held) error {
	q := &tiering.AcquireQuery{Profile: id, Tenant: tenant, Near: true}
	for i := range names {
		q.Keys = append(q.Keys, names[i].Key)
	}
	rows, err := s.session.AwaitAcquire(ctx, q, nil)
	if err != nil {
		return ofStore(err)
	}
	for i := range rows {
		list[i] = held{lease: rows[i].Lease, later: rows[i].Err != nil || rows[i].Promoting}
	}
	return nil
}

func (s *Server) acquireCheckpoint(ctx context.Context, id tier.ProfileID, tenant tier.TenantID, n *name, to *held) error {
	if f := s.flats.use(n, time.Now()); f != nil {
		*to = held{flat: f, object: f.object}
		return nil
	}
	got, err := s.session.AwaitLoad(ctx, &tiering.LoadQuery{Profile: id, Tenant: tenant, Accept: n.Kind, Near: true, Hash: n.Key})
	if err != nil && !errors.Is(err, tier.ErrBusy) {
		return ofStore(err)
	}
	*to = held{lease: got.Lease, later: err != nil || got.Promoting}
	return nil
}

// ofStore turns tier.ErrInvalid from the store into tier.ErrUnavailable, so that it is
// not reported as the peer's fault. It occurs, for example, if the profile was forgotten
// meanwhile.
func ofStore(err error) error {
	if errors.Is(err, tier.ErrInvalid) {
		return fmt.Errorf("peer: %w: %w", tier.ErrUnavailable, err)
	}
	return err
}
