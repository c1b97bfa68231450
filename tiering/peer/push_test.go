package peer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

func TestTakeIsReadAsItWasWritten(t *testing.T) {
	for _, o := range described() {
		n := nameOf(o)
		b := appendTake(nil, &n, 12345)
		got, bytes, err := decodeTake(b)
		if err != nil || got != n || bytes != 12345 || len(b) != takeBytes {
			t.Errorf("%v: %+v of %d bytes, %v", o, got, bytes, err)
		}
	}
}

func FuzzTake(f *testing.F) {
	n := nameOf(described()[0])
	f.Add(appendTake(nil, &n, 1))
	f.Add(appendTake(nil, &n, -1))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, size, err := decodeTake(b)
		if err != nil {
			if !errors.Is(err, tier.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if again := appendTake(nil, &n, size); !bytes.Equal(again, b) || size <= 0 {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

// neighbour is a member on a real socket that answers as a test says.
type neighbour struct {
	listen net.Listener
	asked  atomic.Int64
	wg     sync.WaitGroup
}

// openNeighbour answers each take with what answer writes.
func openNeighbour(t *testing.T, answer func(w io.Writer)) *neighbour {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	n := &neighbour{listen: l}
	var mu sync.Mutex
	var open []net.Conn
	n.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			n.wg.Go(func() {
				br := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					if b, err := io.ReadAll(r.Body); err != nil || r.URL.Path != TakePath || len(b) != takeBytes {
						t.Errorf("%s with %d bytes, %v", r.URL.Path, len(b), err)
					}
					n.asked.Add(1)
					answer(c)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		n.wg.Wait()
	})
	return n
}

func says(body string) func(io.Writer) {
	return func(w io.Writer) { fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body) }
}

func silent(io.Writer) {}

// pushing is Neighbours over some members.
func pushing(t *testing.T, cfg PushConfig, members ...*neighbour) *Neighbours {
	t.Helper()
	peers := must(New(Config{
		Index: &holders{}, Names: must(NewNames(secret, tenantsOf(loneTenant))), Device: tiertest.NewDevice(t), Profile: tiertest.ProfileOf, Insecure: true, DialTime: time.Second,
	}))
	t.Cleanup(peers.Close)
	for i, m := range members {
		noError(t, peers.Set(Member{Node: Node(i), Addr: m.listen.Addr().String()}))
	}
	cfg.Peers = peers
	n := must(NewNeighbours(cfg))
	t.Cleanup(n.Close)
	return n
}

// push pushes an object and waits for the end.
func (n *Neighbours) push(o *tier.Object) error {
	w, err := n.Admit(o)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	w.Start(tier.LevelSynced, func(_ tier.Level, err error) { ended <- err })
	return <-ended
}

// objectOf is an object as a store would hand it over, without memory.
func objectOf(o *tiertest.Object) *tier.Object {
	return &tier.Object{Key: o.Key, Kind: o.Kind, Profile: o.Profile, Tenant: o.Tenant.ID, Spec: o.Spec, Tokens: o.Tokens, Packed: o.Packed, Begin: o.Begin, End: o.End, Parent: o.Parent}
}

func TestWhoHasNoRoomIsLeftAloneForAWhile(t *testing.T) {
	tiertest.Leaks(t)
	full, roomy := openNeighbour(t, says("\x01")), openNeighbour(t, says("\x00"))
	n := pushing(t, PushConfig{RestTime: time.Hour}, full, roomy)
	o := objectOf(described()[0])
	for range 20 {
		noError(t, n.push(o))
	}
	if asked := full.asked.Load(); asked > 1 || roomy.asked.Load() != 20 {
		t.Errorf("the full one was asked %d times, the other one %d", asked, roomy.asked.Load())
	}
	if c := n.Counters(); c.Pushed != 20 || c.Refused != uint64(full.asked.Load()) || c.Unplaced != 0 {
		t.Errorf("%+v", c)
	}
}

// Members that do not answer, or not as they should, cost a bounded time and are left
// alone.
func TestMembersThatAnswerWronglyTakeNothing(t *testing.T) {
	for name, answer := range map[string]func(io.Writer){
		"silent": silent, "no verdict": says(""), "too long": says("\x00\x00"), "unknown": says("\x07"),
		"no such path": func(w io.Writer) { fmt.Fprint(w, "HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n") },
		"no HTTP":      func(w io.Writer) { fmt.Fprint(w, "hello\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			m := openNeighbour(t, answer)
			n := pushing(t, PushConfig{TakeTime: 200 * time.Millisecond, RestTime: time.Hour}, m)
			o := objectOf(described()[0])
			began := time.Now()
			if err := n.push(o); !errors.Is(err, tier.ErrFull) || time.Since(began) > 5*time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
			if _, err := n.Admit(o); !errors.Is(err, tier.ErrFull) {
				t.Errorf("asked again at once: %v", err)
			}
			if c := n.Counters(); c.Failed != 1 || c.Unplaced != 1 || c.Pushed != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestWhatIsPushedAtOnceIsBounded(t *testing.T) {
	tiertest.Leaks(t)
	n := pushing(t, PushConfig{Most: 2, TakeTime: time.Minute}, openNeighbour(t, silent))
	o := objectOf(described()[0])
	var ended sync.WaitGroup
	for range 2 {
		w, err := n.Admit(o)
		noError(t, err)
		ended.Add(1)
		w.Start(tier.LevelSynced, func(_ tier.Level, err error) {
			if !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("it ended with %v", err)
			}
			ended.Done()
		})
	}
	if _, err := n.Admit(o); !errors.Is(err, tier.ErrBusy) {
		t.Errorf("a third one: %v", err)
	}
	n.Close() // ends them, although nobody answers
	ended.Wait()
	if _, err := n.Admit(o); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := pushing(t, PushConfig{}).Admit(o); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("without members: %v", err)
	}
}
