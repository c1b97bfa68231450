package parallel

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/schedule"
	"github.com/spliced-kv/spliced/tiering/peer"
)

// asked is a node that could help with a plan, and its offer.
type asked struct {
	node
	name  string
	local bool
	offer offer
	ok    bool
}

// draft is a plan that has not started yet.
type draft struct {
	work    *Work
	q       *PlanQuery
	profile *profile.Profile
	model   *cost.Model
	nodes   []asked
	held    []bool // for each row: is it cached on this node
	at      []int  // for each row: index of the node to fetch it from; -1 = none
	rows    []int  // rows that are planned
	extra   []int  // rows that are too long to be sent; the requesting engine computes them
	spread  spread
}

// Plan decides which engine computes which row, and starts the jobs of the other engines. It waits
// for offers, for at most offerTime and half of the context's time. An error that wraps
// tier.ErrInvalid means that the query can never succeed. Any other obstacle is the Reason in the
// answer: there is no plan, and the caller computes all rows.
func (w *Work) Plan(ctx context.Context, q *PlanQuery) (PlanAnswer, error) {
	p, err := w.check(q)
	if err != nil {
		return PlanAnswer{}, err
	}
	model, err := w.cfg.Store.CostModel(q.Scope.Profile)
	if err != nil {
		return PlanAnswer{}, err
	}
	d := &draft{work: w, q: q, profile: p, model: model, held: w.holds(q.Scope, keysOf(q.Segments))}
	answer := d.plan(ctx)
	if answer.Reason == Begun {
		w.counts.Plans.Add(1)
	} else {
		w.counts.Alone[answer.Reason].Add(1)
	}
	return answer, nil
}

func keysOf(list []Segment) []profile.SegmentKey {
	keys := make([]profile.SegmentKey, len(list))
	for i := range list {
		keys[i] = list[i].Key
	}
	return keys
}

func (d *draft) plan(ctx context.Context) PlanAnswer {
	if d.q.Off {
		return d.alone(Off)
	}
	if !slices.Contains(d.held, false) {
		return d.alone(Here)
	}
	d.find()
	if len(d.nodes) == 0 {
		if !d.work.Allows(d.q.Scope.Tenant) {
			return d.alone(NotAllowed)
		}
		return d.alone(NoWorkers)
	}
	d.ask(ctx)
	d.sort()
	chosen, ms, ok := d.spread.plan()
	fetched := slices.ContainsFunc(d.at, func(n int) bool { return n >= 0 })
	switch {
	case len(d.spread.candidates) == 1 && !fetched:
		return d.alone(NoWorkers)
	case !ok && !fetched:
		return d.alone(NoGain)
	case !ok:
		home := d.spread
		home.candidates = home.candidates[:1]
		chosen, ms, _ = home.plan()
	}
	return d.begin(&chosen, ms)
}

// find lists the nodes that have engines for this scope, beginning with this node.
func (d *draft) find() {
	w, s := d.work, d.q.Scope
	if len(w.board.engines(s, d.q.Conn, primersOf(d.q.Segments), w.cfg.Now())) > 0 {
		d.nodes = append(d.nodes, asked{node: here{w, d.q.Conn, s}, local: true})
	}
	c := w.cfg.Cluster
	if c == nil {
		return
	}
	if len(d.nodes) > 0 {
		d.nodes[0].name = c.Self
	}
	if !w.Allows(s.Tenant) {
		return
	}
	want := peer.Workers(s.Fingerprint, s.Tenant)
	var found [maxNodes]peer.Node
	for _, number := range found[:c.Peers.Holders(&want, found[:])] {
		if name, ok := c.Name(number); ok {
			d.nodes = append(d.nodes, asked{node: member{w, number}, name: name})
		}
	}
}

// ask queries all nodes at once, and continues with the nodes that answer in time. Late answers are
// still received, so that their connections are open the next time.
func (d *draft) ask(ctx context.Context) {
	within := cmp.Or(d.work.cfg.Offers, offerTime)
	if end, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(end)/2)
	}
	q := offerRequest{scope: d.tag(), keys: keysOf(d.q.Segments), primers: primersOf(d.q.Segments)}
	type answer struct {
		at int
		offer
		err error
	}
	answers := make(chan answer, len(d.nodes))
	for i := range d.nodes {
		n := d.nodes[i].node
		started := d.work.start(func() {
			ctx, cancel := context.WithTimeout(d.work.ctx, connectTime)
			defer cancel()
			o, err := n.offer(ctx, &q)
			answers <- answer{i, o, err}
		})
		if !started {
			answers <- answer{i, offer{}, context.Canceled}
		}
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	for range d.nodes {
		select {
		case a := <-answers:
			n := &d.nodes[a.at]
			n.offer, n.ok = a.offer, a.err == nil && len(a.held) == len(q.keys)
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		break
	}
	d.nodes = slices.DeleteFunc(d.nodes, func(n asked) bool { return !n.ok })
}

func (d *draft) tag() scopeTag {
	t := scopeTag{fingerprint: d.q.Scope.Fingerprint}
	if c := d.work.cfg.Cluster; c != nil {
		t.tenant, _ = c.Names.TenantTag(d.q.Scope.Tenant)
	}
	return t
}

// sort selects the rows to plan. It leaves out rows that are cached here, rows that can be fetched
// from a node sooner than computed, and rows that are too long to be sent.
func (d *draft) sort() {
	d.spread = spread{candidates: []candidate{{
		node: -1, prefill: d.model.Prefill(), queued: millis(d.q.Queued), pieces: d.q.Pieces, local: true,
	}}}
	for n := range d.nodes {
		a := &d.nodes[n]
		d.spread.links = append(d.spread.links, d.link(a))
		for _, e := range a.offer.engines {
			d.spread.candidates = append(d.spread.candidates, candidate{
				node: n, engine: e.id, prefill: a.offer.prefill, queued: e.queued, pieces: e.pieces, local: a.local,
			})
		}
	}
	d.spread.handOver = d.handOver()
	d.at = make([]int, len(d.q.Segments))
	for i := range d.q.Segments {
		n := len(d.q.Segments[i].IDs)
		d.at[i] = -1
		if d.held[i] {
			continue
		}
		if at := slices.IndexFunc(d.nodes, func(a asked) bool { return a.offer.held[i] && !a.local }); at >= 0 && d.bring(at, i) < d.model.Prefill().Millis(0, n) {
			d.at[i] = at
			continue
		}
		if n > MaxJobTokens {
			d.extra = append(d.extra, i)
			d.spread.extra += d.model.Prefill().Millis(0, n)
			continue
		}
		d.rows = append(d.rows, i)
		d.spread.tokens = append(d.spread.tokens, n)
	}
}

// link returns the cost of fetching segments from a node, in milliseconds: measured if possible.
func (d *draft) link(a *asked) link {
	m, ok := a.node.(member)
	if !ok {
		return link{}
	}
	prior := d.model.Link(cost.JobLoadPeer)
	l, perByte := link{latency: prior.Fixed}, prior.PerByte
	if rtt, rate := d.work.cfg.Cluster.Peers.Reach(m.number); rate > 0 {
		l.latency, perByte = 2*millis(rtt), 1e3/rate // one round trip for the result and one for the lookup
	}
	shape := &d.model.Shape
	l.each, l.perToken = perByte*float64(shape.SegmentBytes), perByte*float64(shape.RowBytes(1))
	return l
}

// handOver returns a link as slow as the slowest one, since pieces go from any node to any other.
func (d *draft) handOver() (l link) {
	for _, x := range d.spread.links {
		l = link{max(l.latency, 2*x.latency), max(l.each, x.each), max(l.perToken, x.perToken)}
	}
	return l
}

func (d *draft) bring(node, row int) float64 {
	l := d.spread.links[node]
	return l.latency + l.each + l.perToken*float64(len(d.q.Segments[row].IDs))
}

// alone returns the answer without a plan: the requesting engine computes all rows that are not
// cached here.
func (d *draft) alone(why Reason) PlanAnswer {
	a := PlanAnswer{Reason: why, Workers: make([]uint32, len(d.held)), Rows: make([]time.Duration, len(d.held))}
	at := millis(d.q.Queued)
	for i := range d.held {
		if !d.held[i] {
			n := len(d.q.Segments[i].IDs)
			at += d.model.Prefill().Millis(0, n)
			a.Rows[i] = duration(at)
			a.Own = append(a.Own, OwnWork{i, 0, n})
		}
	}
	a.Expected, a.Alone = duration(at), duration(at)
	return a
}

// begin creates the plan and starts the jobs of the other engines.
func (d *draft) begin(chosen *schedule.Plan, alone float64) PlanAnswer {
	w, q := d.work, d.q
	now := w.cfg.Now()
	a := PlanAnswer{Workers: make([]uint32, len(q.Segments)), Rows: make([]time.Duration, len(q.Segments)), Alone: duration(alone), Combine: d.combine()}
	within := q.Within
	if within <= 0 {
		within = DefaultWithin
	}
	p := &plan{
		work: w, conn: q.Conn, scope: q.Scope, tag: d.tag(), until: now.Add(min(within, MaxWithin)), wake: make(chan struct{}, 1),
		rows: make([]row, len(q.Segments)), followed: make([]bool, len(d.nodes)),
	}
	for _, n := range d.nodes {
		p.nodes, p.names = append(p.nodes, n.node), append(p.names, n.name)
	}
	for i := range p.rows {
		p.rows[i] = row{Segment: q.Segments[i], last: share{node: -1}, first: share{node: -1}, alone: d.model.Prefill().Millis(0, len(q.Segments[i].IDs))}
	}
	expected := millis(0)
	expect := func(i int, ms float64) {
		a.Rows[i], expected = duration(ms), max(expected, ms)
		p.rows[i].late = earlier(now.Add(lateAfter(ms)), p.until)
	}
	total := 0.0
	for i, n := range d.at {
		if n >= 0 {
			total += d.bring(n, i)
			p.rows[i].state, p.rows[i].last = coming, share{node: n}
			a.Workers[i] = uint32(len(d.spread.candidates) + n)
			expect(i, total)
			p.extend(&p.rows[i], now)
		}
	}
	order := d.assign(p, chosen, &a, expect)
	a.Expected = duration(expected)
	room, free := d.room(p)
	if why := w.admit(p, room, free); why != Begun {
		return d.alone(why)
	}
	a.Plan = p.id
	for i, n := range d.at {
		if n >= 0 {
			p.tell(q.Segments[i].Key, n)
		}
	}
	p.begin(order)
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// assign stores the chosen schedule in a plan and in its answer. It returns the pieces to send to
// other engines.
func (d *draft) assign(p *plan, chosen *schedule.Plan, a *PlanAnswer, expect func(int, float64)) (order []sending) {
	at := millis(d.q.Queued)
	for _, i := range d.extra {
		n := len(d.q.Segments[i].IDs)
		at += d.model.Prefill().Millis(0, n)
		expect(i, at)
		a.Own = append(a.Own, OwnWork{i, 0, n})
	}
	for k, i := range d.rows {
		expect(i, chosen.Arrive[k])
	}
	salt := d.work.tenants[d.q.Scope.Tenant].Salt
	for c, list := range chosen.Workers {
		by := share{d.spread.candidates[c].node, d.spread.candidates[c].engine}
		for _, x := range list {
			i := d.rows[x.Segment]
			r := &p.rows[i]
			whole := x.End == len(r.IDs)
			if whole {
				r.last, a.Workers[i] = by, uint32(c)
			} else {
				r.first, r.cut = by, x.End
				r.left, _ = key(d.profile, salt, r.Spec.Left(x.End), r.IDs[:x.End])
			}
			switch {
			case c == 0:
				a.Own = append(a.Own, OwnWork{i, x.Begin, x.End})
			case x.Begin == 0:
				order = append(order, sending{share: by, row: i, end: x.End})
			}
			if c > 0 || x.Begin > 0 {
				r.state = open
			}
		}
	}
	return order
}

// room returns the bytes that the incoming rows need here, and the bytes that are free. It also
// records the need of each row in the row.
func (d *draft) room(p *plan) (need, free int64) {
	for i := range p.rows {
		r := &p.rows[i]
		spec := r.Spec
		switch {
		case r.state == own:
			continue
		case r.cut > 0 && r.last.node < 0:
			spec = r.Spec.Left(r.cut)
		}
		_, n := spec.Interior()
		var err error
		if r.room, free, err = d.work.cfg.Store.Room(d.q.Scope.Profile, d.q.Scope.Tenant, []int{n}, []int{spec.Tokens}); err != nil {
			return 1, 0
		}
		need += r.room
		p.left++
	}
	return need, free
}

// admit registers a plan. If a bound is reached, it returns the reason instead of Begun.
func (w *Work) admit(p *plan, need, free int64) Reason {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := 0
	for _, other := range w.plans {
		of += int(oneIf(other.conn == p.conn))
	}
	switch {
	case w.closed || len(w.plans) >= maxPlans || of >= maxConnPlans || w.tokens+p.tokens() > maxOpenTokens:
		return Busy
	case w.room+need > free:
		return NoRoom
	}
	for p.id == 0 || w.plans[p.id] != nil {
		p.id = rand.Uint64()
	}
	p.ctx, p.end = context.WithDeadline(w.ctx, p.until.Add(lingerTime))
	w.room, w.tokens = w.room+need, w.tokens+p.tokens()
	w.plans[p.id] = p
	signal(w.wake)
	return Begun
}

// combine returns the name of the node that should serve the prompt; "" = this node. It prefers the
// node that has the most tokens of the rows cached. That node must have more of them than this
// node, and an engine that is free no later than the requesting engine.
func (d *draft) combine() string {
	tokens := func(held []bool) (n int) {
		for i, h := range held {
			if h {
				n += len(d.q.Segments[i].IDs)
			}
		}
		return n
	}
	best, name := tokens(d.held), ""
	for i := range d.nodes {
		a := &d.nodes[i]
		idle := slices.ContainsFunc(a.offer.engines, func(e engineOffer) bool { return e.queued <= millis(d.q.Queued) })
		if n := tokens(a.offer.held); !a.local && idle && n > best {
			best, name = n, a.name
		}
	}
	return name
}
