package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/codes"
)

func TestPhasesFollowEachOtherAsPermitted(t *testing.T) {
	follow := map[phase][]phase{
		received: {queued, running, waiting, over},
		queued:   {running, over},
		running:  {waiting, over},
		waiting:  {over},
		over:     nil,
	}
	for from := range phases {
		for to := range phases {
			if got, want := permitted[from][to], slices.Contains(follow[from], to); got != want {
				t.Errorf("%v after %v: permitted %v, want %v", to, from, got, want)
			}
			if permitted[from][to] {
				continue
			}
			k := task{phase: from}
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("a request that is %v became %v", from, to)
					}
				}()
				k.move(to)
			}()
			if k.phase != from {
				t.Errorf("a request that was %v is %v after a move that is not permitted", from, k.phase)
			}
		}
	}
}

// effect is what the operation of a test's request does.
type effect func(*task) (wire.Message, error)

// requester makes requests on one connection. The test is the reader of the connection.
type requester struct {
	*testing.T
	s      *Server
	c      *conn
	client *seqpacket.Conn
	reader scratch
	age    time.Duration // of a request when its reader receives it
	last   uint64
	undone wire.CancelReply // the last one that was read
	open   chan struct{}    // closed when blocked requests may go on
	pipes  []int            // for each request, the end of a pipe whose other end the request owns
	files  []*os.File       // files that the requests send

	mu      sync.Mutex
	effects map[uint64]effect
}

func newRequester(t *testing.T) *requester {
	s := newTestServer(t)
	c, client := dial(t, s)
	r := &requester{T: t, s: s, c: c, client: client, open: make(chan struct{}), effects: map[uint64]effect{}}
	client.AllowDescriptors(3)
	r.handle(&wire.Header{Op: wire.OpHello, Request: 1},
		&wire.HelloRequest{MinVersion: wire.Version, MaxVersion: wire.Version, Client: "test", Tenants: []wire.TenantName{{}}})
	r.expect(wire.OK)
	usual := operations[wire.OpRegisterDevice]
	t.Cleanup(func() { operations[wire.OpRegisterDevice] = usual })
	operations[wire.OpRegisterDevice].run = func(k *task) (wire.Message, error) {
		r.mu.Lock()
		do := r.effects[k.header.Request]
		r.mu.Unlock()
		f, err := os.Open(os.DevNull)
		must(t, err)
		k.send = append(k.send, f)
		r.mu.Lock()
		r.files = append(r.files, f)
		r.mu.Unlock()
		return do(k)
	}
	return r
}

// ask makes a request, which is answered by the reader unless it is long, and returns its id.
func (r *requester) ask(long bool, deadline time.Duration, do effect) uint64 {
	r.Helper()
	r.last++
	id := r.last + 100
	r.mu.Lock()
	r.effects[id] = do
	r.mu.Unlock()
	operations[wire.OpRegisterDevice].long = nil
	if long {
		operations[wire.OpRegisterDevice].long = on(deviceOps.registerIsLong)
	}
	var pipe [2]int
	must(r, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	r.pipes = append(r.pipes, pipe[1])
	h := wire.Header{Op: wire.OpRegisterDevice, Request: id, Tenant: 1, Deadline: uint32(deadline / time.Microsecond)}
	r.handle(&h, &wire.StatsRequest{}, pipe[0])
	return id
}

func (r *requester) handle(h *wire.Header, m wire.Message, fds ...int) {
	r.Helper()
	h.Version, h.Kind, h.Epoch = wire.Version, wire.Request, r.s.epoch
	frame, err := wire.AppendFrame(nil, h, m)
	must(r, err)
	_, mine := r.c.handle(frame, fds, time.Now().Add(-r.age), &r.reader)
	clear(frame) // the reader receives the next one
	if mine != nil {
		r.s.polling.Go(func() { mine.run(&scratch{}, time.Now()) })
	}
}

func (r *requester) cancel(ids ...uint64) {
	r.Helper()
	r.handle(&wire.Header{Op: wire.OpCancel, Request: 1000}, &wire.CancelRequest{Requests: ids})
}

// read reads n replies and returns their codes, and the text of the last refusal.
func (r *requester) read(n int) (got []wire.Code, text string) {
	r.Helper()
	buf := make([]byte, wire.MaxFrame)
	for range n {
		n, fds, err := r.client.Recv(buf)
		must(r, err)
		seqpacket.CloseAll(fds)
		h, body, err := wire.ParseHeader(buf[:n])
		must(r, err)
		if got = append(got, h.Code); h.Code != wire.OK {
			text = wire.ErrorText(body)
		} else if h.Op == wire.OpCancel {
			must(r, r.undone.Decode(body))
		}
	}
	return got, text
}

// expect reads as many replies as there are codes, in any order.
func (r *requester) expect(want ...wire.Code) {
	r.Helper()
	got, text := r.read(len(want))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.Fatalf("answered %v, want %v: %s", got, want, text)
	}
}

// fill sends replies until the client, which does not read, has no room for another one. It returns
// their number.
func (r *requester) fill(timeout time.Duration) (n int) {
	r.Helper()
	must(r, r.c.sock.SetSendTimeout(timeout))
	frame := wire.AppendError(nil, &wire.Header{Version: wire.Version, Kind: wire.Reply, Op: wire.OpStats}, "some text")
	for err := error(nil); err == nil; n++ {
		err = r.c.sock.TrySend(frame, nil)
	}
	return n - 1
}

// cancels returns the number of cancellations that wait for requests.
func (r *requester) cancels() int {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return len(r.c.mu.cancels)
}

// threads returns the number of threads of the process.
func threads(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/task")
	must(t, err)
	return len(list)
}

func (r *requester) answers(*task) (wire.Message, error) { return &wire.CodesReply{}, nil }

func (r *requester) refuses(*task) (wire.Message, error) {
	return nil, codes.Refuse(wire.Invalid, "no")
}

// never is the effect of a request that is canceled before it is started.
func (r *requester) never(*task) (wire.Message, error) {
	r.Error("a request was started after it had been canceled")
	return &wire.CodesReply{}, nil
}

func (r *requester) blocks(k *task) (wire.Message, error) {
	select {
	case <-r.open:
		return &wire.CodesReply{}, nil
	case <-k.ctx.Done():
		return nil, k.ctx.Err()
	}
}

func (r *requester) waits(k *task) (wire.Message, error) {
	k.rest = r.blocks
	return nil, nil
}

// is waits until a number of requests are in flight, of which some are queued and some wait.
func (r *requester) is(flying, queued, waiting int) {
	r.Helper()
	for range 10_000 {
		if l := r.s.Load(); l.InFlight == flying && l.Queued == queued && l.Waiting == waiting {
			return
		}
		time.Sleep(time.Millisecond)
	}
	r.Fatalf("%+v, want %d in flight, %d queued, %d waiting", r.s.Load(), flying, queued, waiting)
}

// released fails the test if requests have left anything behind.
func (r *requester) released() {
	r.Helper()
	r.is(0, 0, 0)
	r.c.work.Wait()
	for i, fd := range r.pipes {
		if _, err := unix.Write(fd, []byte{0}); !errors.Is(err, unix.EPIPE) {
			r.Errorf("request %d: its descriptor is open: %v", i, err)
		}
		unix.Close(fd)
	}
	for i, f := range r.files {
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			r.Errorf("request %d: the file that it sent is open", i)
		}
	}
	if n := r.c.flying.Load(); n != 0 {
		r.Errorf("%d requests are counted on the connection", n)
	}
	if n := r.s.held.Used(); n != 0 {
		r.Errorf("%d bytes of requests", n)
	}
	if n := r.c.attached.Load().registering.Load(); n != 0 {
		r.Errorf("%d requests are counted as registering", n)
	}
	if left := len(r.c.mu.inFlight) + len(r.c.mu.cancels); left != 0 {
		r.Errorf("%d requests and cancellations are listed", left)
	}
}

func (r *requester) close() {
	r.client.Close()
	r.c.end()
	r.s.queue.Close()
	r.s.polling.Wait()
}

// In whatever way a request ends, everything that it held is released, once.
func TestEveryEndOfARequestReleasesWhatItHeld(t *testing.T) {
	const long, short = true, false
	for name, test := range map[string]func(*requester){
		"answered": func(r *requester) {
			r.ask(short, 0, r.answers)
			r.expect(wire.OK)
			r.ask(long, 0, r.answers)
			r.expect(wire.OK)
		},
		"refused": func(r *requester) {
			r.ask(short, 0, r.refuses)
			r.expect(wire.Invalid)
			r.ask(long, 0, r.refuses)
			r.expect(wire.Invalid)
		},
		"answered by its continuation": func(r *requester) {
			r.ask(short, 0, r.waits)
			r.ask(long, 0, r.waits)
			r.is(2, 0, 2)
			close(r.open)
			r.expect(wire.OK, wire.OK)
		},
		"refused by its continuation": func(r *requester) {
			r.ask(short, 0, func(k *task) (wire.Message, error) { k.rest = r.refuses; return nil, nil })
			r.expect(wire.Invalid)
		},
		"one of too many": func(r *requester) {
			for range registersAtOnce + 1 {
				r.ask(long, 0, r.blocks)
			}
			r.expect(wire.Busy)
			r.is(registersAtOnce, registersAtOnce-1, 0)
			close(r.open)
			r.expect(slices.Repeat([]wire.Code{wire.OK}, registersAtOnce)...)
		},
		"no room in flight": func(r *requester) {
			r.s.config.MaxInFlight = 1
			r.ask(long, 0, r.blocks)
			r.ask(long, 0, r.blocks)
			r.expect(wire.Busy)
			close(r.open)
			r.expect(wire.OK)
		},
		"an id that is in flight": func(r *requester) {
			id := r.ask(long, 0, r.blocks)
			r.handle(&wire.Header{Op: wire.OpStats, Request: id}, &wire.StatsRequest{})
			if got, text := r.read(1); got[0] != wire.Invalid || !strings.Contains(text, "is in flight") {
				r.Errorf("the same id again: %v: %s", got[0], text)
			}
			close(r.open)
			r.expect(wire.OK) // the first one goes on
		},
		"late": func(r *requester) {
			r.ask(long, 0, r.blocks)
			r.ask(long, time.Millisecond, r.answers) // in the queue
			r.ask(short, time.Millisecond, r.waits)  // in its continuation
			r.ask(long, time.Microsecond, r.answers) // before it was queued
			r.expect(wire.Late, wire.Late, wire.Late)
			r.is(1, 0, 0)
			close(r.open)
			r.expect(wire.OK)
		},
		"late before it was queued, and its client does not read": func(r *requester) {
			r.ask(long, 0, r.blocks)
			n := r.fill(time.Minute)
			r.age = time.Second
			const requests = 20
			for range requests {
				r.ask(long, time.Millisecond, r.answers)
				for r.c.flying.Load() > 1 {
					time.Sleep(time.Millisecond)
				}
			}
			if err := context.Cause(r.c.ctx); err != nil {
				r.Fatalf("the reader waited for the client: %v", err)
			}
			got, _ := r.read(n + requests)
			if !slices.Equal(got[n:], slices.Repeat([]wire.Code{wire.Late}, requests)) {
				r.Errorf("answered %v", got[n:])
			}
			close(r.open)
			r.expect(wire.OK)
		},
		"refused, and its client does not read": func(r *requester) {
			n := r.fill(time.Minute)
			r.ask(long, 0, r.refuses)
			for range 5_000 { // its descriptor does not wait for the client
				if _, err := unix.Write(r.pipes[0], []byte{0}); err != nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if _, err := unix.Write(r.pipes[0], []byte{0}); !errors.Is(err, unix.EPIPE) {
				r.Errorf("its descriptor is open: %v", err)
			}
			r.expect(append(slices.Repeat([]wire.Code{wire.OK}, n), wire.Invalid)...)
		},
		"answered many times, and its client does not read": func(r *requester) {
			n, before := r.fill(time.Minute), threads(r.T)
			for range 100 {
				r.ask(short, 0, func(k *task) (wire.Message, error) { k.rest = r.answers; return nil, nil })
				for r.c.flying.Load() > 0 {
					time.Sleep(time.Millisecond)
				}
			}
			r.is(100, 0, 0)
			if more := threads(r.T) - before; more > 50 {
				r.Errorf("%d threads wait for the client", more)
			}
			r.expect(slices.Repeat([]wire.Code{wire.OK}, n+100)...)
		},
		"canceled in vain, and its client does not read": func(r *requester) {
			runs := make(chan struct{})
			id := r.ask(long, 0, func(*task) (wire.Message, error) { close(runs); <-r.open; return &wire.CodesReply{}, nil })
			<-runs
			n, cancels, handled := r.fill(time.Minute), r.s.config.MaxInFlight+1, make(chan struct{})
			go func() {
				defer close(handled)
				for i := range uint64(cancels) {
					r.handle(&wire.Header{Op: wire.OpCancel, Request: 1000 + i, Deadline: 1}, &wire.CancelRequest{Requests: []uint64{id}})
					for r.cancels() > 0 {
						time.Sleep(time.Millisecond)
					}
				}
			}()
			select {
			case <-handled:
				r.Errorf("%d replies to cancels wait for the client", cancels)
			case <-time.After(time.Second): // the reader waits with a refusal
			}
			r.read(n + cancels)
			<-handled
			close(r.open)
			r.expect(wire.OK)
		},
		"canceled": func(r *requester) {
			ids := []uint64{r.ask(long, 0, r.blocks), r.ask(long, 0, r.never), r.ask(short, 0, r.waits), 7}
			r.is(3, 1, 1)
			r.cancel(append(ids[1:], ids[0])...) // the running one last, because the queued one begins after it
			r.expect(wire.Canceled, wire.Canceled, wire.Canceled, wire.OK)
			if want := []uint8{wire.CancelStopped, wire.CancelStopped, wire.CancelUnknown, wire.CancelStopped}; !slices.Equal(r.undone.Outcomes, want) {
				r.Errorf("outcomes %v, want %v", r.undone.Outcomes, want)
			}
		},
		"its connection is dropped": func(r *requester) { r.ended(func() { r.c.drop(errPeerLeft) }) },
		"the daemon stops":          func(r *requester) { r.ended(func() { r.c.leave(errStopping) }) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRequester(t)
			test(r)
			r.released()
			r.close()
		})
	}
}

// ended ends the connection while one request runs, one is queued and two wait. None is answered.
func (r *requester) ended(end func()) {
	r.Helper()
	r.ask(true, 0, r.waits)
	r.is(1, 0, 1)
	r.ask(true, 0, r.blocks)
	r.is(2, 0, 1)
	r.ask(true, 0, r.answers)
	r.ask(false, 0, r.waits)
	r.is(4, 1, 2)
	end()
	if _, _, err := r.client.Recv(make([]byte, wire.MaxFrame)); !errors.Is(err, seqpacket.ErrClosed) {
		r.Errorf("after the end the client reads: %v", err)
	}
}

// Requests end in all ways at once. Each is answered once, and before a cancel that names it.
func TestEveryRequestIsAnsweredOnce(t *testing.T) {
	r := newRequester(t)
	briefly := func(k *task) (wire.Message, error) {
		select {
		case <-time.After(100 * time.Microsecond):
			return &wire.CodesReply{}, nil
		case <-k.ctx.Done():
			return nil, k.ctx.Err()
		}
	}
	effects := []effect{r.answers, r.refuses, briefly, func(k *task) (wire.Message, error) { k.rest = briefly; return nil, nil }}
	deadlines := []uint32{0, 1, 100, 1000}
	const requests = 2000
	named := map[uint64][]uint64{} // by the id of the cancel
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range uint64(requests) {
		if i%4 == 3 {
			named[1000+i] = []uint64{1000 + i - 1, 1000 + i - 2, 1000 + i - 1 - rng.Uint64N(min(i, 100))}
		}
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		got, buf := map[uint64]int{}, make([]byte, wire.MaxFrame)
		for range requests {
			n, fds, err := r.client.Recv(buf)
			if err != nil {
				t.Error(err)
				return
			}
			seqpacket.CloseAll(fds)
			h, _, _ := wire.ParseHeader(buf[:n])
			got[h.Request]++
			for _, id := range named[h.Request] {
				if h.Code == wire.OK && got[id] == 0 && named[id] == nil {
					t.Errorf("the cancel %d is answered before the request %d", h.Request, id)
				}
			}
		}
		if len(got) != requests {
			t.Errorf("%d replies to %d of %d requests", requests, len(got), requests)
		}
	}()
	for i := range uint64(requests) {
		id, deadline := 1000+i, deadlines[rng.IntN(len(deadlines))]
		if ids := named[id]; ids != nil {
			r.handle(&wire.Header{Op: wire.OpCancel, Request: id, Deadline: deadline}, &wire.CancelRequest{Requests: ids})
			continue
		}
		r.mu.Lock()
		r.effects[id] = effects[rng.IntN(len(effects))]
		r.mu.Unlock()
		operations[wire.OpRegisterDevice].long = nil
		if rng.IntN(2) == 0 {
			operations[wire.OpRegisterDevice].long = always
		}
		r.handle(&wire.Header{Op: wire.OpRegisterDevice, Request: id, Tenant: 1, Deadline: deadline}, &wire.StatsRequest{})
	}
	<-answered
	r.released()
	r.close()
}

// The reader's memory is used for the next frame while a request is in flight.
func TestARequestInFlightOwnsItsBody(t *testing.T) {
	r := newRequester(t)
	body := (&wire.WatchRequest{Jobs: 1, Declined: []uint64{3, 4}}).Append(nil)
	k := &task{conn: r.c, at: r.c.attached.Load(), arrived: time.Now(), body: body, scratch: &scratch{}}
	k.header = wire.Header{Op: wire.OpWatch, Request: 2}
	_, err := decode[wire.WatchRequest](k)
	must(t, err)
	got := make(chan []uint64)
	k.rest = func(k *task) (wire.Message, error) {
		<-r.open
		m, err := decode[wire.WatchRequest](k)
		got <- m.Declined
		return &wire.WatchReply{}, err
	}
	k.wait()
	clear(body)
	close(r.open)
	if declined := <-got; !slices.Equal(declined, []uint64{3, 4}) {
		t.Errorf("declined %d", declined)
	}
	r.expect(wire.OK)
	r.released()
	r.close()
}
