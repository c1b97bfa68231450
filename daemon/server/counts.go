package server

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Reasons for refusing a connection.
const (
	refusedPeer = iota
	refusedBound
	refusedResources
	refusals
)

// Reasons for dropping a connection.
const (
	dropHello = iota // no hello in time
	dropSlow         // did not read its replies
	drops
)

// Counts are the counters of the socket server. All methods may be called concurrently;
// none allocates or locks.
type Counts struct {
	Accepted atomic.Uint64           `count:"connections_accepted" prom:"connections_total,result=accepted" help:"New connections to the engine socket, by result: accepted (counted once the client has said hello, or at the end of the connection), refused_peer (process not on the allow list), refused_bound (too many connections), refused_resources (no memory or file descriptors)."`
	Refused  [refusals]atomic.Uint64 `count:"connections_refused_{peer,bound,resources}" prom:"connections_total,result=refused_peer|refused_bound|refused_resources"`
	Dropped  [drops]atomic.Uint64    `count:"connections_dropped_{no_hello,slow_reader}" prom:"connections_dropped_total,reason=*" help:"Connections to the engine socket that the daemon ended, by reason: no_hello (no hello in time), slow_reader (replies not read in time)."`

	answers  [wire.OpCount][wire.CodeCount]atomic.Uint64 // op 0 counts operations that are not known
	rows     [wire.OpCount][wire.CodeCount]atomic.Uint64 // codes of single rows of batches
	duration [wire.OpCount]prometheus.Histogram
	trials   trials
}

// trials counts the requests of clients named profile.TrialClient. All other counters include these
// requests too, since any client can choose that name.
type trials struct {
	connections atomic.Uint64
	answers     [wire.CodeCount]atomic.Uint64 // of requests and of rows of batches
}

// durationBuckets, in seconds, covers the range from a lookup to a commit of a gigabyte.
var durationBuckets = []float64{10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 500e-3, 1, 5}

func newCounts() *Counts {
	c := &Counts{}
	for op := range c.duration {
		c.duration[op] = metric.Durations{
			Name: "request_duration_seconds", Help: "Seconds from the arrival of a request on the engine socket to its answer, by operation.",
			Labels: prometheus.Labels{"op": opName(op)}, Classic: durationBuckets,
		}.New()
	}
	return c
}

func opName(op int) string {
	if !wire.Op(op).Known() {
		return "unknown"
	}
	return wire.Op(op).String()
}

func opIndex(op wire.Op) int {
	if !op.Known() {
		return 0
	}
	return int(op)
}

// process returns a number that identifies the process of a connection's client. If that process is
// in another PID namespace, its pid is unknown, and each connection counts as a process.
func (c *conn) process() uint64 {
	if c.peer.PID == 0 {
		return ^c.id
	}
	return uint64(c.peer.UID)<<32 | uint64(uint32(c.peer.PID))
}

// trial reports whether the client of a connection calls itself a trial client.
func (c *conn) trial() bool {
	a := c.attached.Load()
	return a != nil && a.trial
}

func (c *conn) answered(op wire.Op, code wire.Code) {
	counts := c.server.counts
	counts.answers[opIndex(op)][code].Add(1)
	if c.trial() {
		counts.trials.answers[code].Add(1)
	}
}

func (c *conn) row(op wire.Op, code wire.Code) {
	counts := c.server.counts
	counts.rows[opIndex(op)][code].Add(1)
	if c.trial() {
		counts.trials.answers[code].Add(1)
	}
}

func (c *conn) took(op wire.Op, d time.Duration) {
	c.server.counts.duration[opIndex(op)].Observe(d.Seconds())
}

// admitted counts a connection. It is called once it is known whether the client is a trial.
func (c *conn) admitted() {
	counts := c.server.counts
	counts.Accepted.Add(1)
	if c.trial() {
		counts.trials.connections.Add(1)
	}
}

func (c *Counts) refused(why int) { c.Refused[why].Add(1) }
func (c *Counts) dropped(why int) { c.Dropped[why].Add(1) }

// EachAnswer calls f with the nonzero counts of answers and batch rows, by operation and code.
func (c *Counts) EachAnswer(f func(op, code string, answers, rows uint64)) {
	for op := range c.answers {
		for code := range c.answers[op] {
			answers, rows := c.answers[op][code].Load(), c.rows[op][code].Load()
			if answers > 0 || rows > 0 {
				f(opName(op), wire.Code(code).String(), answers, rows)
			}
		}
	}
}

// ordinary lists the codes of normal answers: success, a miss, an object that is already
// cached or being filled by another client, and a cancellation by the requester.
var ordinary = [wire.CodeCount]bool{wire.OK: true, wire.Miss: true, wire.Exists: true, wire.Canceled: true}

// EachFailure calls f with the number of answers and rows for every error code.
func (c *Counts) EachFailure(f func(code string, n uint64)) {
	for code := range wire.CodeCount {
		if ordinary[code] {
			continue
		}
		var n uint64
		for op := range c.answers {
			n += c.answers[op][code].Load() + c.rows[op][code].Load()
		}
		f(wire.Code(code).String(), n)
	}
}

// EachTrial calls f with the nonzero counts of answers and rows of trials, by code.
func (c *Counts) EachTrial(f func(code string, n uint64)) {
	for code := range c.trials.answers {
		if n := c.trials.answers[code].Load(); n > 0 {
			f(wire.Code(code).String(), n)
		}
	}
}

// TrialConnections returns the number of connections of trials.
func (c *Counts) TrialConnections() uint64 { return c.trials.connections.Load() }

// Durations returns the histograms of all operations.
func (c *Counts) Durations() []prometheus.Histogram { return c.duration[:] }

// Duration returns the histogram of one operation.
func (c *Counts) Duration(op wire.Op) prometheus.Histogram { return c.duration[opIndex(op)] }

// Connection describes a client for operators.
type Connection struct {
	api.Connection
	Ending   bool // the connection answers no more requests
	Bindings []Binding
}

// Binding is a profile registered by an engine.
type Binding struct {
	Profile tier.ProfileID
	Engine  string
}

// Connections lists the clients in order of their ids.
func (s *Server) Connections() []Connection {
	conns := s.list()
	list := make([]Connection, len(conns))
	for i, c := range conns {
		list[i] = c.describe()
	}
	return list
}

func (c *conn) describe() Connection {
	x := Connection{Ending: c.ending(), Connection: api.Connection{
		ID: c.id, UID: c.peer.UID, GID: c.peer.GID, PID: c.peer.PID, Since: c.since,
		Requests: c.requests.Load(), InFlight: int(c.flying.Load()),
	}}
	a := c.attached.Load()
	if a == nil {
		return x
	}
	x.Client, x.Tenants = a.client, a.names
	x.Leases, x.Reservations = a.session.Holdings()
	held, _ := a.slots.Held()
	x.Leases += held
	x.StagingBytes, x.SlotBytes = a.stagingBytes, a.slotBytes
	if l := a.gpu.Load(); l != nil {
		held, _ := l.slots.Held()
		x.Leases += held
		x.Device, x.DeviceBytes = l.gpu.Name, l.bytes()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.mu.bindings {
		b := &a.mu.bindings[i]
		x.Bindings = append(x.Bindings, Binding{b.profile, b.engine})
		if !slices.Contains(x.Profiles, uint32(b.profile)) {
			x.Profiles = append(x.Profiles, uint32(b.profile))
		}
		if !slices.Contains(x.Engines, b.engine) {
			x.Engines = append(x.Engines, b.engine)
		}
	}
	return x
}

// Alive reports whether the loop that watches clients has run recently. False means that it hangs.
func (s *Server) Alive(now time.Time) bool { return s.watcher.Alive(now) }

// Counts returns the counters since the start.
func (s *Server) Counts() *Counts { return s.counts }

// Load is the pending work.
type Load struct {
	Connections     int   `count:"connections"`
	Sessions        int   `prom:"engine_sessions" help:"Clients attached to the engine socket."`
	InFlight        int   `count:"requests_in_flight" prom:"requests_in_flight" help:"Requests being processed: running on a worker, waiting for one, or waiting for a disk, another node or another engine."`
	Queued          int   `count:"requests_queued" prom:"requests_queued" help:"Requests waiting for a worker."`
	Waiting         int   `count:"requests_waiting" prom:"requests_waiting" help:"Requests waiting for a disk, another node or another engine, without occupying a worker."`
	ConnectionBytes int64 `prom:"connection_memory_bytes" help:"Bytes of the connection-memory limit that connections have reserved for staging, slots and mappings of registered memory. The whole reservation counts, whether it is used or not."`
}

// Load returns the pending work.
func (s *Server) Load() Load {
	s.mu.Lock()
	conns, sessions := len(s.mu.conns), 0
	for _, c := range s.mu.conns {
		if c.attached.Load() != nil {
			sessions++
		}
	}
	s.mu.Unlock()
	return Load{Connections: conns, Sessions: sessions, InFlight: int(s.busy.Load()), Queued: s.queued(), Waiting: int(s.waiting.Load()), ConnectionBytes: s.memory.Used()}
}

// stats answers the stats operation.
func (t reportOps) stats(*wire.StatsRequest) (wire.Message, error) {
	out := &wire.StatsReply{}
	for _, c := range t.conn.server.stats() {
		if len(out.Names) == wire.MaxStats {
			break
		}
		out.Names = append(out.Names, c.Name)
		out.Values = append(out.Values, c.Value)
	}
	return out, nil
}
