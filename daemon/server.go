package daemon

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// server accepts clients and holds what connections share. It owns its
// connections and neither the store nor the device.
type server struct {
	// Fixed after newServer.
	config  *Config
	store   *tiering.Store
	device  gpuipc.Device
	disk    *disk.Tier // nil = none
	gpu     *gpu       // nil = none
	log     zerolog.Logger
	counts  *counts
	epoch   uint64
	title   string
	tenants []tiering.Tenant
	tokens  [][sha256.Size]byte // by tenant
	open    []bool              // tenants without a token
	queue   *queue
	// deviceQueue has places of its own for what may wait for the GPU's driver.
	deviceQueue *queue
	watcher     *watcher
	canary      *canary

	busy     atomic.Int64  // jobs in flight
	waiting  atomic.Int64  // of these, waiting for a disk
	stopping atomic.Bool   // new work is refused
	idle     chan struct{} // capacity 1: busy came to 0 while stopping
	closing  chan struct{} // closed when accept has to end

	conns sync.WaitGroup
	mu    struct {
		sync.Mutex
		conns map[uint64]*conn
		last  uint64 // connection id
		lent  int64  // bytes of staging and slots
	}
}

// queued is how many requests wait for a place.
func (s *server) queued() int { return s.queue.length() + s.deviceQueue.length() }

func newServer(c *Config, store *tiering.Store, device gpuipc.Device, log zerolog.Logger, title string) (*server, error) {
	s := &server{
		config: c, store: store, device: device, log: log, title: title[:min(len(title), wire.MaxName)],
		counts: newCounts(), epoch: newEpoch(), queue: newQueue(c.Workers), deviceQueue: newQueue(c.Workers),
		idle: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	s.tenants = tenantsOf(c)
	for _, t := range c.Tenants {
		s.tokens = append(s.tokens, sha256.Sum256([]byte(t.Token)))
		s.open = append(s.open, t.Token == "")
	}
	s.mu.conns = map[uint64]*conn{}
	var err error
	s.watcher, err = newWatcher()
	return s, err
}

// tenantsOf numbers the tenants of the configuration from 1; 0 is none.
func tenantsOf(c *Config) []tiering.Tenant {
	var list []tiering.Tenant
	for i, t := range c.Tenants {
		list = append(list, tiering.Tenant{ID: tier.TenantID(i + 1), Name: t.Name, Salt: []byte(t.Salt), QuotaBytes: int64(t.Quota)})
	}
	return list
}

// newEpoch draws the number that tells this start from all others; 0 is what a
// client says that has none.
func newEpoch() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if epoch := binary.LittleEndian.Uint64(b[:]); epoch != 0 {
			return epoch
		}
	}
}

// acceptPause is how long accept waits when the process has no descriptors left.
const acceptPause = 50 * time.Millisecond

// accept serves connections of the listener until it is closed.
func (s *server) accept(l *seqpacket.Listener, allow *allowList) error {
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

func (s *server) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.closing:
		return false
	}
}

// admit makes a connection of an accepted socket, or says why not and closes it.
func (s *server) admit(sock *seqpacket.Conn, allow *allowList) {
	p, err := readPeer(sock.Fd())
	if err != nil {
		s.counts.refused(refusedResources)
		sock.Close()
		return
	}
	if err := sock.SetSendTimeout(s.config.SendTimeout); err == nil {
		switch {
		case !allow.allows(&p):
			s.counts.refused(refusedPeer)
			s.log.Warn().Uint32("uid", p.uid).Uint32("gid", p.gid).Msg("connection refused: not on the allow list")
			turnAway(sock, refuse(wire.Denied, "user %d, group %d may not connect", p.uid, p.gid))
		case s.register(sock, p):
			return
		default:
			s.counts.refused(refusedBound)
			turnAway(sock, refuse(wire.Busy, "%d connections, the most of this daemon", s.config.MaxConnections))
		}
	}
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
	}
	hangUp(sock)
}

// turnAway tells a peer why its connection ends, as an answer to the hello that
// it has sent or will send.
func turnAway(sock *seqpacket.Conn, err error) {
	code, _ := codeOf(err)
	// It is about to be closed: what became of the frame does not matter.
	_ = sock.Send(wire.AppendError(nil, &wire.Header{Op: wire.OpHello, Code: code}, err.Error()), nil)
}

// register starts a connection; false when there are too many.
func (s *server) register(sock *seqpacket.Conn, p peer) bool {
	s.mu.Lock()
	if len(s.mu.conns) >= s.config.MaxConnections {
		s.mu.Unlock()
		return false
	}
	s.mu.last++
	c := newConn(s, s.mu.last, sock, p, time.Now())
	s.mu.conns[c.id] = c
	s.mu.Unlock()
	s.counts.accepted.Add(1)
	if err := s.watcher.add(c.id, sock.Fd(), p.pidfd, c); err != nil {
		// Without it the reader still sees end of file.
		s.log.Error().Err(err).Msg("client cannot be watched")
	}
	s.conns.Go(c.serve)
	return true
}

func (s *server) unwatch(c *conn) { s.watcher.remove(c.id, c.sock.Fd(), c.peer.pidfd) }

func (s *server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.conns, c.id)
}

// list returns the connections in order of their ids.
func (s *server) list() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*conn, 0, len(s.mu.conns))
	for _, c := range s.mu.conns {
		conns = append(conns, c)
	}
	slices.SortFunc(conns, func(a, b *conn) int { return int(a.id) - int(b.id) })
	return conns
}

// lend takes staging and slots out of the budget of all connections. A client
// that wishes for more than the default gets at most half of what is left, its
// wishes cut in proportion, so that none takes all.
func (s *server) lend(staging, slots *int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := int64(s.config.ConnectionMemory) - s.mu.lent
	most := max(left/2, int64(s.config.Staging+s.config.Slots))
	if wish := *staging + *slots; wish > most {
		share := float64(most) / float64(wish)
		*staging = max(int64(minShare), int64(float64(*staging)*share))
		*slots = max(int64(s.config.PageBytes), int64(float64(*slots)*share))
	}
	bytes := *staging + *slots
	if bytes > left {
		return refuse(wire.Full, "%d bytes of staging and slots: %d of %d are lent", bytes, s.mu.lent, int64(s.config.ConnectionMemory))
	}
	s.mu.lent += bytes
	return nil
}

// giveBack ends lend.
func (s *server) giveBack(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.lent -= bytes
}

func (s *server) refuseStopping() error {
	if s.stopping.Load() {
		return errStopping
	}
	return nil
}

// deadline is how long a request may take from its arrival.
func (s *server) deadline(h *wire.Header) time.Duration {
	if h.Deadline == 0 {
		return s.config.RequestTimeout
	}
	return min(time.Duration(h.Deadline)*time.Microsecond, s.config.MaxRequestTimeout)
}

// jobDone counts a job out and tells stop when none is left.
func (s *server) jobDone() {
	if s.busy.Add(-1) == 0 && s.stopping.Load() {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// errStuck: work that no context ends holds memory that a client may own.
var errStuck = errors.New("work is stuck")

// stop refuses new work, lets running work end within DrainTimeout, stops what
// is left, and closes all connections. The listener has been closed before.
func (s *server) stop() error {
	close(s.closing)
	s.stopping.Store(true)
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
		return nil
	case <-stuck.C:
		// Unmapping under it would fault; the process is about to end anyway.
		return fmt.Errorf("%d connections cannot be closed: %w", len(s.list()), errStuck)
	}
}
