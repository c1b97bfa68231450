package server

import (
	"testing"
	"time"
)

func TestConnectionsTakeTurns(t *testing.T) {
	q := newQueue(5)
	a, b := &lane{}, &lane{}
	jobs := map[string]*job{}
	for _, name := range []string{"a1", "a2", "a3", "b1", "b2"} {
		jobs[name] = &job{body: []byte(name)}
		l := a
		if name[0] == 'b' {
			l = b
		}
		q.put(l, jobs[name])
	}
	if !q.take(a, jobs["a2"]) || q.take(a, jobs["a2"]) || q.take(b, jobs["a1"]) {
		t.Error("take takes what is there once, and nothing else")
	}
	var order []string
	for range 4 {
		j, _ := q.next()
		order = append(order, string(j.body))
	}
	if got := order; got[0] != "a1" || got[1] != "b1" || got[2] != "a3" || got[3] != "b2" {
		t.Errorf("order %v", order)
	}
	q.put(a, jobs["a1"])
	if !q.take(a, jobs["a1"]) || q.length() != 0 {
		t.Error("the last of a lane is not taken")
	}
	q.put(b, jobs["b1"])
	q.close()
	if j, ok := q.next(); !ok || j != jobs["b1"] {
		t.Error("a closed queue hands out what waits")
	}
	if _, ok := q.next(); ok {
		t.Error("a closed queue ends")
	}
	if q.put(a, jobs["a1"]) {
		t.Error("a closed queue takes work")
	}
}

func TestPlacesAreBounded(t *testing.T) {
	q := newQueue(2)
	for i, want := range []bool{true, true, false} {
		if q.enter() != want {
			t.Fatalf("place %d of 2: %v", i+1, !want)
		}
	}
	l, j := &lane{}, &job{}
	q.put(l, j)
	got := make(chan *job)
	go func() { j, _ := q.next(); got <- j }()
	select {
	case <-got:
		t.Fatal("a third place")
	case <-time.After(10 * time.Millisecond):
	}
	q.leave()
	if <-got != j {
		t.Error("another job")
	}
	q.put(l, j)
	q.leave()
	if q.enter() {
		t.Error("one that does not wait goes before one that does")
	}
}

// A job that gave way goes on when nobody else wants its place, or after a few jobs of
// those that do.
func TestALongJobGivesWay(t *testing.T) {
	q := newQueue(1)
	q.spawn = func() {}
	if !q.enter() {
		t.Fatal("no place")
	}
	q.giveWay() // for nobody
	l := &lane{}
	const jobs = 2 * mostPass
	for range jobs {
		q.put(l, &job{})
	}
	wentOn := make(chan struct{})
	go func() {
		q.giveWay()
		close(wentOn)
	}()
	for i := range mostPass {
		if _, ok := q.next(); !ok {
			t.Fatalf("job %d is not begun while another gives way", i)
		}
		select {
		case <-wentOn:
			t.Fatalf("it goes on while job %d has the only place", i)
		case <-time.After(time.Millisecond):
		}
		q.leave()
	}
	<-wentOn
	if q.mu.running != 1 || q.enter() {
		t.Errorf("%d jobs run in one place", q.mu.running)
	}
	q.leave()
	for range jobs - mostPass {
		if _, ok := q.next(); !ok {
			t.Fatal("a job is lost")
		}
		q.leave()
	}
	if !q.enter() {
		t.Error("a place is lost")
	}
}

func TestAWorkerThatGivesWayIsReplaced(t *testing.T) {
	q := newQueue(1)
	spawned := make(chan struct{}, 1)
	q.spawn = func() { spawned <- struct{}{} }
	l := &lane{}
	q.put(l, &job{})
	q.put(l, &job{})
	if _, ok := q.next(); !ok {
		t.Fatal("no job")
	}
	wentOn := make(chan struct{})
	go func() {
		q.giveWay()
		close(wentOn)
	}()
	<-spawned // this goroutine is it
	if _, ok := q.next(); !ok {
		t.Fatal("no job for who came in place of the worker")
	}
	q.leave()
	<-wentOn
}
