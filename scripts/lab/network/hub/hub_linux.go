package hub

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Port is the number of an interface of a hub, from 0 in the order of Attach.
type Port int

// maxPorts bounds a hub: it has a link for each pair.
const maxPorts = 64

// Hub joins interfaces. New makes it, Close ends it.
type Hub struct {
	seed    uint64
	moving  sync.WaitGroup
	mu      sync.Mutex
	closed  bool
	table   table
	ports   []*port
	links   map[[2]Port]*Link // from, to; all pairs of ports
	failure error             // the first failure of an interface
}

// port is an interface and the frames in flight to it.
type port struct {
	hub  *Hub
	tap  *os.File
	wake chan struct{} // has a capacity of one
	end  chan struct{}

	mu     sync.Mutex
	flight flight
}

// New returns a hub without ports. The seed and the order of frames determine which frames are
// lost.
func New(seed uint64) *Hub {
	return &Hub{seed: seed, table: table{}, links: map[[2]Port]*Link{}}
}

// MTU is the MTU of the interfaces.
const MTU = 1500

// Attach creates an interface in a namespace and sets its address. Links to and from it
// have the zero Rule.
func (h *Hub) Attach(ns *Namespace, addr netip.Prefix) (Port, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := Port(len(h.ports))
	if h.closed || n == maxPorts {
		return 0, fmt.Errorf("hub: closed, or %d ports, which is the most", n)
	}
	tap, err := ns.openTAP(addr)
	if err != nil {
		return 0, err
	}
	p := &port{hub: h, tap: tap, wake: make(chan struct{}, 1), end: make(chan struct{})}
	for other := range n {
		for _, pair := range [][2]Port{{n, other}, {other, n}} {
			h.links[pair] = NewLink(h.seed + uint64(pair[0])*maxPorts + uint64(pair[1]))
		}
	}
	h.ports = append(h.ports, p)
	h.moving.Go(func() { h.failed(p.receive(n)) })
	h.moving.Go(func() { h.failed(p.deliver()) })
	return n, nil
}

// Set changes the rule of one direction between two ports.
func (h *Hub) Set(from, to Port, r Rule) error {
	if err := r.Validate(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.links[[2]Port{from, to}]
	if l == nil {
		return fmt.Errorf("hub: no link from port %d to port %d", from, to)
	}
	l.Set(r)
	return nil
}

// SetAll changes the rule of all links.
func (h *Hub) SetAll(r Rule) error {
	if err := r.Validate(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.links {
		l.Set(r)
	}
	return nil
}

// Counters returns the counters of one direction between two ports.
func (h *Hub) Counters(from, to Port) Counters {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.links[[2]Port{from, to}]; l != nil {
		return l.Counters()
	}
	return Counters{}
}

// Close removes the interfaces and waits until no frames move. It returns the first error of an
// interface. It may be called only once.
func (h *Hub) Close() error {
	h.mu.Lock()
	h.closed = true
	ports := h.ports
	h.mu.Unlock()
	for _, p := range ports {
		close(p.end)
		_ = p.tap.Close()
	}
	h.moving.Wait()
	return h.failure
}

func (h *Hub) failed(err error) {
	if err == nil || errors.Is(err, os.ErrClosed) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failure == nil {
		h.failure = fmt.Errorf("hub: %w", err)
	}
}

// arrival is the port and time at which a frame arrives.
type arrival struct {
	to *port
	at time.Time
}

// route appends the arrivals of a frame that comes from a port.
func (h *Hub) route(from Port, frame []byte, now time.Time, to []arrival) []arrival {
	h.mu.Lock()
	defer h.mu.Unlock()
	only, ok := h.table.learn(int(from), frame)
	if !ok {
		return to
	}
	for n, p := range h.ports {
		if Port(n) == from || only >= 0 && n != only {
			continue
		}
		if at, ok := h.links[[2]Port{from, Port(n)}].Take(now, len(frame)); ok {
			to = append(to, arrival{p, at})
		}
	}
	return to
}

// receive forwards the frames that the interface sends, until it is closed.
func (p *port) receive(self Port) error {
	b := make([]byte, MTU+headerBytes+4)
	var to []arrival
	for {
		n, err := p.tap.Read(b)
		if err != nil {
			return err
		}
		now := time.Now()
		to = p.hub.route(self, b[:n], now, to[:0])
		for _, a := range to {
			if a.at.After(now) {
				a.to.later(a.at, append([]byte(nil), b[:n]...))
			} else if err := a.to.write(b[:n]); err != nil {
				return err
			}
		}
	}
}

// write passes a frame to the interface. If the kernel refuses the frame, because the interface
// is down or its queue is full, the frame is lost, and write returns no error.
func (p *port) write(frame []byte) error {
	if _, err := p.tap.Write(frame); errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// later queues a frame until it arrives.
func (p *port) later(at time.Time, frame []byte) {
	p.mu.Lock()
	next := p.flight.add(at, frame)
	p.mu.Unlock()
	if next {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// deliver passes frames to the interface as they arrive, until it is closed.
func (p *port) deliver() error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p.mu.Lock()
		frame, wait := p.flight.due(time.Now())
		p.mu.Unlock()
		if frame != nil {
			if err := p.write(frame); err != nil {
				return err
			}
			continue
		}
		if wait == 0 {
			wait = time.Hour // until it is woken
		}
		timer.Reset(wait)
		select {
		case <-p.end:
			return nil
		case <-p.wake:
		case <-timer.C:
		}
	}
}
