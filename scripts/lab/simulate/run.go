package simulate

import (
	"context"
	"fmt"
	"math"
	"time"
)

// perSecond is the number of lookups of each kind by a sampled node per second.
const perSecond = 400

// Run simulates a cluster in three parts. First, the sampled nodes start without an index and
// read all sets. Then segments are added and removed. In the third part, segments are still
// added and removed, and a share of the nodes restart, including one with an index. Run uses one
// core, and memory for all sets and indexes: about 2.5 MB per node, and 3.3 bytes for each key
// of each index.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	started := time.Now()
	c := newCluster(o)
	for id := range o.Sampled {
		c.addReader(id, true)
	}
	c.addReader(o.Sampled, false)
	report := &Report{Nodes: o.Nodes, Segments: o.Keys, Sampled: o.Sampled, Churn: o.Churn, Seed: o.Seed, Sets: c.setBytes()}
	c.end = 2*o.Duration + 30*time.Second // a guess, for the progress

	for c.catchingUp() {
		if err := c.step(ctx, time.Second); err != nil {
			return nil, err
		}
		if c.now > 10*time.Minute {
			return nil, fmt.Errorf("after %v sets are still being read", c.now)
		}
	}
	report.First = c.catchUpOf(c.readers[o.Sampled])
	settle := 2 * c.readers[0].interval()
	c.end = c.now + settle + 2*o.Duration/time.Second*time.Second
	if err := c.step(ctx, settle); err != nil {
		return nil, err
	}

	part, err := c.part(ctx, "churn", nil)
	if err != nil {
		return nil, err
	}
	report.Parts = append(report.Parts, part)
	part, err = c.part(ctx, "restarts", func() { c.restarts(report) })
	if err != nil {
		return nil, err
	}
	report.Parts = append(report.Parts, part)
	report.Restarted = c.catchUpOf(c.readers[o.Sampled])
	report.Seconds = time.Since(started).Seconds()
	return report, nil
}

func (c *cluster) catchingUp() bool {
	for _, r := range c.readers {
		if r.catchUp.running {
			return true
		}
	}
	return false
}

func (c *cluster) step(ctx context.Context, d time.Duration) error {
	c.run(c.now + d)
	return ctx.Err()
}

// part simulates the duration and returns the figures.
func (c *cluster) part(ctx context.Context, name string, first func()) (Part, error) {
	c.figures = figures{since: c.now}
	c.count = true
	before := make([]traffic, len(c.readers))
	for i, r := range c.readers {
		before[i] = r.traffic
		r.apply, r.changes = 0, 0
	}
	if first != nil {
		first()
	}
	for range int(c.o.Duration / time.Second) {
		if err := c.step(ctx, time.Second); err != nil {
			return Part{}, err
		}
		c.questions(perSecond)
		for _, r := range c.readers {
			c.figures.indexBytes = max(c.figures.indexBytes, r.index.Stats().Bytes)
		}
	}
	c.count = false
	return c.summary(name, before), nil
}

// restarts restarts nodes one after another during half of the duration, so that the last ones
// are back before the end. The first of them has the only reader that is not steady, which means
// that it restarts.
func (c *cluster) restarts(report *Report) {
	n := min(int(math.Ceil(c.o.Restart*float64(c.o.Nodes))), c.o.Nodes-c.o.Sampled)
	if n == 0 {
		return
	}
	span := c.o.Duration / 2
	for i := range n {
		id := c.o.Sampled + i
		c.after(span*time.Duration(i)/time.Duration(n), func() { c.restart(id) })
	}
	r := c.readers[c.o.Sampled]
	// This event comes just after the one that restarts the node.
	c.after(c.o.Down+time.Microsecond, func() {
		r.begin()
		for _, s := range []int{0, 1, 2, 5, 10, 15, 20, 30, 45, 60} {
			c.after(time.Duration(s)*time.Second+100*time.Millisecond, func() {
				report.Use = append(report.Use, c.use(r, float64(s)+0.1))
			})
		}
	})
}

// use returns the share of existing segments for which a reader that started empty finds a
// holder. It counts twice: once with the reader's own index alone, and once with one neighbour,
// which the reader asks if its own index leads to no holder.
func (c *cluster) use(r *reader, seconds float64) Use {
	var alone, neighbour answers
	for range 2000 {
		tag, ok := c.anyHeld(r.id, false)
		if !ok {
			continue
		}
		before := alone.hits
		if c.look(r, &alone, tag, true); alone.hits == before {
			c.look(c.readers[0], &neighbour, tag, true)
		}
	}
	return Use{Seconds: seconds, Alone: share(alone.hits, alone.asked), Neighbour: share(alone.hits+neighbour.hits, alone.asked)}
}

func (c *cluster) setBytes() int64 {
	var n int64
	for i := range c.nodes {
		n += c.nodes[i].own.Bytes()
	}
	return n / int64(len(c.nodes))
}
