package policy

import (
	"math"
	"math/bits"
)

// The age of an object is the number of ticks of the policy's clock since its last use.
// Ages are grouped into buckets, two for each power of two, starting at 2^4. Bucket 0 has
// the ages below 16, bucket 1 has [16, 24), bucket 2 has [24, 32), bucket 3 has [32, 48),
// and so on up to 2^62 in buckets 117 and 118.
const (
	buckets     = 119
	perOctave   = 2
	firstOctave = 4
)

func bucketOf(age int64) uint8 {
	if age < 1<<firstOctave {
		return 0
	}
	octave := bits.Len64(uint64(age)) - 1
	half := int(age>>(octave-1)) & 1
	return uint8(2*(octave-firstOctave) + half + 1)
}

// bucketStart returns the lowest age of bucket b, which must be above the floor.
func bucketStart(b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(uint64(2+(b-1)%2) << (firstOctave + (b-1)/2 - 1))
}

// ages is the list of all objects in order of use. The objects of one bucket are adjacent,
// so that the next object to outgrow its bucket is at the end of the bucket.
//
// All ages below the floor share one bucket, so that an object moves through few buckets in
// its life. The floor is a small part of the mean time between two uses of an object, so
// few eviction decisions concern objects below the floor.
type ages struct {
	youngest int32
	floor    uint8
	asked    uint8          // the bucket that floor moves towards
	end      [buckets]int32 // the oldest object of each bucket; outside = the bucket is empty
	due      int64          // the clock when the next object outgrows its bucket
}

// movesPerUse bounds the objects that change their bucket in one use. The bound is several
// times the average, so that the moves of a burst are done soon.
const movesPerUse = 64

// floorPart sets the floor: 1/floorPart of the mean time between two uses of an object.
const floorPart = 16

func newAges() ages {
	a := ages{youngest: outside, due: math.MaxInt64}
	for b := range a.end {
		a.end[b] = outside
	}
	return a
}

// add inserts an object in front, at age 0.
func (a *ages) add(objects []object, i int32) {
	x := &objects[i]
	x.age, x.younger, x.older = a.floor, outside, a.youngest
	if a.youngest != outside {
		objects[a.youngest].younger = i
	}
	a.youngest = i
	if a.end[a.floor] == outside {
		a.end[a.floor] = i
		a.due = min(a.due, a.outgrows(x.used, int(a.floor)))
	}
}

func (a *ages) remove(objects []object, i int32) {
	x := &objects[i]
	a.shorten(objects, i)
	if x.younger != outside {
		objects[x.younger].older = x.older
	} else {
		a.youngest = x.older
	}
	if x.older != outside {
		objects[x.older].younger = x.younger
	}
}

// shorten removes an object from the end of its bucket if it is there.
func (a *ages) shorten(objects []object, i int32) {
	x := &objects[i]
	if a.end[x.age] != i {
		return
	}
	a.end[x.age] = outside
	if y := x.younger; y != outside && objects[y].age == x.age {
		a.end[x.age] = y
	}
}

// advance moves objects to the buckets of their ages at the given clock. It calls the
// function grown for each object whose bucket changes; this function must set the object's
// age. The oldest buckets are handled first, so that an object joins its new bucket as the
// youngest. At most movesPerUse objects move; the next call continues.
func (a *ages) advance(objects []object, clock int64, grown func(i int32, age uint8)) {
	if clock < a.due {
		return
	}
	a.due = math.MaxInt64
	moves := 0
	for b := max(int(a.floor), int(bucketOf(clock))); b >= int(a.floor); b-- {
		for i := a.end[b]; i != outside; i = a.end[b] {
			// If the floor was lowered since the insert, the age may be below b.
			age := max(a.floor, bucketOf(clock-objects[i].used))
			if b < int(a.asked) {
				age = max(age, uint8(b)+1)
			}
			if int(age) <= b {
				a.due = min(a.due, a.outgrows(objects[i].used, b))
				break
			}
			if moves++; moves > movesPerUse {
				a.due = clock
				return
			}
			a.shorten(objects, i)
			grown(i, age)
			if a.end[age] == outside {
				a.end[age] = i
				a.due = min(a.due, a.outgrows(objects[i].used, int(age)))
			}
		}
	}
	if a.floor < a.asked { // bucket a.floor is empty
		a.floor++
		a.due = clock
	}
}

// raise sets the floor to the bucket of span/floorPart, unless the current floor is close
// to that bucket. A lower floor applies at once. A higher floor becomes the target, which
// the method advance approaches bucket by bucket.
func (a *ages) raise(span int64) {
	floor := bucketOf(span / floorPart)
	if floor <= a.asked+2*perOctave && a.asked <= floor+2*perOctave {
		return
	}
	a.asked, a.floor = floor, min(floor, a.floor)
	a.due = 0
}

func (a *ages) outgrows(used int64, b int) int64 {
	if b == buckets-1 {
		return math.MaxInt64
	}
	return used + int64(bucketStart(b+1))
}
