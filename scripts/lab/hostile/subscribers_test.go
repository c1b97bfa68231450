package hostile

import (
	"fmt"
	"io"
	"log"
	"net"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

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
	pub := address(t)
	v := start(t, bounds{}, "-events-bind="+pub, "-events-replay-bind="+address(t))
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
