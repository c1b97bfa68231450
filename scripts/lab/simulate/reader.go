package simulate

import (
	"time"

	"github.com/spliced-kv/spliced/tiering/peer/index"
)

// The modelled bytes of an exchange in addition to the delta. The request is HTTP/1.1 with a
// position as its body. Each direction has a TLS record, IP and TCP headers, and an
// acknowledgement. Beyond one packet, each further packet costs another 52 bytes and half an
// acknowledgement.
const (
	requestBytes  = 260 + 22 + 52 + 52
	responseBytes = 150 + 22 + 52 + 52
	segmentBytes  = 1448
	packetBytes   = 52 + 26
	timeout       = time.Second // of a request to a peer that is down
)

func responseSize(delta int) int64 {
	return int64(responseBytes + delta + (delta+responseBytes)/segmentBytes*packetBytes)
}

// reader is a sampled node, which keeps an index of the sets of all other nodes.
type reader struct {
	c       *cluster
	id      int
	index   *index.Index
	round   int           // incremented at each start of the node; answers to earlier rounds are ignored
	steady  bool          // it never restarts, and counts for figures.everywhere
	linkAt  time.Duration // time until which its link is busy
	active  int           // requests in flight while it catches up
	waiting []int         // peers whose sets it has not read completely and is not reading now
	catchUp catchUp
	traffic traffic
	apply   time.Duration // time of this machine spent in Apply
	changes int64         // applied
}

// traffic is the bytes that a reader sent and received for its requests.
type traffic struct {
	exchanges      int64
	sent, received int64
	answers        int64 // bytes of the deltas alone
}

// catchUp is the progress of a node that started empty.
type catchUp struct {
	from, half, most, all time.Duration // start, and the times after which 50 %, 99 % and all of the keys were known
	startBytes, bytes     int64
	goal                  int64
	running               bool
}

func (c *cluster) addReader(id int, steady bool) *reader {
	r := &reader{c: c, id: id, steady: steady}
	c.readers = append(c.readers, r)
	r.begin()
	return r
}

// begin starts the node without an index. The node first reads all sets completely,
// Options.Parallel at a time, and then asks each peer once per interval.
func (r *reader) begin() {
	c := r.c
	r.round++
	r.index = index.New(index.Config{Seed: uint64(r.id)})
	r.waiting, r.active = r.waiting[:0], 0
	r.catchUp = catchUp{from: c.now, startBytes: r.traffic.received, running: true}
	for p := range c.nodes {
		if p != r.id {
			r.waiting = append(r.waiting, p)
			r.catchUp.goal += int64(len(c.nodes[p].held))
		}
	}
	c.rand.Shuffle(len(r.waiting), func(i, j int) { r.waiting[i], r.waiting[j] = r.waiting[j], r.waiting[i] })
	for range c.o.Parallel {
		r.nextWaiting()
	}
}

func (r *reader) nextWaiting() {
	if len(r.waiting) > 0 {
		p := r.waiting[0]
		r.waiting = r.waiting[1:]
		r.active++
		r.ask(p, r.round, true)
	}
}

func (r *reader) interval() time.Duration {
	d := index.Interval(len(r.c.nodes) - 1)
	return d - d/20 + time.Duration(r.c.rand.Int64N(int64(d)/10+1))
}

// ask sends one request to peer p. The answer has the peer's state at the time when the request
// arrives.
func (r *reader) ask(p, round int, catching bool) {
	c := r.c
	if round != r.round || c.nodes[r.id].down {
		return
	}
	position := r.index.Position(index.Node(p))
	r.traffic.exchanges++
	r.traffic.sent += requestBytes
	c.after(c.trip(), func() {
		if c.nodes[p].down {
			c.after(timeout, func() { r.again(p, round, catching, false) })
			return
		}
		delta := c.nodes[p].own.Delta(nil, position)
		size := responseSize(len(delta))
		back := c.trip()
		if c.rand.Float64() < c.o.Loss {
			back += 200 * time.Millisecond
		}
		r.linkAt = max(r.linkAt, c.now+back) + time.Duration(float64(size)/c.o.Link*1e9)
		c.after(r.linkAt-c.now, func() { r.learn(p, round, catching, delta) })
	})
}

func (r *reader) learn(p, round int, catching bool, delta []byte) {
	c := r.c
	if round != r.round || c.nodes[r.id].down {
		return
	}
	r.traffic.received += responseSize(len(delta))
	r.traffic.answers += int64(len(delta))
	before := r.index.Position(index.Node(p))
	started := time.Now()
	more, err := r.index.Apply(index.Node(p), delta)
	r.apply += time.Since(started)
	if err != nil {
		c.figures.errors++
		more = false
	}
	r.noteVisible(p, before)
	r.noteCaughtUp()
	r.again(p, round, catching, more)
}

// again sends the next request to the same peer: at once if the peer has more data, otherwise
// after the interval.
func (r *reader) again(p, round int, catching, more bool) {
	if round != r.round {
		return
	}
	if more {
		r.ask(p, round, catching)
		return
	}
	if catching {
		r.active--
		r.nextWaiting()
	}
	r.c.after(r.interval(), func() { r.ask(p, round, false) })
}

// noteVisible records that the reader now knows more changes of peer p. before is the position
// up to which it knew the changes earlier.
func (r *reader) noteVisible(p int, before index.Position) {
	c, n := r.c, &r.c.nodes[p]
	now := r.index.Position(index.Node(p))
	if now.Incarnation != n.own.Incarnation() || now.Cursor != 0 {
		return
	}
	from := n.born
	if before.Incarnation == now.Incarnation && before.Cursor == 0 {
		from = max(from, before.Version)
		r.changes += int64(now.Version - before.Version)
	}
	if !r.steady {
		return
	}
	for v := from; v < now.Version; v++ {
		ch := &n.changed[v-n.born]
		if ch.seen++; !c.count || !ch.added || ch.at < c.figures.since {
			continue
		}
		c.figures.visible.add(c.now - ch.at)
		if int(ch.seen) == c.o.Sampled {
			c.figures.everywhere.add(c.now - ch.at)
		}
	}
}

func (r *reader) noteCaughtUp() {
	u := &r.catchUp
	if !u.running {
		return
	}
	known := r.index.Stats().Complete
	all := len(r.c.nodes) - 1
	took := r.c.now - u.from
	for _, at := range []struct {
		when *time.Duration
		n    int
	}{{&u.half, (all + 1) / 2}, {&u.most, (all*99 + 99) / 100}, {&u.all, all}} {
		if *at.when == 0 && known >= at.n {
			*at.when = took
		}
	}
	if known == all {
		u.running = false
		u.bytes = r.traffic.received - u.startBytes
	}
}
