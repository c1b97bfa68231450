package policy

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestBucketsCoverAllAges(t *testing.T) {
	for b := 1; b < buckets; b++ {
		start := int64(bucketStart(b))
		if int(bucketOf(start)) != b || int(bucketOf(start-1)) != b-1 {
			t.Errorf("bucket %d starts at %d, which is in %d behind %d", b, start, bucketOf(start), bucketOf(start-1))
		}
	}
	if b := bucketOf(math.MaxInt64); int(b) != buckets-1 {
		t.Errorf("the highest age is in bucket %d of %d", b, buckets)
	}
}

// The dumb list sorts all objects by their last use.
func TestAgesAgreeWithSorting(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		a := newAges()
		objects := make([]object, 40) // fewer than may grow older at once
		held := map[int32]bool{}
		clock := int64(0)
		grown := func(i int32, age uint8) {
			if age <= objects[i].age {
				t.Fatalf("seed %d: object %d goes from bucket %d to %d", seed, i, objects[i].age, age)
			}
			objects[i].age = age
		}
		for range 3000 {
			clock += 1 + rng.Int64N(1<<rng.IntN(16))
			a.advance(objects, clock, grown)
			if rng.IntN(50) == 0 {
				a.raise(1 << rng.IntN(24))
				for a.due <= clock {
					a.advance(objects, clock, grown)
				}
			}
			i := int32(rng.IntN(len(objects)))
			if held[i] {
				a.remove(objects, i)
				delete(held, i)
			}
			if rng.IntN(4) > 0 {
				objects[i] = object{used: clock}
				a.add(objects, i)
				held[i] = true
			}
			checkAges(t, seed, &a, objects, held, clock)
		}
	}
}

func checkAges(t *testing.T, seed uint64, a *ages, objects []object, held map[int32]bool, clock int64) {
	t.Helper()
	want := []int32{}
	for i := range held {
		want = append(want, i)
	}
	slices.SortFunc(want, func(i, j int32) int { return int(objects[j].used - objects[i].used) })
	got := []int32{}
	for i := a.youngest; i != outside; i = objects[i].older {
		got = append(got, i)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("seed %d: list %v, sorted %v", seed, got, want)
	}
	last := map[uint8]int32{}
	for _, i := range got {
		// The floor may have been higher when the object came.
		if b := max(a.floor, bucketOf(clock-objects[i].used)); objects[i].age < b {
			t.Fatalf("seed %d: object of age %d is in bucket %d, not %d", seed, clock-objects[i].used, objects[i].age, b)
		}
		last[objects[i].age] = i
	}
	for b, i := range a.end {
		if want, ok := last[uint8(b)]; ok && i != want || !ok && i != outside {
			t.Fatalf("seed %d: bucket %d ends at %d, want %d, %v", seed, b, i, want, ok)
		}
	}
}

// The dumb index tries every age up to which an object could be kept.
func TestIndexIsTheBestRate(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 4))
		c := chances{} // nothing is known of any age
		x := object{class: uint8(rng.IntN(classes))}
		row := c.row(int(x.class))
		c.floor = rng.IntN(20)
		c.known = c.floor + 1 + rng.IntN(60)
		for b := range row[:c.known] {
			row[b].hits = 30 * rng.Float64() * float64(rng.IntN(2))
			row[b].exposed = bucketStart(b+1) * 40 * rng.Float64()
		}
		c.generalise()
		c.solve(int(x.class))
		var hits, exposed rates
		for b := range row[:c.known] {
			hits[b], exposed[b] = row[b].hits, row[b].exposed
		}
		for from := c.floor; from < buckets; from++ {
			best, whole := 0.0, stretch{unused: 1}
			for b := from; b < buckets; b++ {
				h := c.hazard(&hits, &exposed, b, c.ofKind[x.class/levels][b])
				whole = whole.then(within(h, bucketStart(b+1)-c.start(b)))
				best = max(best, whole.uses/whole.time)
			}
			if got := row[from].index; math.Abs(got/best-1) > 1e-9 {
				t.Fatalf("seed %d: index from bucket %d is %g, the best rate %g", seed, from, got, best)
			}
		}
	}
}

func TestPastIsBoundedAndForgetsTheOldest(t *testing.T) {
	p := newPast()
	for key := uint64(1); key <= 3*leastPast; key++ {
		p.note(key, 4, 10)
	}
	if len(p.at) != leastPast || len(p.ring) != leastPast {
		t.Fatalf("%d keys in a ring of %d, want %d", len(p.at), len(p.ring), leastPast)
	}
	if got := p.take(3 * leastPast); got != 5 {
		t.Errorf("the last to leave returns with %d uses, want 5", got)
	}
	if got := p.take(3 * leastPast); got != 0 {
		t.Errorf("a second return has %d uses", got)
	}
	if got := p.take(1); got != 0 {
		t.Errorf("the first to leave is still known with %d uses", got)
	}
	// Two objects with one key: the second to leave gives it a new place.
	again := uint64(2*leastPast + 1) // the next to be forgotten
	p.note(again, 7, 10)
	p.note(9*leastPast, 1, 10)
	if got := p.take(again); got != 8 {
		t.Errorf("what left twice returns with %d uses, want 8", got)
	}
	p.note(0, 9, 10)
	if got := p.take(0); got != 0 {
		t.Errorf("no key at all returns with %d uses", got)
	}
}
