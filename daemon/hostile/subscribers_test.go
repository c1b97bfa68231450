package hostile

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/spliced-kv/spliced/connector"
)

// stream is a daemon that publishes KV events, and where.
func stream(t *testing.T) (v *victim, pub, replay string) {
	t.Helper()
	pub, replay = address(t), address(t)
	return start(t, bounds{}, "-events-bind="+pub, "-events-replay-bind="+replay), pub, replay
}

// hello is what a ZeroMQ socket of a type sends at first (ZMTP 3.0, NULL).
func hello(socket string) []byte {
	b := make([]byte, 64)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], "NULL")
	ready := append([]byte("\x05READY\x0bSocket-Type"), 0, 0, 0, byte(len(socket)))
	ready = append(ready, socket...)
	return append(append(b, 4, byte(len(ready))), ready...)
}

// silent opens connections that say the same and read nothing, until the test ends.
func silent(t *testing.T, addr string, n int, says []byte) {
	t.Helper()
	for range n {
		conn, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_, _ = conn.Write(says) // it may be closed already
	}
}

// within fails the test when a router hears nothing.
func within(t *testing.T, what string, socket zmq4.Socket) [][]byte {
	t.Helper()
	got := make(chan [][]byte, 1)
	go func() {
		m, err := socket.Recv()
		if err == nil {
			got <- m.Frames
		}
	}()
	select {
	case frames := <-got:
		return frames
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
		return nil
	}
}

// Whoever connects to the port of KV events and never subscribes keeps no router out.
func TestHostileSilentSubscribersKeepNoRouterOut(t *testing.T) {
	v, pub, _ := stream(t)
	const each = 64
	silent(t, pub, each, nil)
	silent(t, pub, each, hello("SUB"))
	begun := time.Now()
	const routers = 8
	for range routers {
		sub := zmq4.NewSub(t.Context(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
		t.Cleanup(func() { sub.Close() })
		if err := sub.Dial("tcp://" + pub); err != nil {
			t.Fatal(err)
		}
		if err := sub.SetOption(zmq4.OptionSubscribe, "kv@"); err != nil {
			t.Fatal(err)
		}
		within(t, "a router hears what is held", sub)
	}
	took := time.Since(begun)
	if n, _ := v.metric("spliced_events_subscribers"); n != routers {
		t.Errorf("%v subscribers, want %d", n, routers)
	}
	report(t, fmt.Sprintf("%d connections that say nothing and %d that greet, and never subscribe", each, each), "an end of his own connections",
		fmt.Sprintf("%d routers subscribed and heard what is held in %v", routers, took.Round(time.Millisecond)))
}

// Whoever asks the replay port for everything and reads nothing keeps no router waiting.
func TestHostileSlowAskersKeepNoRouterWaiting(t *testing.T) {
	v, _, replay := stream(t)
	m := registered(t, v.client(connector.Options{Name: "engine"}), modelNamed("engine"), connector.Binding{})
	if _, err := put(m, 64); err != nil {
		t.Fatal(err)
	}
	question := make([]byte, 12) // an empty frame, and one of eight bytes
	question[0], question[3] = 1, 8
	binary.BigEndian.PutUint64(question[4:], 1)
	const askers = 24
	for range askers {
		silent(t, replay, 1, append(hello("DEALER"), question...))
	}
	var asking sync.WaitGroup
	begun := time.Now()
	const routers = 4
	for range routers {
		asking.Go(func() {
			dealer := zmq4.NewDealer(t.Context(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
			defer dealer.Close()
			if err := dealer.Dial("tcp://" + replay); err != nil {
				t.Error(err)
				return
			}
			if err := dealer.SendMulti(zmq4.NewMsgFrom(nil, question[4:])); err != nil {
				t.Error(err)
				return
			}
			for {
				m, err := dealer.Recv()
				if err != nil || len(m.Frames) != 4 {
					t.Errorf("%d frames, %v", len(m.Frames), err)
					return
				}
				if len(m.Frames[3]) == 0 { // the end
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { asking.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("routers got no answer")
	}
	report(t, fmt.Sprintf("%d questions for everything whose answers nobody reads", askers), "nothing",
		fmt.Sprintf("%d routers were answered in %v", routers, time.Since(begun).Round(time.Millisecond)))
}
