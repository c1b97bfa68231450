package queue

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// newTestQueue has no goroutines of its own; what it would start is counted.
func newTestQueue(workers int) (q *Queue[*job], spawned *int) {
	spawned = new(int)
	return New[*job](workers, &LastShort{}, func() { *spawned++ }), spawned
}

type job struct {
	name string
	lane *Lane[*job]
}

func newLane(q *Queue[*job], of User) *Lane[*job] {
	l := &Lane[*job]{}
	q.Join(l, of)
	return l
}

// serve begins the next job, has it run for a time and returns its name.
func serve(t *testing.T, q *Queue[*job], took time.Duration) string {
	t.Helper()
	j, ok := q.Next()
	if !ok {
		t.Fatal("no job")
	}
	now := time.Now()
	p := q.Begin(j.lane, now.Add(-took), true)
	p.leaveAt(now)
	return j.name
}

func putNamed(q *Queue[*job], l *Lane[*job], names ...string) (jobs []*job) {
	for _, name := range names {
		j := &job{name: name, lane: l}
		q.Put(l, j)
		jobs = append(jobs, j)
	}
	return jobs
}

func TestConnectionsTakeTurns(t *testing.T) {
	q, _ := newTestQueue(5)
	a, b := newLane(q, User{}), newLane(q, User{})
	jobs := putNamed(q, a, "a1", "a2", "a3")
	putNamed(q, b, "b1", "b2")
	if !q.Take(a, jobs[1]) || q.Take(a, jobs[1]) || q.Take(b, jobs[0]) {
		t.Error("take takes what is there once, and nothing else")
	}
	var order []string
	for range 4 {
		order = append(order, serve(t, q, turnTime))
	}
	slices.Sort(order[2:]) // they have had the same
	if want := []string{"a1", "b1", "a3", "b2"}; !slices.Equal(order, want) {
		t.Errorf("order %v, not %v", order, want)
	}
	last := putNamed(q, a, "a4")[0]
	if !q.Take(a, last) || q.Waiting() != 0 {
		t.Error("the last of a lane is not taken")
	}
	putNamed(q, b, "b3")
	q.Close()
	if name := serve(t, q, 0); name != "b3" {
		t.Errorf("a closed queue hands out %s", name)
	}
	if _, ok := q.Next(); ok {
		t.Error("a closed queue ends")
	}
	if q.Put(a, last) {
		t.Error("a closed queue takes work")
	}
	q.Part(a)
	q.Part(b)
	if len(q.mu.users) != 0 {
		t.Errorf("%d users are left", len(q.mu.users))
	}
}

// Many connections and many requests of each get a user no more than half of the time
// beside one connection of another.
func TestUsersShareTimeWhateverTheirConnections(t *testing.T) {
	for name, attacker := range map[string]User{"another uid": {UID: 1, Tenant: 2}, "another tenant": {UID: 3, Tenant: 1}} {
		t.Run(name, func(t *testing.T) {
			q, _ := newTestQueue(1)
			for range 12 {
				putNamed(q, newLane(q, attacker), strings.Split(strings.Repeat("x", 8), "")...)
			}
			putNamed(q, newLane(q, User{UID: 3, Tenant: 2}), strings.Split(strings.Repeat("v", 8), "")...)
			order := ""
			for range 16 {
				order += serve(t, q, turnTime)
			}
			if n := strings.Count(order, "v"); n != 8 {
				t.Errorf("%d of 16 turns are the victim's: %s", n, order)
			}
			if strings.Contains(order, "xxx") {
				t.Errorf("two turns of others before one of the victim's: %s", order)
			}
		})
	}
}

// Who asks for little goes before those who ask for much, also when they came first.
func TestALaneThatHadLittleIsNext(t *testing.T) {
	q, _ := newTestQueue(1)
	victim := newLane(q, User{})
	for range 12 {
		putNamed(q, newLane(q, User{}), "x", "x", "x")
	}
	for range 12 {
		serve(t, q, turnTime)
	}
	for range 5 {
		putNamed(q, victim, "v")
		if name := serve(t, q, turnTime/20); name != "v" {
			t.Fatal("a turn of another comes first")
		}
	}
}

// What a lane had while nobody wanted it is no debt: once others do, it waits for few
// turns of theirs.
func TestTimeThatNobodyWantedIsNoDebt(t *testing.T) {
	q, _ := newTestQueue(1)
	busy, late := newLane(q, User{}), newLane(q, User{})
	for range 100 {
		putNamed(q, busy, "b")
		serve(t, q, turnTime)
	}
	putNamed(q, late, strings.Split(strings.Repeat("l", 50), "")...)
	putNamed(q, busy, "b")
	order := ""
	for !strings.Contains(order, "b") {
		order += serve(t, q, turnTime)
	}
	if len(order) > 1+int((mostAhead+2*turnTime)/turnTime) {
		t.Errorf("%d turns of another before the job of who had been alone", len(order)-1)
	}
}

func TestPlacesAreBounded(t *testing.T) {
	q, spawned := newTestQueue(2)
	l := newLane(q, User{})
	for i, want := range []bool{true, true, false} {
		if q.Enter(l) != want {
			t.Fatalf("place %d of 2: %v", i+1, !want)
		}
	}
	putNamed(q, l, "j")
	if *spawned != 0 {
		t.Error("a goroutine is started that finds no place")
	}
	first, second := q.Begin(l, time.Now(), false), q.Begin(l, time.Now(), false)
	first.Leave()
	if *spawned != 1 {
		t.Errorf("%d goroutines are started for a job that has a place now", *spawned)
	}
	if q.Enter(l) {
		t.Error("one that does not wait goes before one that does")
	}
	if name := serve(t, q, 0); name != "j" {
		t.Errorf("job %s", name)
	}
	second.Leave()
	if q.mu.running != 0 {
		t.Errorf("%d jobs run", q.mu.running)
	}
}

// parked begins a job and has it give way; the channel is closed when it goes on.
func parked(q *Queue[*job], l *Lane[*job]) (*Place[*job], chan struct{}) {
	p, wentOn := q.Begin(l, time.Now().Add(-turnTime), true), make(chan struct{})
	go func() {
		p.GiveWay()
		close(wentOn)
	}()
	return &p, wentOn
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func parkedJobs(q *Queue[*job]) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.mu.waiting {
		n += len(l.parked)
	}
	return n
}

// With one worker a long job gives way to what waits, and goes on after it; a goroutine
// is started in its place.
func TestALongJobGivesWay(t *testing.T) {
	q, spawned := newTestQueue(1)
	long, other := newLane(q, User{}), newLane(q, User{})
	if !q.Enter(long) {
		t.Fatal("no place")
	}
	alone, wentOn := parked(q, long)
	<-wentOn // for nobody
	if !alone.long || q.mu.running != 1 || q.mu.long != 1 {
		t.Errorf("%d jobs run, %d of them long", q.mu.running, q.mu.long)
	}
	putNamed(q, other, "o")
	alone.since = time.Now().Add(-turnTime)
	wentOn = make(chan struct{})
	go func() {
		alone.GiveWay()
		close(wentOn)
	}()
	eventually(t, "it does not give way", func() bool { return parkedJobs(q) == 1 })
	if *spawned != 1 {
		t.Errorf("%d goroutines are started in place of one that gave way", *spawned)
	}
	if name := serve(t, q, 0); name != "o" {
		t.Errorf("job %s", name)
	}
	<-wentOn
	alone.Leave()
	if q.mu.running != 0 || q.mu.long != 0 || len(q.mu.waiting) != 0 {
		t.Errorf("%d jobs run, %d of them long, %d lanes wait", q.mu.running, q.mu.long, len(q.mu.waiting))
	}
}

// While short requests come, long jobs have all workers but one.
func TestLongJobsLeaveAWorkerToShortOnes(t *testing.T) {
	const workers = 3
	q, _ := newTestQueue(workers)
	q.short.Note(time.Now().Add(time.Hour)) // they come during all of the test
	var places []*Place[*job]
	var on []chan struct{}
	for range workers {
		l := newLane(q, User{})
		if !q.Enter(l) {
			t.Fatal("no place")
		}
		p, wentOn := parked(q, l)
		places, on = append(places, p), append(on, wentOn)
	}
	eventually(t, "no long job is parked", func() bool { return parkedJobs(q) == 1 })
	victim := newLane(q, User{})
	for range 3 {
		if !q.Enter(victim) {
			t.Fatal("no worker is left")
		}
		p := q.Begin(victim, time.Now(), false)
		p.Leave()
	}
	if q.mu.long != workers-1 || q.mu.running != workers-1 {
		t.Errorf("%d jobs run, %d of them long", q.mu.running, q.mu.long)
	}
	q.short.at.Store(0) // they come no more, and nothing else happens
	eventually(t, "a long job is parked while a worker is free", func() bool { return parkedJobs(q) == 0 })
	for i := range places {
		<-on[i]
		places[i].Leave()
	}
}
