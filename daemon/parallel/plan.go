package parallel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// plan is the set of rows that other engines compute for one request. Each row is one segment.
type plan struct {
	// Fixed after Plan.
	work  *Work
	id    uint64
	conn  uint64
	scope Scope
	tag   scopeTag // scope as other nodes name it
	nodes []node
	names []string // cluster names of nodes
	until time.Time
	ctx   context.Context // ends with the plan
	end   context.CancelFunc

	watching atomic.Bool
	wake     chan struct{}

	mu       sync.Mutex
	rows     []row
	unheard  []RowProgress // not reported to the watcher yet
	left     int           // rows that are not settled
	followed []bool        // for each node: are its results being requested
	leases   []func()
	settled  time.Time // when all rows were settled and reported; zero = not yet
	over     bool
}

// number returns the number of a job in its plan. If the parameter first is true, it is the number
// of the job for the left piece of the row. Otherwise it is the number of the job for the right
// piece, or for the whole row if the row is not cut.
func number(row int, first bool) uint32 { return uint32(2*row) + uint32(oneIf(first)) }

func gone(id uint64) error {
	return fmt.Errorf("parallel: plan %x does not exist: %w", id, tier.ErrGone)
}

// news returns the progress that was not reported yet, and the number of rows that are not settled.
func (p *plan) news() (list []RowProgress, left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, p.unheard = p.unheard, nil
	if p.left == 0 && p.settled.IsZero() {
		p.settled = p.work.cfg.Now()
	}
	return list, p.left
}

// begin sends the jobs, and fetches the rows that other nodes have. Each node gets its jobs in the
// order of its engines' lists.
func (p *plan) begin(order []sending) {
	held := p.where(func(r *row) bool { return r.state == coming }) // first: once jobs are sent, other rows may become coming
	byNode := make([][]sending, len(p.nodes))
	for _, s := range order {
		byNode[s.node] = append(byNode[s.node], s)
	}
	for n, list := range byNode {
		if len(list) > 0 {
			p.work.start(func() { p.send(n, list) })
		}
	}
	for _, i := range held {
		p.fetch(i)
	}
}

// where lists the rows for which a function returns true.
func (p *plan) where(is func(*row) bool) (list []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.rows {
		if is(&p.rows[i]) {
			list = append(list, i)
		}
	}
	return list
}

// sending is a piece to be sent to a node.
type sending struct {
	share
	row        int
	begin, end int
	holder     string // node that has the tokens before begin
}

// send sends jobs to a node, as many as fit into each request, and starts requesting results.
func (p *plan) send(n int, list []sending) {
	q := workRequest{scope: p.tag, plan: p.id}
	size := 0
	flush := func() {
		if len(q.jobs) > 0 {
			p.sendSome(n, &q)
		}
		q.jobs, size = nil, 0
	}
	for _, s := range list {
		j, ok := p.jobOf(&s)
		if !ok {
			continue
		}
		if size+j.size() > maxWorkBody-scopeBytes-10 || len(q.jobs) == 2*MaxRows {
			flush()
		}
		q.jobs, size = append(q.jobs, j), size+j.size()
	}
	flush()
}

// jobOf returns a piece in its wire form. It returns false if the row is settled.
func (p *plan) jobOf(s *sending) (j jobRequest, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.rows[s.row]
	if r.state != open {
		return j, false
	}
	j = jobRequest{number: number(s.row, s.end < r.Spec.Tokens), engine: s.engine, spec: r.Spec, begin: s.begin, holder: s.holder, ids: r.IDs[:s.end]}
	if s.end < r.Spec.Tokens {
		j.spec = r.Spec.Left(s.end)
	}
	j.micros = microsOf(millis(r.late.Sub(p.work.cfg.Now())))
	return j, true
}

func (p *plan) sendSome(n int, q *workRequest) {
	c := &p.work.counts
	verdicts, err := p.nodes[n].work(p.ctx, q)
	if err != nil {
		verdicts = make([]verdict, len(q.jobs))
	}
	any := false
	for i, j := range q.jobs {
		if verdicts[i] == taken {
			any = true
			c.Sent.Add(1)
			c.SentTokens.Add(uint64(len(j.ids) - j.begin))
			continue
		}
		c.Refused.Add(1)
		p.happened(int(j.number/2), failed)
	}
	if any {
		p.follow(n)
	}
}

// follow starts requesting results from a node, unless that is already going on.
func (p *plan) follow(n int) {
	p.mu.Lock()
	begun := p.followed[n]
	p.followed[n] = true
	p.mu.Unlock()
	if !begun {
		p.work.start(func() { p.ask(n) })
	}
}

// tries is the number of requests to a node that does not answer. retry is the delay between
// attempts.
const (
	tries = 3
	retry = 100 * time.Millisecond
)

func (p *plan) ask(n int) {
	seen, failures := 0, 0
	for p.ctx.Err() == nil {
		list, err := p.nodes[n].results(p.ctx, &resultsRequest{plan: p.id, seen: seen, waitMs: int(pollTime.Milliseconds())})
		switch {
		case err == nil:
			failures = 0
			seen += len(list)
			for _, x := range list {
				p.hear(n, x)
			}
			continue
		case errors.Is(err, tier.ErrBusy):
		case errors.Is(err, tier.ErrGone):
			failures = tries
		default:
			failures++
		}
		if failures >= tries {
			p.lose(n)
			return
		}
		select {
		case <-time.After(retry):
		case <-p.ctx.Done():
		}
	}
	// The plan has ended, and its context too, so this request has another context. It tells the
	// node that the remaining jobs need not be computed.
	ctx, cancel := context.WithTimeout(p.work.ctx, connectTime)
	defer cancel()
	_, _ = p.nodes[n].results(ctx, &resultsRequest{plan: p.id, end: true})
}

// lose gives up the jobs of a node that are not done.
func (p *plan) lose(n int) {
	p.mu.Lock()
	var list []int
	for i := range p.rows {
		r := &p.rows[i]
		if r.state == open && (r.last.node == n || r.cut > 0 && r.first.node == n) {
			list = append(list, i)
		}
	}
	p.followed[n] = false
	p.mu.Unlock()
	for _, i := range list {
		p.happened(i, failed)
	}
}

// hear applies one result from a node. It ignores results about jobs that other nodes have.
func (p *plan) hear(n int, x result) {
	i, first := int(x.number/2), x.number%2 == 1
	if i >= len(p.rows) {
		return
	}
	p.mu.Lock()
	r := &p.rows[i]
	by := r.last
	if first {
		by = r.first
	}
	stale := r.state != open || by.node != n || first && r.cut == 0
	p.mu.Unlock()
	switch {
	case stale:
	case x.outcome == late:
		p.happened(i, timePassed)
	case x.outcome == lost:
		p.happened(i, failed)
	case !first:
		p.tell(r.Key, n)
		p.completed(i)
	case r.last.node < 0:
		p.tell(r.left, n)
		p.fetch(i)
	default:
		p.sendRight(i, p.names[n])
	}
}

// completed continues a row whose segment is published.
func (p *plan) completed(i int) {
	if p.happened(i, wasDone) {
		p.fetch(i)
	}
}

// sendRight sends the right piece of a row, once the first piece is published on the node holder.
func (p *plan) sendRight(i int, holder string) {
	r := &p.rows[i]
	s := sending{share: r.last, row: i, begin: r.cut, end: r.Spec.Tokens}
	if holder != p.names[s.node] {
		s.holder = holder
	}
	p.work.start(func() { p.send(s.node, []sending{s}) })
}

// tell records that a node has a segment, before that node's index shows it here.
func (p *plan) tell(key profile.SegmentKey, n int) {
	if m, ok := p.nodes[n].(member); ok {
		want := p.scope.want(key)
		p.work.cfg.Cluster.Peers.Tell(&want, m.number)
	}
}

// fetch starts to fetch and lease a row. If this plan's engine computes the right piece, it fetches
// only the first piece.
func (p *plan) fetch(i int) {
	r := &p.rows[i]
	what, event := r.Key, isHere
	if r.cut > 0 && r.last.node < 0 {
		what, event = r.left, pieceCame
	}
	p.work.start(func() {
		let, ok := p.work.lease(p.ctx, p.scope, what, p.until)
		if !ok {
			p.happened(i, failed)
			return
		}
		p.keep(let)
		p.happened(i, event)
	})
}

// keep stores the function that releases a lease, and calls it when the plan is over.
func (p *plan) keep(let func()) {
	p.mu.Lock()
	over := p.over
	if !over {
		p.leases = append(p.leases, let)
	}
	p.mu.Unlock()
	if over {
		let()
	}
}

// happened applies an event to a row. If that settles the row, it wakes the watcher and withdraws
// the row's jobs.
func (p *plan) happened(i int, e rowEvent) (changed bool) {
	p.mu.Lock()
	r := &p.rows[i]
	was := r.state
	changed, settled := r.move(e)
	if changed && r.state == coming {
		p.extend(r, p.work.cfg.Now())
	}
	var withdraw []share
	if settled {
		p.left--
		p.unheard = append(p.unheard, RowProgress{i, progressOf[r.state]})
		p.work.giveRoom(r.room) // before the watcher hears of the row
		r.room = 0
		p.countLocked(r)
		if was == open {
			withdraw = []share{r.last}
			if r.cut > 0 {
				withdraw = append(withdraw, r.first)
			}
		}
		signal(p.wake)
	}
	p.mu.Unlock()
	for k, s := range withdraw {
		if s.node >= 0 {
			p.drop(s.node, number(i, k == 1))
		}
	}
	return changed
}

// extend gives a row that is being fetched the time that computing it here would take, from now on.
func (p *plan) extend(r *row, now time.Time) {
	if end := now.Add(lateAfter(r.alone)); end.After(r.late) {
		r.late = earlier(end, p.until)
	}
}

func (p *plan) countLocked(r *row) {
	c := &p.work.counts
	switch r.state {
	case committed:
		c.Committed.Add(1)
		c.CommitTokens.Add(uint64(r.Spec.Tokens))
	case pieceHere:
		c.CommitTokens.Add(uint64(r.cut))
	case aborted:
		c.Aborted.Add(1)
	case tooLate:
		c.LateRows.Add(1)
	}
}

// drop tells a node that one of its jobs is no longer needed.
func (p *plan) drop(n int, number uint32) {
	p.mu.Lock()
	known := p.followed[n]
	p.mu.Unlock()
	if !known {
		return
	}
	p.work.start(func() {
		ctx, cancel := context.WithTimeout(p.ctx, connectTime)
		defer cancel()
		// If the request fails, the job is withdrawn when the plan ends.
		_, _ = p.nodes[n].results(ctx, &resultsRequest{plan: p.id, seen: 4 * MaxRows, dropped: []uint32{number}})
	})
}

// published is called when an engine of this node has published a segment. It continues the rows
// that wait for that segment.
func (p *plan) published(key profile.SegmentKey) {
	self := ""
	if c := p.work.cfg.Cluster; c != nil {
		self = c.Self
	}
	for _, i := range p.where(func(r *row) bool { return r.state == open && r.Key == key }) {
		p.completed(i)
	}
	isLeft := func(r *row) bool { return r.state == open && r.cut > 0 && r.first.node < 0 && r.left == key }
	for _, i := range p.where(isLeft) {
		p.sendRight(i, self)
	}
}

// sweep ends rows that are late, and the plan when its time is over.
func (p *plan) sweep(now time.Time) {
	late := p.where(func(r *row) bool { return !r.state.settled() && !now.Before(r.late) })
	p.mu.Lock()
	over := !now.Before(p.until.Add(lingerTime)) || !p.settled.IsZero() && now.Sub(p.settled) >= lingerTime
	p.mu.Unlock()
	for _, i := range late {
		p.happened(i, timePassed)
	}
	if over {
		p.finish()
	}
}

// finish ends the plan and releases its leases. Further calls do nothing.
func (p *plan) finish() {
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return
	}
	p.over = true
	leases, room := p.leases, int64(0)
	p.leases = nil
	for i := range p.rows {
		room += p.rows[i].room
		p.rows[i].room = 0
	}
	p.mu.Unlock()
	p.end()
	call(leases)
	w := p.work
	w.giveRoom(room)
	w.mu.Lock()
	if w.plans[p.id] == p {
		delete(w.plans, p.id)
		w.tokens -= p.tokens()
	}
	w.mu.Unlock()
}

// tokens returns the number of token ids that the plan keeps.
func (p *plan) tokens() (n int) {
	for i := range p.rows {
		n += len(p.rows[i].IDs)
	}
	return n
}

func (w *Work) giveRoom(bytes int64) {
	if bytes == 0 {
		return
	}
	w.mu.Lock()
	w.room -= bytes
	w.mu.Unlock()
}
