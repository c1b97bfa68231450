package simulate

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"

	"github.com/spliced-kv/spliced/tiering/peer/index"
)

// node is one member: its segments, and when they changed.
type node struct {
	own  *index.Own
	held []uint64 // origins of its segments (see tagOf), unordered
	born uint64   // version of its set at the start of this incarnation
	// changed has an entry for each version of the set after the version in born: the time of the
	// change, and how many of the sampled nodes that never restart know it.
	changed []change
	down    bool
}

type change struct {
	at    time.Duration
	tag   uint64
	added bool
	seen  uint8
}

// cluster is all nodes and the time.
type cluster struct {
	o       Options
	rand    *rand.Rand
	now     time.Duration
	end     time.Duration
	events  events
	seq     uint64
	nodes   []node
	readers []*reader
	counter uint32
	next    time.Duration // time of the next change
	gone    []departed    // ring of recently removed segments
	goneAt  int
	count   bool // figures are being recorded
	figures figures
}

type departed struct {
	tag uint64
	at  time.Duration
}

// tagOf returns the tag of the segment with the given origin. An origin is the number of the
// node that first made the segment (upper 32 bits) and a counter (lower 32 bits).
func (c *cluster) tagOf(origin uint64) uint64 {
	z := origin + c.o.Seed*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func newCluster(o Options) *cluster {
	c := &cluster{o: o, rand: rand.New(rand.NewPCG(o.Seed, 16)), nodes: make([]node, o.Nodes), gone: make([]departed, 1<<20)}
	for i := range c.nodes {
		n := &c.nodes[i]
		n.own = index.NewOwn(1)
		for range o.Keys {
			c.make(i)
		}
		n.born = n.own.Version()
		n.changed = nil
	}
	c.next = c.untilChange()
	return c
}

// untilChange draws the time until the next change. The changes of all nodes together are one
// Poisson process.
func (c *cluster) untilChange() time.Duration {
	perSecond := 2 * c.o.Churn / 60 * float64(c.o.Keys) * float64(c.o.Nodes)
	if perSecond == 0 {
		return math.MaxInt64
	}
	return time.Duration(c.rand.ExpFloat64() / perSecond * 1e9)
}

// change picks a node at random. It removes a segment if the node has more than Options.Keys
// segments, and otherwise adds one. A node that is down does not change.
func (c *cluster) change() {
	i := c.rand.IntN(len(c.nodes))
	if n := &c.nodes[i]; n.down {
		return
	} else if len(n.held) > c.o.Keys {
		c.drop(i, c.rand.IntN(len(n.held)))
		return
	}
	c.make(i)
}

// make adds a new segment to a node, or a copy of another node's.
func (c *cluster) make(i int) {
	n := &c.nodes[i]
	c.counter++
	origin := uint64(i)<<32 | uint64(c.counter)
	if from := &c.nodes[c.rand.IntN(len(c.nodes))]; len(from.held) > 0 && c.rand.Float64() < c.o.Shared {
		origin = from.held[c.rand.IntN(len(from.held))]
	}
	before := n.own.Version()
	if n.own.Add(c.tagOf(origin)); n.own.Version() == before {
		return // the node already has it
	}
	n.held = append(n.held, origin)
	n.changed = append(n.changed, change{at: c.now, tag: c.tagOf(origin), added: true})
}

func (c *cluster) drop(i, at int) {
	n := &c.nodes[i]
	tag := c.tagOf(n.held[at])
	n.held[at] = n.held[len(n.held)-1]
	n.held = n.held[:len(n.held)-1]
	before := n.own.Version()
	if n.own.Remove(tag); n.own.Version() > before {
		n.changed = append(n.changed, change{at: c.now, tag: tag})
	}
	c.gone[c.goneAt%len(c.gone)] = departed{tag, c.now} // at 17,000 removals per second, the ring covers the last minute
	c.goneAt++
}

// restart stops a node and restarts it with the contents of its disk.
func (c *cluster) restart(i int) {
	n := &c.nodes[i]
	n.down = true
	c.after(c.o.Down, func() {
		n.own, n.down = index.NewOwn(uint64(c.now)+2), false
		kept := n.held[:0]
		for _, origin := range n.held {
			if c.rand.Float64() >= c.o.Lost {
				kept = append(kept, origin)
				n.own.Add(c.tagOf(origin))
			}
		}
		n.held, n.born, n.changed = kept, n.own.Version(), nil
	})
}

// holds is the oracle. It reports whether a node really has a segment and can send it now.
func (c *cluster) holds(n index.Node, tag uint64) bool {
	return !c.nodes[n].down && c.nodes[n].own.Has(tag)
}

// run advances the simulation to a time.
func (c *cluster) run(until time.Duration) {
	for {
		at := c.next
		if len(c.events) > 0 && c.events[0].at < at {
			at = c.events[0].at
		}
		c.now = min(at, until)
		if c.o.Progress != nil {
			c.o.Progress(min(1, float64(c.now)/float64(c.end)))
		}
		if at > until {
			return
		}
		if len(c.events) > 0 && c.events[0].at == at {
			heap.Pop(&c.events).(event).do()
			continue
		}
		c.change()
		c.next = c.now + c.untilChange()
	}
}

func (c *cluster) after(d time.Duration, do func()) {
	c.seq++
	heap.Push(&c.events, event{c.now + d, c.seq, do})
}

// trip draws the one-way time through the network. It is log-normal; its p99.9 is about ten
// times the median.
func (c *cluster) trip() time.Duration {
	return time.Duration(float64(c.o.Latency) * math.Exp(0.75*c.rand.NormFloat64()))
}

// event is an event at a time; events at the same time run in order of creation.
type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(v any)   { *e = append(*e, v.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	(*e)[len(*e)-1] = event{}
	*e = (*e)[:len(*e)-1]
	return last
}
