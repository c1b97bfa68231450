package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// A shelf is a made-up source: texts by name, some of which continue others. What a
// third source of the store takes is what this file has above its tests.
type shelf struct {
	mu      sync.Mutex
	engine  *Engine[string]
	far     map[string]string // what can be fetched
	near    map[string]string // what has been
	room    int               // bytes left near
	held    int               // Begin without Release
	hints   Hints[string]
	gate    chan struct{} // Move waits for it, if there is one
	endless bool          // Move ends with its context only
	log     []string      // who moved, in order
}

// fetch is the job of one text.
type fetch struct {
	shelf *shelf
	name  string
	text  string
	waits int // waiters when it ended
}

func newShelf(cfg Config, far map[string]string, room int) *shelf {
	s := &shelf{far: far, near: map[string]string{}, room: room}
	cfg.Lock, cfg.Workers, cfg.Idle = &s.mu, true, s.guess
	s.engine = New[string](cfg)
	return s
}

// want begins or joins the fetch of a name, behind that of what it continues.
func (s *shelf) want(name string, urgent bool) *Flight {
	if f := s.engine.Find(name); f != nil {
		if urgent {
			s.engine.Urge(f)
		}
		return f
	}
	if !s.engine.Room(0, 1) {
		return nil
	}
	o := Options{Bytes: int64(len(s.far[name])), Urgent: urgent}
	if first, _, ok := strings.Cut(name, "/"); ok && s.near[first] == "" {
		o.After = s.want(first, urgent)
	}
	f, _ := s.engine.Start(name, &fetch{shelf: s, name: name}, o)
	return f
}

func (s *shelf) guess() (more bool) {
	if s.hints.Len() > 0 {
		s.want(s.hints.Take(), false)
	}
	return s.hints.Len() > 0
}

func (j *fetch) Begin(*Flight) error {
	text, ok := j.shelf.far[j.name]
	switch {
	case !ok:
		return fmt.Errorf("%s: %w", j.name, tier.ErrGone)
	case len(text) > j.shelf.room:
		return Parked(fmt.Errorf("%s: %w", j.name, tier.ErrFull))
	}
	j.shelf.room -= len(text)
	j.shelf.held++
	return nil
}

func (j *fetch) Move(ctx context.Context, _ *Flight, moved func(error)) {
	if j.shelf.gate != nil {
		<-j.shelf.gate
	}
	if j.shelf.endless {
		<-ctx.Done()
		moved(ctx.Err())
		return
	}
	j.text = j.shelf.far[j.name]
	moved(nil)
}

func (j *fetch) Landed(*Flight) (again bool, err error) { return false, nil }

func (j *fetch) End(f *Flight, err error) {
	j.waits = f.Waiters()
	if err == nil {
		j.shelf.near[j.name] = j.text
		j.shelf.log = append(j.shelf.log, j.name)
	}
}

func (j *fetch) Release(*Flight) {
	j.shelf.held--
	if j.shelf.near[j.name] == "" {
		j.shelf.room += len(j.shelf.far[j.name])
	}
}

// ---- what the engine does for it

func texts(names ...string) map[string]string {
	far := map[string]string{}
	for _, n := range names {
		far[n] = "text of " + n
	}
	return far
}

// with calls f with the lock held.
func (s *shelf) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *shelf) run() (n int) {
	for s.engine.Try(context.Background(), 0) {
		n++
	}
	return n
}

func (s *shelf) wantIdle(t *testing.T) {
	t.Helper()
	s.with(func() {
		if s.held != 0 || s.engine.Len(0) != 0 || s.engine.Bytes() != 0 || s.engine.Parked() != 0 {
			t.Errorf("%d held, %d flights, %d bytes, %d parked at the end", s.held, s.engine.Len(0), s.engine.Bytes(), s.engine.Parked())
		}
	})
}

func TestOneFlightServesAllWhoAskForIt(t *testing.T) {
	took := 0
	s := newShelf(Config{Took: func(int, time.Duration) { took++ }}, texts("a"), 100)
	var flights []*Flight
	s.with(func() {
		for range 3 {
			f := s.want("a", true)
			f.Join()
			flights = append(flights, f)
		}
	})
	if n := s.run(); n != 1 || flights[0] != flights[2] {
		t.Fatalf("%d flights moved, the same %v", n, flights[0] == flights[2])
	}
	<-flights[0].Done()
	if j := flights[0].Job.(*fetch); j.waits != 3 || s.near["a"] != "text of a" {
		t.Fatalf("%d waiters, text %q", j.waits, s.near["a"])
	}
	if got := s.engine.Stats(0); got.Ended[Done] != 1 || took != 1 {
		t.Fatalf("counted %d done, timed %d", got.Ended[Done], took)
	}
	s.wantIdle(t)
}

func TestUrgentFlightsGoFirst(t *testing.T) {
	s := newShelf(Config{}, texts("a", "b", "c", "d"), 100)
	s.with(func() {
		s.want("a", false)
		s.want("b", false)
		s.want("c", true)
		s.want("b", true)
		s.hints.Add("d")
	})
	s.run()
	if want := []string{"c", "b", "a", "d"}; !slices.Equal(s.log, want) {
		t.Fatalf("moved %v, want %v", s.log, want)
	}
	s.wantIdle(t)
}

func TestFollowersGoBehindTheirLeadOrFailWithIt(t *testing.T) {
	s := newShelf(Config{}, texts("a", "a/1", "b/1"), 100)
	var good, bad *Flight
	s.with(func() {
		good, bad = s.want("a/1", true), s.want("b/1", true)
		if good.Lead() == nil || bad.Lead() == nil {
			t.Error("they follow nothing")
		}
	})
	s.run()
	if !slices.Equal(s.log, []string{"a", "a/1"}) || good.Err() != nil || !errors.Is(bad.Err(), tier.ErrGone) {
		t.Fatalf("moved %v, errors %v and %v", s.log, good.Err(), bad.Err())
	}
	s.wantIdle(t)
}

func TestParkedFlightsWaitForAKickAndNotForEver(t *testing.T) {
	s := newShelf(Config{Turns: 2}, texts("a", "b"), 0)
	var a, b *Flight
	s.with(func() { a, b = s.want("a", true), s.want("b", true) })
	s.run()
	if n := s.run(); n != 0 || s.engine.Parked() != 2 {
		t.Fatalf("%d flights had a turn without a kick, %d are parked", n, s.engine.Parked())
	}
	s.with(func() {
		s.room = len(s.far["a"])
		s.engine.Kick()
	})
	s.run()
	s.with(s.engine.Kick)
	s.run()
	if a.Err() != nil || !b.Ended() || !errors.Is(b.Err(), tier.ErrFull) || OutcomeOf(b.Err()) != NoRoom {
		t.Fatalf("a: %v, b: %v", a.Err(), b.Err())
	}
	s.wantIdle(t)
}

func TestBudgetHoldsFlightsBackButNeverAlone(t *testing.T) {
	far := texts("a", "b")
	s := newShelf(Config{Bytes: int64(len(far["a"])) + 1}, far, 100)
	s.gate = make(chan struct{})
	s.with(func() { s.want("a", true); s.want("b", true) })
	done := make(chan struct{})
	go func() { defer close(done); s.engine.Try(context.Background(), 0) }()
	s.gate <- struct{}{} // a moves
	<-done
	s.with(func() {
		s.engine.lanes[0].bytes += 2 // as if another were on its way
		if f, _ := s.engine.pick(0); f != nil {
			t.Error("a second flight begins beyond the budget")
		}
		s.engine.lanes[0].bytes -= 2
	})
	close(s.gate)
	if n := s.run(); n != 1 {
		t.Fatalf("%d flights moved", n)
	}
	s.wantIdle(t)
}

func TestCanceledFlightIsReleasedWhenItsBytesRest(t *testing.T) {
	s := newShelf(Config{}, texts("a", "a/1"), 100)
	s.gate, s.endless = make(chan struct{}), true
	var f, follower *Flight
	s.with(func() { f, follower = s.want("a", true), s.want("a/1", true) })
	done := make(chan struct{})
	go func() { defer close(done); s.engine.Try(context.Background(), 0) }()
	s.gate <- struct{}{} // it moves
	s.with(func() {
		s.engine.Cancel(f, ErrStopped)
		if !f.Ended() || s.held != 1 || s.engine.Find("a") != nil {
			t.Errorf("ended %v, %d held", f.Ended(), s.held)
		}
	})
	<-f.Done()
	<-done
	if !errors.Is(f.Err(), ErrStopped) || !errors.Is(follower.Err(), ErrStopped) || s.near["a"] != "" {
		t.Fatalf("ended with %v, near %q", f.Err(), s.near["a"])
	}
	s.wantIdle(t)
}

func TestStoppedEngineEndsItsFlightsAndRefusesOthers(t *testing.T) {
	s := newShelf(Config{}, texts("a", "b", "b/1"), 100)
	var flights []*Flight
	s.with(func() {
		flights = []*Flight{s.want("a", true), s.want("b/1", false), s.want("b", false)}
		s.engine.Stop(ErrStopped)
	})
	for _, f := range flights {
		<-f.Done()
		if !errors.Is(f.Err(), ErrStopped) {
			t.Errorf("a flight ended with %v", f.Err())
		}
	}
	s.with(func() {
		if s.want("a", true) != nil || s.engine.Stats(0).Busy != 1 {
			t.Error("a flight starts in an engine that is stopped")
		}
		s.engine.Resume()
		if s.want("a", true) == nil {
			t.Error("no flight starts in an engine that goes on")
		}
	})
	s.run()
	s.wantIdle(t)
}

func TestQueueAndSharesAreBounded(t *testing.T) {
	s := newShelf(Config{Queue: 3, Share: 2}, texts("a", "b", "c"), 100)
	s.with(func() {
		for _, row := range []struct {
			owner uint32
			n     int
			want  bool
		}{{1, 2, true}, {1, 3, false}, {2, 4, false}} {
			if got := s.engine.Room(row.owner, row.n); got != row.want {
				t.Errorf("room for %d flights of %d: %v", row.n, row.owner, got)
			}
		}
		_, _ = s.engine.Start("a", &fetch{shelf: s, name: "a"}, Options{Owner: 1})
		if s.engine.Room(1, 2) || !s.engine.Room(2, 2) {
			t.Error("the share of one owner is not its own")
		}
	})
	s.run()
	s.wantIdle(t)
}

func TestWorkersEndWithTheirContext(t *testing.T) {
	s := newShelf(Config{}, texts("a", "b", "c", "d", "e"), 1000)
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() { s.engine.Work(ctx, 0) })
	}
	var flights []*Flight
	s.with(func() {
		for n := range s.far {
			flights = append(flights, s.want(n, true))
		}
	})
	for _, f := range flights {
		<-f.Done()
	}
	cancel()
	workers.Wait()
	s.wantIdle(t)
}
