package hub

import (
	"testing"
	"time"
)

var start = time.Unix(1000, 0)

// send gives a link frames at one time and returns when those that pass arrive.
func send(l *Link, now time.Time, frames, bytes int) (delays []time.Duration) {
	for range frames {
		if at, ok := l.Take(now, bytes); ok {
			delays = append(delays, at.Sub(now))
		}
	}
	return delays
}

func TestALinkWithoutARulePassesAllAtOnce(t *testing.T) {
	var l Link
	for _, d := range send(&l, start, 100, 1500) {
		if d != 0 {
			t.Fatalf("a frame takes %v", d)
		}
	}
	if c := l.Counters(); c != (Counters{Passed: 100, Bytes: 150000}) {
		t.Errorf("counted %+v", c)
	}
}

func TestALinkDelaysWithinItsJitterAndKeepsTheOrder(t *testing.T) {
	l := NewLink(1)
	l.Set(Rule{Delay: 25 * time.Millisecond, Jitter: 5 * time.Millisecond})
	last, early, late := time.Time{}, 0, 0
	for i := range 1000 {
		now := start.Add(time.Duration(i) * 20 * time.Millisecond) // further apart than the jitter: each draws its own
		at, ok := l.Take(now, 100)
		d := at.Sub(now)
		if !ok || d < 20*time.Millisecond || d > 30*time.Millisecond || at.Before(last) {
			t.Fatalf("frame %d takes %v and arrives %v behind the one before", i, d, at.Sub(last))
		}
		if last = at; d < 22*time.Millisecond {
			early++
		} else if d > 28*time.Millisecond {
			late++
		}
	}
	if early < 150 || late < 150 {
		t.Errorf("of 1000 frames %d came early and %d late, some 200 are expected", early, late)
	}
	previous := time.Duration(0)
	for i, d := range send(l, start.Add(time.Hour), 1000, 100) {
		if d < previous {
			t.Fatalf("frame %d overtakes the one before", i)
		}
		previous = d
	}
}

func TestALinkLosesItsShareTheSameOfTheSameSeed(t *testing.T) {
	fates := func(seed uint64) (list []bool) {
		l := NewLink(seed)
		l.Set(Rule{Loss: .2})
		for range 10000 {
			_, ok := l.Take(start, 100)
			list = append(list, ok)
		}
		if c := l.Counters(); c.Lost < 1800 || c.Lost > 2200 || c.Lost+c.Passed != 10000 {
			t.Errorf("seed %d: counted %+v", seed, c)
		}
		return list
	}
	first, again, other := fates(1), fates(1), fates(2)
	differ := 0
	for i := range first {
		if first[i] != again[i] {
			t.Fatalf("frame %d has two fates with one seed", i)
		}
		if first[i] != other[i] {
			differ++
		}
	}
	if differ == 0 {
		t.Error("another seed loses the same frames")
	}
}

func TestALinkThatIsCutPassesNothingUntilItIsMended(t *testing.T) {
	var l Link
	l.Set(Rule{Cut: true})
	if n := len(send(&l, start, 10, 100)); n != 0 {
		t.Errorf("%d frames pass", n)
	}
	l.Set(Rule{})
	if n := len(send(&l, start, 10, 100)); n != 10 {
		t.Errorf("%d of 10 frames pass afterwards", n)
	}
	if c := l.Counters(); c.Cut != 10 || c.Passed != 10 {
		t.Errorf("counted %+v", c)
	}
}

func TestASlowLinkSendsAtItsRateAndDropsWhatDoesNotFitItsQueue(t *testing.T) {
	l := NewLink(1)
	l.Set(Rule{BytesPerSecond: 1e6, QueueBytes: 10000, Delay: time.Second})
	delays := send(l, start, 20, 1000)
	if len(delays) != 10 {
		t.Fatalf("%d frames of 1000 bytes pass a queue of 10000", len(delays))
	}
	for i, d := range delays {
		if want := time.Second + time.Duration(i+1)*time.Millisecond; d != want {
			t.Errorf("frame %d takes %v, want %v", i, d, want)
		}
	}
	if n := len(send(l, start.Add(5*time.Millisecond), 20, 1000)); n != 5 {
		t.Errorf("%d frames pass when half of the queue has left", n)
	}
	if c := l.Counters(); c.Full != 25 {
		t.Errorf("counted %+v", c)
	}
	if d := send(l, start.Add(time.Minute), 1, 1000); d[0] != time.Second+time.Millisecond {
		t.Errorf("a frame on an idle link takes %v", d[0])
	}
}

func TestRulesThatMakeNoSenseAreRefused(t *testing.T) {
	nan := 0.0
	nan /= nan
	for _, r := range []Rule{
		{Delay: -1}, {Jitter: 1}, {Delay: 1, Jitter: 2}, {Loss: -.1}, {Loss: 1.1}, {Loss: nan}, {BytesPerSecond: -1}, {QueueBytes: -1},
	} {
		if r.Validate() == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
	r := Rule{Delay: 2, Jitter: 1, Loss: 1, BytesPerSecond: 1, QueueBytes: 1}
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
}
