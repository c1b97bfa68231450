package policy

import (
	"math"
	"time"
)

// learned keeps every object in the cell of its class and of its age, the time since its
// last use. The cell estimates how soon such objects are used again. The rank of an object
// combines this estimate with the object's density. See NewDefault.
type learned struct {
	at      map[ID]int32
	objects []object
	free    []int32
	ages    ages
	chances chances
	past    past

	clock  int64 // advances by step for each new time, and by 1 for each use
	moment int64 // the clock when the current time was first passed in
	moved  bool  // more than one time was passed in
	uses   int
	learnt int64   // the clock when a class was updated last
	span   float64 // mean time in which there are as many uses as objects
	now    time.Time
	begun  bool
	named  victim
	power  float64     // exponent of the density, set by Victim
	search []candidate // scratch of Victim
}

type object struct {
	id      ID
	key     uint64
	density float64 // as a logarithm
	used    int64   // the clock at the last use, unique among objects
	born    int64   // the clock at the insertion, unique among objects
	since   int64   // value of the parent's field born; if that field has changed, the parent's place was reused
	parent  int32   // index of the object that this one extends; outside = none
	kids    int32
	older   int32 // neighbors in order of use
	younger int32
	pos     int32 // index in the heap of its cell; outside = suspended
	class   uint8
	age     uint8
	visits  uint8
	marks   marks
}

// marks records how an object was related to others in the past.
type marks uint8

const (
	tip      marks = 1 << iota // when inserted, it was the only one to extend its parent
	split                      // an object was inserted between it and its parent
	extended                   // was extended at least once
	parted                     // was extended by two objects at the same time
)

// learnEvery is the number of uses between updates of a class.
const learnEvery = 8

// step is the number of ticks by which a use advances the clock if its time differs from
// the previous one. A use at the same time advances the clock by one tick, so such uses
// stay close together.
const step = 1 << 10

// longest bounds the times in calculations, in ticks.
const longest = math.MaxInt64 / 4

// NewDefault returns an eviction policy that minimizes the expected savings lost per byte
// and time. It has no settings.
//
// For each kind of object the policy learns the hazard at each age: the chance of a use per
// unit of time. The age is the time since the last use. The kind depends on the number of
// uses and on the relations between objects (Item.Extends): at the tip of a conversation,
// with siblings, cut off by a branch, in the middle of a chain, or at a branch point. Ages
// are grouped into half octaves, which start at a sixteenth of the mean time between two
// uses of an object. The prior for a kind is the estimate over all kinds. The prior for all
// kinds is a hazard inversely proportional to age, so that the policy starts as recency
// weighted by density. The hazard gives the index of a kind at age a, which is the best
// rate of uses that keeping such an object for some time x can give (Gittins 1979):
//
//	index(a) = max_x  P(used before a+x | not before a) / E[time kept until then]
//
// The victim is the object with the lowest index × (Saved / Bytes)^(1+p). The power p, from
// -1 to 1, measures how much more likely dense objects are used than other objects of their
// kind and age (Cox 1972). At -1 only the index counts. An object that was just used may be
// evicted at once, if its next use is far away and the pool is too small for all objects
// that wait for a use. Objects of kinds that are not used again are evicted before others,
// whatever their age. An object that returns with the Key of an evicted object keeps the
// count of uses.
//
// Old observations fade with the number of uses per object. Ages are in moments: each
// passed-in time that differs from the previous one starts a new moment, however much later
// it is. So a pool forgets nothing while it is idle, and the speed of the clock does not
// matter. Uses of an object in one moment count as one. If the passed-in time never
// changes, ages are in uses.
//
// Calls are O(log n). A use moves some ten objects, and at most 64, to the next age, with
// heap operations for each. Every eighth use also updates the indices of a class, in some 2
// µs. Victim looks at the least dense object of every occupied cell, which are a few
// hundred cells of at most 4,998. Memory: 140 bytes per object; 65 bytes per evicted object
// that is remembered; and 10 KB for each of at most 42 classes that occur. The policy
// remembers at most as many evicted objects as there are objects, or 1,024 if that is more.
func NewDefault() Eviction {
	return &learned{at: map[ID]int32{}, ages: newAges(), chances: newChances(), past: newPast()}
}

func (l *learned) Len() int { return len(l.at) }

func (l *learned) Insert(id ID, it Item, now time.Time) {
	if _, held := l.at[id]; held {
		l.Update(id, it)
		l.Touch(id, now)
		return
	}
	l.advance(now)
	i := l.place()
	l.at[id] = i
	l.objects[i] = object{id: id, key: it.Key, density: math.Log(it.density()), used: l.clock, born: l.clock, parent: outside, pos: outside,
		visits: l.past.take(it.Key)}
	l.ages.add(l.objects, i)
	l.adopt(i, it.Extends)
	l.enter(i)
	l.list(i)
}

func (l *learned) place() int32 {
	if n := len(l.free); n > 0 {
		i := l.free[n-1]
		l.free = l.free[:n-1]
		return i
	}
	l.objects = append(l.objects, object{})
	return int32(len(l.objects) - 1)
}

// adopt records the object that i extends. A parent that is unknown counts as none: if it
// is inserted later, the owner calls Update.
func (l *learned) adopt(i int32, parent ID) {
	x := &l.objects[i]
	p, held := l.at[parent]
	if parent == 0 || !held || p == i {
		x.parent = outside
		return
	}
	x.parent, x.since = p, l.objects[p].born
	switch {
	case l.objects[p].born > x.born:
		x.marks |= split
	case x.born == l.clock && l.objects[p].kids == 0:
		x.marks |= tip
	}
	l.count(p, 1)
}

// count adds the parameter by to the number of objects that extend object i.
func (l *learned) count(i int32, by int32) {
	x := &l.objects[i]
	x.kids += by
	if x.kids > 0 {
		x.marks |= extended
	}
	if x.kids > 1 {
		x.marks |= parted
	}
	l.reclass(i)
}

func (l *learned) Update(id ID, it Item) {
	i, held := l.at[id]
	if !held {
		return
	}
	x := &l.objects[i]
	x.key = it.Key
	if !l.extends(x, it.Extends) {
		l.leave(x)
		l.adopt(i, it.Extends)
		l.reclass(i)
	}
	if d := math.Log(it.density()); d != x.density {
		l.chances.reweigh(l.objects, i, d)
	}
}

// extends reports whether x is already counted as extending parent. For a parent that is 0
// or unknown, it reports whether x is counted as extending nothing.
func (l *learned) extends(x *object, parent ID) bool {
	p, held := l.at[parent]
	if parent == 0 || !held {
		return x.parent == outside
	}
	return x.parent == p && x.since == l.objects[p].born
}

// leave records that an object no longer extends its parent. The parent may have been
// removed and its place reused.
func (l *learned) leave(x *object) {
	if p := x.parent; p != outside && l.objects[p].born == x.since {
		l.count(p, -1)
	}
	x.parent = outside
}

func (l *learned) Touch(id ID, now time.Time) {
	i, held := l.at[id]
	if !held || i == l.ages.youngest && now.Equal(l.now) {
		return // the previous use was of the same object at the same time
	}
	l.advance(now)
	x := &l.objects[i]
	listed := x.pos != outside
	again := !l.moved || x.used <= l.moment || l.clock-x.used > step
	if again {
		l.chances.hit(x)
	}
	l.exit(i)
	if again && x.visits < math.MaxUint8 {
		x.visits++
	}
	l.ages.remove(l.objects, i)
	x.used = l.clock
	l.ages.add(l.objects, i)
	l.enter(i)
	if listed {
		l.list(i)
	}
}

func (l *learned) Suspend(id ID) {
	if i, held := l.at[id]; held {
		l.chances.drop(l.objects, i)
	}
}

func (l *learned) Resume(id ID) {
	if i, held := l.at[id]; held && l.objects[i].pos == outside {
		l.list(i)
	}
}

func (l *learned) Remove(id ID) {
	i, held := l.at[id]
	if !held {
		return
	}
	x := &l.objects[i]
	if l.named == (victim{id, true}) {
		l.past.note(x.key, x.visits, len(l.at))
		l.named = victim{}
	}
	l.leave(x)
	l.exit(i)
	l.ages.remove(l.objects, i)
	delete(l.at, id)
	l.objects[i] = object{}
	l.free = append(l.free, i)
}

// advance advances the clock for a use at the time now, and moves objects whose age has
// outgrown their cell.
func (l *learned) advance(now time.Time) {
	if l.begun && !now.Equal(l.now) {
		l.clock += step
		l.moment, l.moved = l.clock, true
	}
	l.begun, l.now = true, now
	l.clock++
	l.ages.advance(l.objects, l.clock, l.grow)
	l.uses++
	if l.uses%learnEvery == 0 {
		// The moving average of the time in which there are as many uses as objects.
		l.span += (float64(l.clock-l.learnt)*float64(len(l.at))/learnEvery - l.span) / 16
		l.learnt = l.clock
		l.ages.raise(int64(min(l.span, longest)))
		l.chances.learn(l.clock, int(l.ages.floor), len(l.at))
	}
}

// reclass moves an object to the cell of its class.
func (l *learned) reclass(i int32) {
	x := &l.objects[i]
	if classOf(x) == x.class {
		return
	}
	listed := x.pos != outside
	l.exit(i)
	l.enter(i)
	if listed {
		l.list(i)
	}
}

// grow moves an object to the cell of a higher age.
func (l *learned) grow(i int32, age uint8) {
	listed := l.objects[i].pos != outside
	l.exit(i)
	l.objects[i].age = age
	l.enter(i)
	if listed {
		l.list(i)
	}
}

// enter adds an object to its cell, and exit removes it. The method list makes an object a
// possible victim.
func (l *learned) enter(i int32) {
	x := &l.objects[i]
	x.class = classOf(x)
	l.chances.join(x, l.clock, 1)
}

func (l *learned) exit(i int32) {
	l.chances.drop(l.objects, i)
	l.chances.join(&l.objects[i], l.clock, -1)
}

func (l *learned) list(i int32) { l.chances.list(l.objects, i) }

// Victim compares the least dense objects of all cells. It looks further into the cells
// only if evictable refuses the best of these objects.
func (l *learned) Victim(evictable func(ID) bool) (ID, bool) {
	l.power = 1 + l.chances.lean.power()
	best := candidate{rank: math.Inf(1), used: math.MaxInt64}
	for _, c := range l.chances.occupied {
		if x := l.candidate(c, 0); x.before(best) {
			best = x
		}
	}
	l.named = victim{}
	if best.cell == nil {
		return 0, false
	}
	if id := l.objects[best.cell.heap[best.pos].object].id; evictable(id) {
		l.named = victim{id, true}
	} else if id, ok := l.next(evictable, best); ok {
		l.named = victim{id, true}
	}
	return l.named.id, l.named.some
}

// next searches all cells in order of rank. It is called after evictable has refused the
// candidate first.
func (l *learned) next(evictable func(ID) bool, first candidate) (ID, bool) {
	f := l.search[:0]
	for _, c := range l.chances.occupied {
		f = push(frontier{}, f, l.candidate(c, 0))
	}
	for len(f) > 0 {
		x := f[0]
		f = take(frontier{}, f, 0)
		if id := l.objects[x.cell.heap[x.pos].object].id; x != first && evictable(id) {
			l.search = f
			return id, true
		}
		for child := 2*x.pos + 1; child <= 2*x.pos+2 && int(child) < len(x.cell.heap); child++ {
			f = push(frontier{}, f, l.candidate(x.cell, child))
		}
	}
	l.search = f
	return 0, false
}

func (l *learned) candidate(c *cell, pos int32) candidate {
	x := c.heap[pos]
	return candidate{rank: c.worth + l.power*x.density, used: l.objects[x.object].used, cell: c, pos: pos}
}
