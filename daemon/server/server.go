package server

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/budget"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/gpu"
	"github.com/spliced-kv/spliced/daemon/journal"
	"github.com/spliced-kv/spliced/daemon/parallel"
	"github.com/spliced-kv/spliced/daemon/queue"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/daemon/socket"
	"github.com/spliced-kv/spliced/daemon/usage"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Options are the dependencies of a server. GPUs may be empty, Served and Journal may be nil; all
// other fields are required.
type Options struct {
	Config  *settings.Config
	Store   *tiering.Store
	Device  gpuipc.Device
	GPUs    gpu.Devices // devices that the settings request
	Canary  *canary.Canary
	Usage   *usage.Usage
	Work    *parallel.Work
	Tenants tiering.Tenants // tenants of Config, in its order
	Epoch   uint64          // distinguishes this start of the daemon from all others
	Title   string          // the daemon's name for clients
	Log     zerolog.Logger
	// Stats returns the counters that the stats operation reports.
	Stats func() []api.Counter
	// Served is called for each prompt for which advice was given. It must not block, and both
	// arguments are valid only until it returns. nil = no listener.
	Served func(*advise.Query, *advise.Advice)
	// Journal receives events about clients and canary reports; nil = none.
	Journal *journal.Journal
}

// Server accepts clients and holds what connections share. It owns its connections; the store and
// the devices belong to the caller.
type Server struct {
	// Fixed after New.
	config  *settings.Config
	store   *tiering.Store
	device  gpuipc.Device
	gpus    gpu.Devices // devices that the settings request
	log     zerolog.Logger
	stats   func() []api.Counter
	served  func(*advise.Query, *advise.Advice)
	journal *journal.Journal
	counts  *Counts
	epoch   uint64
	title   string
	tenants tiering.Tenants
	tokens  atomic.Pointer[tokens]
	queue   *queue.Queue[*task]
	// deviceQueues has one queue per opened device, for requests that may wait for the device's
	// driver. The number of jobs that run at once is limited for each of them and for the field
	// queue separately.
	deviceQueues []*queue.Queue[*task]
	short        queue.LastShort
	watcher      *socket.Watcher
	pollers      []*poller
	workspaces   sync.Pool
	canary       *canary.Canary
	usage        *usage.Usage
	work         *parallel.Work
	memory       *budget.Bytes  // staging, slots and mappings of clients
	held         *budget.Bytes  // heap memory of requests in flight
	mapped       *budget.Mapped // address space in which memory of clients is mapped
	descriptors  budget.Descriptors
	places       *budget.Places // places for profiles

	busy     atomic.Int64  // requests in flight
	waiting  atomic.Int64  // of these, those that wait without a worker, for a disk or a stream
	stopping atomic.Bool   // new work is refused
	draining atomic.Bool   // new clients and fills are refused
	idle     chan struct{} // capacity 1: receives when busy reaches 0 while stopping
	closing  chan struct{} // closed when the server stops accepting
	guessing chan struct{} // capacity 1: full while the reply to a wrong token is delayed

	strangers paced // limits log lines about refused peers; used by the accepting goroutine only

	conns   sync.WaitGroup // connections, and goroutines that close them
	polling sync.WaitGroup
	mu      struct {
		sync.Mutex
		conns map[uint64]*conn
		last  uint64 // latest connection id
	}
}

// queued returns the number of jobs that wait for a place in a queue.
func (s *Server) queued() (n int) {
	for _, q := range s.queues() {
		n += q.Waiting()
	}
	return n
}

// queues returns all queues, beginning with the queue of the host.
func (s *Server) queues() []*queue.Queue[*task] {
	return append([]*queue.Queue[*task]{s.queue}, s.deviceQueues...)
}

// New creates a server. It starts nothing.
func New(o Options) (*Server, error) {
	s := &Server{
		config: o.Config, store: o.Store, device: o.Device, gpus: o.GPUs, log: o.Log, stats: o.Stats, served: o.Served, journal: o.Journal,
		counts: newCounts(), epoch: o.Epoch, title: o.Title[:min(len(o.Title), wire.MaxName)], tenants: o.Tenants, canary: o.Canary, usage: o.Usage, work: o.Work,
		idle: make(chan struct{}, 1), closing: make(chan struct{}), guessing: make(chan struct{}, 1),
		memory: budget.NewBytes("-connection-memory", int64(o.Config.ConnectionMemory), int64(o.Config.Staging+o.Config.Slots)),
		mapped: budget.NewMapped(),
		held:   budget.NewBytes("memory of requests", max(leastRequests, int64(o.Config.ConnectionMemory)/requestShare), 0),
	}
	s.places = budget.NewPlaces(o.Config.MaxProfiles, len(o.Tenants))
	s.queue = s.newQueue()
	for range o.GPUs.Opened() {
		s.deviceQueues = append(s.deviceQueues, s.newQueue())
	}
	s.SetTokens(o.Config.Tenants)
	s.mu.conns = map[uint64]*conn{}
	s.workspaces.New = func() any { return &workspace{buf: make([]byte, wire.MaxFrame)} }
	s.descriptors = budget.NewDescriptors()
	var err error
	if s.watcher, err = socket.NewWatcher(); err != nil {
		return nil, err
	}
	for range pollersOf(runtime.GOMAXPROCS(0)) {
		p, err := newPoller(s)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.pollers = append(s.pollers, p)
	}
	return s, nil
}

// newQueue creates a queue, which starts workers as it needs them. They return after Stop.
func (s *Server) newQueue() (q *queue.Queue[*task]) {
	q = queue.New[*task](s.config.Workers, &s.short, func() { s.polling.Go(func() { work(q) }) })
	return q
}

// TenantName returns the name of a tenant, as shown to operators.
func (s *Server) TenantName(id tier.TenantID) string {
	return cmp.Or(s.tenants.NameOf(id), fmt.Sprintf("tenant %d", id))
}

// Watch watches for clients that end. It returns after StopWatch.
func (s *Server) Watch() error { return s.watcher.Run() }

// StopWatch makes Watch return.
func (s *Server) StopWatch() error { return s.watcher.Stop() }

// Close frees the resources of New. No other method of the server may be running.
func (s *Server) Close() {
	s.watcher.Close()
	for _, p := range s.pollers {
		p.close()
	}
}

// acceptPause is the time that accept waits when the process has no descriptors left.
const acceptPause = 50 * time.Millisecond

// Acceptor is a source of connections. After it is closed, Accept returns seqpacket.ErrClosed.
type Acceptor interface {
	Accept() (*seqpacket.Conn, error)
}

// Accept accepts connections until the acceptor is closed. The server serves them until Stop.
func (s *Server) Accept(l Acceptor, allow *socket.AllowList) error {
	for _, p := range s.pollers {
		s.polling.Go(p.poll)
	}
	for {
		sock, err := l.Accept()
		switch {
		case err == nil:
			s.admit(sock, allow)
		case errors.Is(err, seqpacket.ErrClosed):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			s.counts.refused(refusedResources)
			if !s.pause(acceptPause) {
				return nil
			}
		default:
			return err
		}
	}
}

func (s *Server) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.closing:
		return false
	}
}

// admit creates a connection for an accepted socket. If it refuses the peer, it sends the reason
// and closes the socket.
func (s *Server) admit(sock *seqpacket.Conn, allow *socket.AllowList) {
	p, err := socket.ReadPeer(sock.Fd())
	if err != nil {
		s.counts.refused(refusedResources)
		sock.Close()
		return
	}
	if err := sock.SetSendTimeout(s.config.SendTimeout); err == nil {
		short := s.descriptors.Check(sock.Fd(), p.Pidfd)
		switch {
		case short != nil:
			s.counts.refused(refusedResources)
			turnAway(sock, short)
		case !allow.Allows(&p):
			s.counts.refused(refusedPeer)
			if more, due := s.strangers.due(time.Now()); due {
				s.log.Warn().Uint32("uid", p.UID).Uint32("gid", p.GID).Int("more", more).Msg("connection refused: not on the allow list")
			}
			turnAway(sock, codes.Refuse(wire.Denied, "user %d, group %d may not connect", p.UID, p.GID))
		default:
			c, full := s.register(sock, p)
			if full == nil {
				go c.serve()
				return
			}
			s.counts.refused(refusedBound)
			turnAway(sock, full)
		}
	}
	if p.Pidfd >= 0 {
		unix.Close(p.Pidfd)
	}
	hangUp(sock)
}

// turnAway sends a peer the reason why its connection ends, as the reply to the hello that the peer
// has sent or will send.
func turnAway(sock *seqpacket.Conn, err error) {
	code, _ := codes.Of(err)
	// The socket is about to be closed, so an error does not matter.
	_ = sock.Send(wire.AppendError(nil, &wire.Header{Op: wire.OpHello, Code: code}, codes.Text(code, err)), nil)
}

// register adds a connection, which nobody serves yet. It returns an error if there are too many.
func (s *Server) register(sock *seqpacket.Conn, p socket.Peer) (*conn, error) {
	s.mu.Lock()
	if err := s.placeLocked(p.UID); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.mu.last++
	c := newConn(s, s.mu.last, sock, p, time.Now())
	s.mu.conns[c.id] = c
	s.mu.Unlock()
	if err := s.watcher.Add(c.id, sock.Fd(), p.Pidfd, c); err != nil {
		// Without the watcher, the reader still sees end of file.
		s.log.Error().Err(err).Msg("cannot watch the socket of a client")
	}
	c.poller = s.leastLoaded()
	c.poller.join(c)
	s.conns.Add(1) // conn.end calls Done
	return c, nil
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.conns, c.id)
}

// list returns the connections in order of their ids.
func (s *Server) list() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*conn, 0, len(s.mu.conns))
	for _, c := range s.mu.conns {
		conns = append(conns, c)
	}
	slices.SortFunc(conns, func(a, b *conn) int { return int(a.id) - int(b.id) })
	return conns
}

// take reserves staging and slots from the budget of all connections. A client that requests more
// than the default gets at most half of the memory that its user may still take, or the default if
// that is more, so that no client takes all. In that case staging and slots are reduced in
// proportion, to whole pages.
func (s *Server) take(uid uint32, staging, slots *int64) error {
	return s.memory.TakeOf(uid, 0, func(left int64) int64 {
		most := max(left/2, int64(s.config.Staging+s.config.Slots))
		if wish := *staging + *slots; wish > most {
			share := float64(most) / float64(wish)
			*staging = max(int64(minShare), wholePages(int64(float64(*staging)*share)))
			*slots = max(int64(s.config.PageBytes), wholePages(int64(float64(*slots)*share)))
		}
		return *staging + *slots
	})
}

func (s *Server) refuseStopping() error {
	if s.stopping.Load() {
		return errStopping
	}
	return nil
}

// deadline returns the time that a request may take, counted from its arrival.
func (s *Server) deadline(h *wire.Header) time.Duration {
	if h.Deadline == 0 {
		return s.config.RequestTimeout
	}
	return min(time.Duration(h.Deadline)*time.Microsecond, s.config.MaxRequestTimeout)
}

// landed counts a request that is not in flight any more. If it was the last one of a stopping
// server, it wakes Stop.
func (s *Server) landed() {
	if s.busy.Add(-1) == 0 && s.stopping.Load() {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// ErrStuck means that running work does not end when its context is canceled. The work may still
// use memory of a client, so that its connection cannot be closed.
var ErrStuck = errors.New("work is stuck")

// Stop refuses new work, gives running work DrainTimeout to finish, cancels the work that is left,
// and closes all connections. If Stop returns ErrStuck, it may be called again. The caller must
// close the listener first.
func (s *Server) Stop() error {
	if !s.stopping.Swap(true) {
		close(s.closing)
	}
	limit := time.NewTimer(s.config.DrainTimeout)
	defer limit.Stop()
	for drained := false; !drained && s.busy.Load() > 0; {
		select {
		case <-s.idle:
		case <-limit.C:
			drained = true
		}
	}
	for _, c := range s.list() {
		c.leave(errStopping)
	}
	closed := make(chan struct{})
	go func() { s.conns.Wait(); close(closed) }()
	stuck := time.NewTimer(max(s.config.DrainTimeout, time.Second))
	defer stuck.Stop()
	select {
	case <-closed:
		for _, q := range s.queues() {
			q.Close()
		}
		return s.stopPolling()
	case <-stuck.C:
		// Unmapping memory in use would fault, and the process is about to end anyway.
		return fmt.Errorf("%d connections cannot be closed: %w", len(s.list()), ErrStuck)
	}
}

// leastLoaded returns the poller with the fewest connections.
func (s *Server) leastLoaded() *poller {
	return slices.MinFunc(s.pollers, func(a, b *poller) int { return a.length() - b.length() })
}

// stopPolling stops all pollers; no connections are left.
func (s *Server) stopPolling() error {
	var failed []error
	for _, p := range s.pollers {
		failed = append(failed, p.stop())
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	s.polling.Wait()
	return nil
}
