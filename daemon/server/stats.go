package server

import (
	"slices"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Connection is what people see of a client.
type Connection struct {
	api.Connection
	Ending   bool // nothing more is answered
	Bindings []Binding
}

// Binding is a profile that an engine registered.
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
		x.DeviceBytes = l.bytes()
	}
	for _, b := range c.bindings() {
		x.Bindings = append(x.Bindings, Binding{b.profile, b.engine})
		if !slices.Contains(x.Profiles, uint32(b.profile)) {
			x.Profiles = append(x.Profiles, uint32(b.profile))
		}
	}
	return x
}

func (c *conn) bindings() []binding {
	a := c.attached.Load()
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.mu.bindings)
}

// Alive reports whether the loop that watches clients turned lately.
func (s *Server) Alive(now time.Time) bool { return s.watcher.Alive(now) }

// Counts are what is counted since the start.
func (s *Server) Counts() *Counts { return s.counts }

// Load is what there is to do.
type Load struct {
	Connections     int   `count:"connections"`
	Sessions        int   `prom:"engine_sessions" help:"Attached clients."`
	InFlight        int   `count:"requests_in_flight" prom:"requests_in_flight" help:"Requests on workers, waiting for one, or waiting for a disk."`
	Queued          int   `count:"requests_queued" prom:"requests_queued" help:"Requests waiting for a worker."`
	Waiting         int   `count:"requests_waiting" prom:"requests_waiting" help:"Requests that wait for a disk, on no worker."`
	ConnectionBytes int64 `prom:"connection_memory_bytes" help:"Bytes of connection-memory that connections have: staging, slots, and what mapping registered memory may take, touched or not."`
}

// Load reports what there is to do now.
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

// stats is the operation on the socket.
func (t *task) stats() (wire.Message, error) {
	var m wire.StatsRequest
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
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
