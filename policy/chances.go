package policy

import (
	"math"
	"math/bits"
)

// Sizes of the statistics, and initial estimates. All estimates are guesses, which observed
// uses outweigh.
const (
	kinds  = 7
	levels = 6 // levels of the number of visits: 0, 1, 2-3, 4-7, 8-15, 16 or more
	// classes is the number of pairs of a kind and a level.
	classes = kinds * levels

	// weight is the weight of a prior estimate, as a number of uses.
	weight = 1
	// chanceAnew is the prior chance that an object is used within a time t, if its last
	// use was a time t ago.
	chanceAnew = 0.5
	// spread is the weight that a use in a neighboring bucket has in the estimate of a
	// bucket.
	spread = 0.3
	// memoryUses is the number of uses after which an observation has faded to 1/e in a
	// small pool. In a large pool this number is memoryHeld times the number of objects.
	memoryUses = 3200
	memoryHeld = 2
)

// classOf returns the class of an object, which combines its kind with its number of
// visits.
func classOf(x *object) uint8 {
	return uint8(kindOf(x)*levels + min(bits.Len8(x.visits), levels-1))
}

func kindOf(x *object) int {
	switch {
	case x.kids > 1:
		return 0 // a branch point
	case x.kids == 1 && x.marks&parted != 0:
		return 1 // was a branch point
	case x.kids == 1:
		return 2 // in the middle of a chain
	case x.marks&extended != 0:
		return 3 // the object that extended it was removed
	case x.marks&split != 0:
		return 4 // cut off by a branch
	case x.marks&tip != 0:
		return 5 // at the end of a chain
	}
	return 6 // with siblings, or on its own
}

// cell describes the objects of one class and one age bucket: a heap of the possible
// victims, ordered by density (savings per byte) with the lowest first, and statistics of
// all objects.
type cell struct {
	heap  []listing
	held  int32 // number of objects, including suspended ones
	place int32 // index in occupied; outside = not in it
	since int64 // the time up to which the field exposed counts
	// hits is the number of uses, and exposed the sum over objects of the ticks that each
	// spent in the cell. Both lose weight with later uses.
	hits, exposed float64
	index, worth  float64 // expected uses per tick (see NewDefault), and the logarithm of index
	dense, spread float64 // sum of the densities of all objects, and sum of their squares
}

// leastHeap is a heap capacity, in objects. Heaps up to this capacity are never shrunk.
const leastHeap = 64

// listing stores the density with the object, so that a heap can be ordered without reading
// the objects.
type listing struct {
	density float64
	object  int32
}

type chances struct {
	rows     [classes]*[buckets]cell
	faded    [classes]int // value of steps when the weights of the class were last reduced
	occupied []*cell      // cells with possible victims
	steps    int          // calls of learn
	turn     int          // the class updated last
	floor    int          // the lowest age bucket in use
	known    int          // lowest age bucket that no object has reached
	general  rates
	lean     lean
	ofKind   [kinds]rates
}

// rates has a hazard for each bucket: the chance of a use per tick.
type rates [buckets]float64

func newChances() chances { return chances{known: int(bucketOf(learnEvery*step)) + 1} }

func (c *chances) cell(x *object) *cell { return &c.row(int(x.class))[x.age] }

func (c *chances) row(class int) *[buckets]cell {
	if c.rows[class] == nil {
		c.rows[class] = new([buckets]cell)
		for b := range c.rows[class] {
			c.rows[class][b].place = outside
		}
		c.faded[class] = c.steps
		c.solve(class)
	}
	return c.rows[class]
}

// join adds an object to its cell (by = 1) or removes it from the cell (by = -1).
func (c *chances) join(x *object, clock int64, by int32) {
	a := c.cell(x)
	a.flush(clock)
	a.held += by
	a.dense += float64(by) * x.density
	a.spread += float64(by) * x.density * x.density
	if a.held == 0 {
		a.dense, a.spread = 0, 0 // removes rounding errors
	}
}

func (a *cell) flush(clock int64) {
	a.exposed += float64(a.held) * float64(clock-a.since)
	a.since = clock
}

func (c *chances) hit(x *object) {
	a := c.cell(x)
	a.hits++
	c.lean.note(x.density, a.dense/float64(a.held), a.spread/float64(a.held))
}

// learn updates the estimates of one class. Successive calls go through all classes.
func (c *chances) learn(clock int64, floor, held int) {
	c.steps++
	last := c.floor
	c.raise(floor, clock)
	c.known = max(floor, int(bucketOf(clock))) + 1 // no object is older
	if c.floor < last {                            // nothing was solved below the old floor
		c.generalise()
		c.solveAll()
	}
	for range classes {
		if c.turn = (c.turn + 1) % classes; c.turn == 0 {
			c.generalise()
		}
		if c.rows[c.turn] != nil {
			break
		}
	}
	memory := float64(max(memoryUses, memoryHeld*held)) / learnEvery
	c.lean.fade(math.Exp(-1 / memory))
	row := c.rows[c.turn]
	if row == nil {
		return
	}
	fade := math.Exp(-float64(c.steps-c.faded[c.turn]) / memory)
	c.faded[c.turn] = c.steps
	for b := range row[:c.known] {
		row[b].flush(clock)
		row[b].hits *= fade
		row[b].exposed *= fade
	}
	c.solve(c.turn)
}

// raise sets the lowest age bucket in use and adds the statistics of all lower buckets to
// it.
func (c *chances) raise(floor int, clock int64) {
	for b := c.floor; b < floor; b++ {
		for _, row := range c.rows {
			if row == nil {
				continue
			}
			row[b].flush(clock)
			row[floor].hits += row[b].hits
			row[floor].exposed += row[b].exposed
			row[b].hits, row[b].exposed = 0, 0
		}
	}
	c.floor = floor
}

// generalise computes the hazards of each kind and of all kinds together.
func (c *chances) generalise() {
	var allHits, allExposed rates
	var hits, exposed [kinds]rates
	for class, row := range c.rows {
		if row == nil {
			continue
		}
		kind := class / levels
		for b := range row[:c.known] {
			hits[kind][b] += row[b].hits
			exposed[kind][b] += row[b].exposed
			allHits[b] += row[b].hits
			allExposed[b] += row[b].exposed
		}
	}
	for b := c.floor; b < c.horizon(); b++ {
		c.general[b] = c.hazard(&allHits, &allExposed, b, c.anew(b))
		for kind := range c.ofKind {
			c.ofKind[kind][b] = c.hazard(&hits[kind], &exposed[kind], b, c.general[b])
		}
	}
}

// horizon returns the first bucket that the estimates ignore. It begins at four times the
// highest age of any object.
func (c *chances) horizon() int { return min(c.known+2*perOctave, buckets) }

// anew returns the prior hazard of a bucket.
func (c *chances) anew(b int) float64 { return 2 * chanceAnew / (c.start(b) + bucketStart(b+1)) }

func (c *chances) start(b int) float64 {
	if b <= c.floor {
		return 0
	}
	return bucketStart(b)
}

// hazard returns the chance of a use per tick in bucket b. It combines a prior with the
// observations in b and its neighbors. Observations of a neighbor are scaled as if hazards
// were inversely proportional to age.
func (c *chances) hazard(hits, exposed *rates, b int, prior float64) float64 {
	h, e := 0.0, 0.0
	for n := max(b-2, c.floor); n <= min(b+2, c.known-1); n++ {
		h += spreads[n-b+2] * hits[n]
		e += spreads[n-b+2] * scales[n-b+2] * exposed[n]
	}
	return (h + weight) / (e + weight/prior)
}

var (
	spreads = [5]float64{spread * spread, spread, 1, spread, spread * spread}
	scales  = [5]float64{2, math.Sqrt2, 1, math.Sqrt2 / 2, 0.5}
)

// solve computes the index of each age bucket of a class.
func (c *chances) solve(class int) {
	row := c.rows[class]
	var hits, exposed rates
	for b := range row[:c.known] {
		hits[b], exposed[b] = row[b].hits, row[b].exposed
	}
	var hull [buckets]stretch
	top := 0
	for b := c.horizon() - 1; b >= c.floor; b-- {
		prior := c.ofKind[class/levels][b]
		if prior == 0 { // generalise has not run yet
			prior = c.anew(b)
		}
		s := within(c.hazard(&hits, &exposed, b, prior), bucketStart(b+1)-c.start(b))
		for top > 0 && hull[top-1].uses*s.time >= s.uses*hull[top-1].time {
			top--
			s = s.then(hull[top])
		}
		hull[top] = s
		top++
		row[b].index = s.uses / s.time
		row[b].worth = math.Log(row[b].index)
	}
}

func (c *chances) solveAll() {
	for class, row := range c.rows {
		if row != nil {
			c.solve(class)
		}
	}
}

// stretch describes an object that is kept from one age to a later one: the chance that it
// is used in between, the mean time until this use or the later age, and the chance that it
// is not used.
type stretch struct{ uses, time, unused float64 }

func within(hazard, width float64) stretch {
	x := hazard * width
	if x < 1e-9 {
		return stretch{x, width, 1 - x}
	}
	uses := -math.Expm1(-x)
	return stretch{uses, uses / hazard, 1 - uses}
}

func (s stretch) then(t stretch) stretch {
	return stretch{s.uses + s.unused*t.uses, s.time + s.unused*t.time, s.unused * t.unused}
}

// list makes an object a possible victim.
func (c *chances) list(objects []object, i int32) {
	a := c.cell(&objects[i])
	if len(a.heap) == 0 {
		a.place = int32(len(c.occupied))
		c.occupied = append(c.occupied, a)
	}
	a.heap = push(listings(objects), a.heap, listing{objects[i].density, i})
}

// drop removes an object from the possible victims.
func (c *chances) drop(objects []object, i int32) {
	pos := objects[i].pos
	if pos == outside {
		return
	}
	a := c.cell(&objects[i])
	a.heap = take(listings(objects), a.heap, pos)
	if cap(a.heap) > max(leastHeap, 4*len(a.heap)) {
		a.heap = append(make([]listing, 0, 2*len(a.heap)), a.heap...)
	}
	objects[i].pos = outside
	if len(a.heap) == 0 {
		end := c.occupied[len(c.occupied)-1]
		c.occupied[a.place] = end
		end.place = a.place
		c.occupied = c.occupied[:len(c.occupied)-1]
		a.place = outside
	}
}

// reweigh sets the density of an object.
func (c *chances) reweigh(objects []object, i int32, density float64) {
	x := &objects[i]
	a := c.cell(x)
	a.dense += density - x.density
	a.spread += density*density - x.density*x.density
	x.density = density
	if pos := x.pos; pos != outside {
		a.heap[pos].density = density
		fix(listings(objects), a.heap, pos)
	}
}

// listings orders the heap of a cell.
type listings []object

func (l listings) before(a, b listing) bool {
	return a.density < b.density || a.density == b.density && l[a.object].used < l[b.object].used
}

func (l listings) moved(x listing, pos int32) { l[x.object].pos = pos }
