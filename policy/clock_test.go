package policy

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
)

// evictions are what a pool of 300 objects evicts in 30,000 uses, one at each time.
func evictions(at func(i int) time.Time) []ID {
	rng := rand.New(rand.NewPCG(5, 6))
	p, ids := NewDefault(), make([]ID, 1000)
	next, gone := ID(0), []ID{}
	names := map[ID]int{}
	for i := range 30_000 {
		name := int(rng.ExpFloat64()*250+float64(i/50)) % len(ids)
		if id := ids[name]; id != 0 {
			p.Touch(id, at(i))
			continue
		}
		if p.Len() == 300 {
			id, _ := p.Victim(func(ID) bool { return true })
			p.Remove(id)
			gone = append(gone, id)
			ids[names[id]] = 0
		}
		next++
		ids[name], names[next] = next, name
		p.Insert(next, Item{Bytes: 1 + int64(name%7), Saved: 1 + float64(name%5), Key: uint64(name) + 1}, at(i))
	}
	return gone
}

func TestOnlyTheOrderOfTimesMatters(t *testing.T) {
	epoch := time.Unix(1e9, 0)
	want := evictions(func(i int) time.Time { return epoch.Add(time.Duration(i) * time.Second) })
	if len(want) < 1000 {
		t.Fatalf("%d evictions, want some", len(want))
	}
	for name, at := range map[string]func(i int) time.Time{
		"nanoseconds":       func(i int) time.Time { return epoch.Add(time.Duration(i)) },
		"centuries":         func(i int) time.Time { return epoch.AddDate(100*i, 0, 0) },
		"an hour every 300": func(i int) time.Time { return epoch.Add(time.Duration(i)*time.Second + time.Duration(i/300)*time.Hour) },
		"backwards":         func(i int) time.Time { return epoch.Add(-time.Duration(i) * time.Second) },
		"a first time of zero": func(i int) time.Time {
			if i == 0 {
				return time.Time{}
			}
			return epoch.Add(time.Duration(i) * time.Second)
		},
	} {
		if got := evictions(at); !slices.Equal(got, want) {
			t.Errorf("%s: other evictions than with seconds", name)
		}
	}
}

func TestUsesAtOneMomentCountOnce(t *testing.T) {
	l := NewDefault().(*learned)
	now := time.Unix(1e9, 0)
	for id := ID(1); id <= 20; id++ {
		l.Insert(id, Item{Bytes: 1}, now)
	}
	visits := func() uint8 { return l.objects[l.at[1]].visits }
	for moment := range uint8(5) {
		now = now.Add(time.Hour)
		for id := ID(1); id <= 20; id++ {
			l.Touch(id, now)
			l.Touch(1, now)
		}
		if got := visits(); got != moment+1 {
			t.Fatalf("%d visits after uses at %d moments", got, moment+1)
		}
	}
}

// A pool that shrinks tells ages apart that it did not before.
func TestSinkingFloorLeavesNoAgeWithoutIndex(t *testing.T) {
	l := NewDefault().(*learned)
	now := time.Unix(1e9, 0)
	next := ID(0)
	insert := func() {
		next++
		now = now.Add(time.Second)
		l.Insert(next, Item{Bytes: 1, Saved: 1}, now)
	}
	for range 20_000 {
		insert()
	}
	high := l.ages.floor
	for i := range 60_000 {
		if i%3 == 0 {
			insert()
		} else {
			now = now.Add(time.Second)
			l.Touch(next-ID(i%40), now)
		}
		for l.Len() > max(100, 20_000-i) {
			id, _ := l.Victim(func(ID) bool { return true })
			l.Remove(id)
		}
		for _, c := range l.chances.occupied {
			if c.index == 0 {
				t.Fatalf("use %d: a cell with %d objects has no index, floor %d", i, len(c.heap), l.ages.floor)
			}
		}
	}
	if l.ages.floor >= high {
		t.Fatalf("the floor is %d, as before with 20,000 objects (%d)", l.ages.floor, high)
	}
}

func TestKidsAreThoseThatAreHeld(t *testing.T) {
	l := NewDefault().(*learned)
	now := time.Unix(1e9, 0)
	kids := func(id ID, want int32) {
		t.Helper()
		if got := l.objects[l.at[id]].kids; got != want {
			t.Fatalf("%d kids of %d, want %d", got, id, want)
		}
	}
	l.Insert(2, Item{Bytes: 1, Extends: 1}, now) // before what it extends
	l.Insert(1, Item{Bytes: 1}, now)
	kids(1, 0)
	l.Insert(3, Item{Bytes: 1, Extends: 1}, now)
	kids(1, 1)
	l.Update(2, Item{Bytes: 1, Extends: 1})
	kids(1, 2)
	l.Remove(1)
	l.Insert(1, Item{Bytes: 1}, now) // comes back under its id
	kids(1, 0)
	l.Update(2, Item{Bytes: 2, Extends: 1})
	kids(1, 1)
	l.Update(2, Item{Bytes: 3, Extends: 1})
	kids(1, 1)
	l.Remove(3) // counted by the one that is gone
	kids(1, 1)
	l.Remove(1)
	l.Insert(4, Item{Bytes: 1}, now) // takes the place of 1
	l.Remove(2)
	kids(4, 0)
	l.Insert(5, Item{Bytes: 1, Extends: 5}, now)
	kids(5, 0)
}

// What came all at one time grows older together, but not at one use.
func TestUsesMoveABoundedNumberOfObjects(t *testing.T) {
	l := NewDefault().(*learned)
	now := time.Unix(1e9, 0)
	for id := ID(1); id <= 5000; id++ {
		l.Insert(id, Item{Bytes: 1}, now)
	}
	ages := make([]uint8, len(l.objects))
	most, late := 0, 0
	for use := range 2000 {
		for i, x := range l.objects {
			ages[i] = x.age
		}
		now = now.Add(time.Hour)
		l.Touch(ID(1+use%100), now)
		moved := 0
		for i, x := range l.objects {
			if x.age != ages[i] {
				moved++
			}
		}
		most = max(most, moved)
		if l.ages.due <= l.clock {
			late++
		}
	}
	if most > movesPerUse+1 { // and the one that is used
		t.Errorf("%d objects moved at one use, want at most %d", most, movesPerUse+1)
	}
	if most < movesPerUse || late == 0 {
		t.Errorf("at most %d objects moved at one use and %d uses were late: the limit was not tried", most, late)
	}
	for range 500 {
		now = now.Add(time.Hour)
		l.Touch(1, now)
	}
	if l.ages.due <= l.clock {
		t.Errorf("the ages are late by %d", l.clock-l.ages.due)
	}
}

func TestMemoryIsThatOfWhatIsHeld(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector takes memory of its own")
	}
	const n = 100_000
	before := heapBytes()
	l := NewDefault()
	rng := rand.New(rand.NewPCG(7, 8))
	now := time.Unix(1e9, 0)
	for id := ID(1); id <= n; id++ {
		now = now.Add(time.Second)
		l.Insert(id, Item{Bytes: 1, Saved: rng.Float64()}, now)
	}
	filled := heapBytes()
	for i := range 10 * n {
		if i%n == 0 {
			now = now.Add(time.Hour)
		}
		now = now.Add(time.Second)
		l.Touch(1+ID(rng.Int64N(n)), now)
	}
	t.Logf("%.0f bytes an object after they came, %.0f after ten uses of each", (filled-before)/n, (heapBytes()-before)/n)
	if each := (heapBytes() - before) / n; each > 200 {
		t.Errorf("%.0f bytes an object, want 200", each)
	}
	runtime.KeepAlive(l)
}

func heapBytes() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
