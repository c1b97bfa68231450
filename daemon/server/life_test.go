package server

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/socket"
)

// The arrows of the picture in the package's doc, and that everything else stays or
// cannot happen.
func TestTheTableIsThePicture(t *testing.T) {
	arrows := map[state]map[event]state{
		serving:   {onDrop: draining, onLeave: leaving},
		draining:  {onLeave: leaving, onDrained: gone, onHeld: lingering},
		leaving:   {onDrained: gone, onHeld: gone},
		lingering: {onLeave: gone},
		gone:      {onClose: closed},
		closed:    {},
	}
	for from := range states {
		for e := range events {
			want, arrow := arrows[from][e]
			switch {
			case arrow:
			case e == onDrop || e == onLeave: // late calls of the watcher and of timers
				want = from
			default:
				want = never
			}
			if got := moves[from][e]; got != want {
				t.Errorf("%v of a connection that is %v leads to state %d, want %d", e, from, got, want)
			}
		}
	}
}

func TestAnEventThatCannotHappenPanics(t *testing.T) {
	var l life
	defer func() {
		if recover() == nil {
			t.Error("a connection that serves was taken apart")
		}
		if l.now() != serving {
			t.Errorf("it is %v now", l.now())
		}
	}()
	l.move(onClose, func() {}, time.Hour, func() {})
}

// Whatever comes in whatever order, a connection goes forward only and ends.
func TestALifeGoesForwardAndEnds(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var l life
		ends := 0
		for step := 0; l.now() != closed; step++ {
			if step > 200 {
				t.Fatalf("seed %d: still %v", seed, l.now())
			}
			e := event(rng.IntN(int(events)))
			if moves[l.now()][e] == never {
				continue
			}
			from, to := l.move(e, func() { ends++ }, time.Hour, func() {})
			if to < from && (from != leaving || !to.told()) {
				t.Fatalf("seed %d: %v after %v", seed, to, from)
			}
			if from.released() && !to.released() || from.told() && !to.told() || from.ending() && !to.ending() {
				t.Fatalf("seed %d: %v takes back what %v had given up", seed, to, from)
			}
		}
		if ends != 1 {
			t.Fatalf("seed %d: it ended %d times", seed, ends)
		}
	}
}

func TestLingeringEnds(t *testing.T) {
	over := make(chan struct{})
	var l life
	l.move(onDrop, func() {}, 0, nil)
	l.move(onHeld, nil, time.Nanosecond, func() { close(over) })
	<-over
}

// dial registers a connection whose client is the test. Nobody serves it.
func dial(t *testing.T, s *Server) (*conn, *seqpacket.Conn) {
	t.Helper()
	ours, theirs, err := seqpacket.Pair()
	must(t, err)
	t.Cleanup(func() { theirs.Close() })
	p, err := socket.ReadPeer(ours.Fd())
	must(t, err)
	c, err := s.register(ours, p)
	must(t, err)
	return c, theirs
}

// alive asks for an answer, and any will do.
func alive(t *testing.T, client *seqpacket.Conn) {
	t.Helper()
	frame, err := wire.AppendFrame(nil, &wire.Header{Version: wire.Version, Kind: wire.Request, Op: wire.OpStats, Request: 1}, &wire.StatsRequest{})
	if err == nil {
		err = client.Send(frame, nil)
	}
	if err == nil {
		_, _, err = client.Recv(make([]byte, wire.MaxFrame))
	}
	if err != nil {
		t.Fatalf("the connection answers nothing: %v", err)
	}
}

// What ends a connection does not end it before its last work has ended.
func TestEndOfFileWaitsForWork(t *testing.T) {
	for name, end := range map[string]func(*conn){
		"it is dropped":               func(c *conn) { c.drop(errStopping) },
		"the one that connected dies": (*conn).PeerGone,
		"the daemon stops":            func(c *conn) { c.leave(errStopping) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestServer(t)
			c, client := dial(t, s)
			go c.serve()
			alive(t, client)
			c.answering.Lock()
			c.work.Add(1)
			c.answering.Unlock()
			end(c)
			must(t, client.SetRecvTimeout(20*time.Millisecond))
			buf := make([]byte, wire.MaxFrame)
			if _, _, err := client.Recv(buf); !errors.Is(err, seqpacket.ErrTimeout) {
				t.Errorf("while work runs the client reads: %v", err)
			}
			c.work.Done()
			must(t, client.SetRecvTimeout(0))
			if _, _, err := client.Recv(buf); !errors.Is(err, seqpacket.ErrClosed) {
				t.Errorf("after the last work the client reads: %v", err)
			}
			s.conns.Wait()
			if got := c.life.now(); got != closed {
				t.Errorf("the connection is %v at the end", got)
			}
		})
	}
}

// A descriptor's number is used again as soon as it is closed.
func TestALateCallOfTheWatcherTouchesNobodyElse(t *testing.T) {
	s := newTestServer(t)
	former := map[int]*conn{}
	for range 50 {
		c, client := dial(t, s)
		go c.serve()
		fd := c.sock.Fd()
		if old := former[fd]; old != nil {
			old.PeerGone()
			old.PeerEnded(true)
			old.leave(errPeerLeft)
			alive(t, client)
			client.Close()
			s.conns.Wait()
			return
		}
		former[fd] = c
		client.Close()
		s.conns.Wait()
	}
	t.Skip("no descriptor was used again")
}
