package parallel

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
)

// board holds the jobs of this node's engines. Callers pass the time, and no method waits.
type board struct {
	counts *Counts
	// awaited is the number of open jobs. If it is 0, a commit need not check whether it completes a
	// job.
	awaited atomic.Int64
	// changed is called, without the lock, when a scope gets its first worker or loses its last.
	changed func(Scope)

	mu      sync.Mutex
	last    uint64 // latest id; workers and jobs share one sequence
	workers map[uint64]*worker
	origins map[originKey]*origin
	jobs    map[uint64]*job // open jobs
	tokens  int             // tokens of open jobs
	scopes  map[Scope]int   // number of workers per scope
}

func newBoard(c *Counts, changed func(Scope)) *board {
	return &board{
		counts: c, changed: changed, workers: map[uint64]*worker{}, origins: map[originKey]*origin{}, jobs: map[uint64]*job{}, scopes: map[Scope]int{},
	}
}

// workerOfLocked returns the worker of a connection in a scope; nil = none.
func (b *board) workerOfLocked(conn uint64, scope Scope) *worker {
	for _, w := range b.workers {
		if w.conn == conn && w.scope == scope {
			return w
		}
	}
	return nil
}

// register creates or updates the worker of an engine that asks for jobs. It fails if the engine is
// asking already, or if there are too many workers.
func (b *board) register(q *JobsQuery, now time.Time) (w *worker, err error) {
	b.mu.Lock()
	w = b.workerOfLocked(q.Conn, q.Scope)
	added := false
	switch {
	case w != nil && w.asking > 0:
		b.mu.Unlock()
		return nil, busy("connection %d asks for jobs already", q.Conn)
	case w == nil && len(b.workers) >= maxWorkers:
		b.mu.Unlock()
		return nil, busy("%d engines take jobs", maxWorkers)
	case w == nil:
		b.last++
		w = &worker{id: b.last, conn: q.Conn, scope: q.Scope, wake: make(chan struct{}, 1)}
		b.workers[w.id] = w
		b.scopes[q.Scope]++
		added = b.scopes[q.Scope] == 1
	}
	w.most, w.pieces, w.queue, w.told = min(q.Jobs, MaxWorkerJobs), q.Pieces, millis(q.Queued), now
	w.primers = slices.Clone(q.Primers)
	w.asking++
	var let []func()
	for _, id := range q.Declined {
		if j := b.jobs[id]; j != nil && j.worker == w {
			b.counts.Declined.Add(1)
			b.endLocked(j, ended, lost, &let)
		}
	}
	for _, j := range slices.Clone(w.jobs) {
		if j.state != given && !w.has(j.Spec.Primer) { // the engine no longer has the primer
			b.counts.Declined.Add(1)
			b.endLocked(j, ended, lost, &let)
		}
	}
	b.mu.Unlock()
	call(let)
	if added {
		b.changed(q.Scope)
	}
	return w, nil
}

// asked ends the request that register has begun.
func (b *board) asked(w *worker, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.asking--
	w.asked = now
}

// next returns the jobs that a worker may start, and the ids of jobs that it should stop. The
// result open is the number of jobs that the worker has after that.
func (b *board) next(w *worker, now time.Time, tokens int) (list []Job, gone []uint64, open int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := 0
	for _, j := range w.jobs {
		has += int(oneIf(j.state == given))
	}
	for _, j := range w.jobs {
		if has >= w.most || len(j.IDs) > tokens {
			break
		}
		if j.state != queued {
			continue
		}
		j.move(wasGiven)
		has, tokens = has+1, tokens-len(j.IDs)
		list = append(list, Job{ID: j.id, Segment: j.Segment, Begin: j.begin, Left: j.left, Within: max(j.until.Sub(now), 0)})
	}
	gone, w.gone = w.gone, nil
	return list, gone, has
}

// leave removes some workers.
func (b *board) leave(which func(*worker) bool) {
	b.mu.Lock()
	var let []func()
	var without []Scope // scopes that have no worker now
	for _, w := range b.workers {
		if !which(w) {
			continue
		}
		delete(b.workers, w.id)
		if b.scopes[w.scope]--; b.scopes[w.scope] == 0 {
			delete(b.scopes, w.scope)
			without = append(without, w.scope)
		}
		for _, j := range slices.Clone(w.jobs) {
			b.counts.Lost.Add(1)
			b.endLocked(j, ended, lost, &let)
		}
		signal(w.wake)
	}
	b.mu.Unlock()
	call(let)
	for _, s := range without {
		b.changed(s)
	}
}

// engines lists the engines that take jobs of a scope and have all the given primers, with the time
// until they could start a job. The parameter not is a connection whose engines are left out; 0 =
// none.
func (b *board) engines(s Scope, not uint64, primers []profile.PrimerID, now time.Time) []engineOffer {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []engineOffer
	for _, w := range b.workers {
		lacks := func(id profile.PrimerID) bool { return !w.has(id) }
		if w.scope == s && (not == 0 || w.conn != not) && w.most > 0 && !slices.ContainsFunc(primers, lacks) {
			list = append(list, engineOffer{w.id, w.queued(now), w.pieces})
		}
	}
	slices.SortFunc(list, func(x, y engineOffer) int { return cmp.Or(cmp.Compare(x.queued, y.queued), cmp.Compare(x.id, y.id)) })
	return list[:min(len(list), maxEngines)]
}

// has reports whether any engine takes jobs of a scope.
func (b *board) has(s Scope) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.scopes[s] > 0
}

// accepted is a job that an engine of this node is asked to do.
type accepted struct {
	Segment
	number uint32
	engine uint64
	begin  int
	left   profile.SegmentKey
	until  time.Time
	millis float64
	fetch  bool // its left piece must be fetched first
}

// take queues a job of a plan. It returns nil if a bound is reached or the engine is gone.
func (b *board) take(from originKey, s Scope, a *accepted, now time.Time) *job {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, o := b.workers[a.engine], b.origins[from]
	switch {
	case w == nil || w.scope != s || a.begin > 0 && !w.pieces || len(w.jobs) >= MaxRows || !w.has(a.Spec.Primer):
		return nil
	case len(b.jobs) >= maxJobs || b.tokens+len(a.IDs) > maxQueuedTokens:
		b.counts.Full.Add(1)
		return nil
	case o == nil && len(b.origins) >= maxOrigins:
		b.counts.Full.Add(1)
		return nil
	case o != nil && (len(o.jobs) >= 2*MaxRows || o.jobs[a.number] != nil):
		return nil
	case o == nil:
		o = &origin{key: from, jobs: map[uint32]*job{}, polled: now, wake: make(chan struct{}, 1)}
		b.origins[from] = o
	}
	b.last++
	j := &job{
		id: b.last, number: a.number, origin: o, worker: w, Segment: a.Segment, begin: a.begin, left: a.left, until: a.until, millis: a.millis, state: queued,
	}
	if a.fetch {
		j.state = fetching
	}
	o.jobs[j.number], b.jobs[j.id] = j, j
	w.jobs = append(w.jobs, j)
	b.tokens += len(j.IDs)
	b.awaited.Add(1)
	b.counts.Taken.Add(1)
	b.counts.TakenTokens.Add(uint64(len(j.IDs) - j.begin))
	signal(w.wake)
	return j
}

// fetched records that the left piece of a job was fetched. The function let releases the lease on
// that piece; nil = the fetch failed.
func (b *board) fetched(j *job, let func()) {
	b.mu.Lock()
	var calls []func()
	switch {
	case j.over() && let != nil:
		calls = append(calls, let)
	case j.over():
	case let == nil:
		b.counts.Lost.Add(1)
		b.endLocked(j, ended, lost, &calls)
	default:
		j.let = let
		j.move(leftCame)
		signal(j.worker.wake)
	}
	b.mu.Unlock()
	call(calls)
}

// endLocked ends a job. The parameter how is its outcome, and is ignored if the job is withdrawn.
// If the job has a lease on a left piece, endLocked appends the function that releases the lease to
// the slice let, and the caller calls it without the lock.
func (b *board) endLocked(j *job, e jobEvent, how outcome, let *[]func()) {
	wasWith := j.state == given
	if !j.move(e) {
		return
	}
	delete(b.jobs, j.id)
	b.tokens -= len(j.IDs)
	b.awaited.Add(-1)
	w := j.worker
	w.jobs = slices.DeleteFunc(w.jobs, func(x *job) bool { return x == j })
	if wasWith && how != done && b.workers[w.id] == w {
		w.gone = append(w.gone, j.id)
		w.gone = w.gone[max(0, len(w.gone)-MaxWorkerJobs):]
	}
	signal(w.wake) // the worker has room for another job
	if j.let != nil {
		*let = append(*let, j.let)
	}
	j.IDs = nil
	if e == ended {
		j.origin.results = append(j.origin.results, result{j.number, how})
		signal(j.origin.wake)
	}
}

// published completes the jobs for a segment that is now cached.
func (b *board) published(s Scope, key profile.SegmentKey) {
	if b.awaited.Load() == 0 {
		return
	}
	b.mu.Lock()
	var let []func()
	for _, j := range b.jobs {
		if j.Key == key && j.worker.scope == s {
			b.counts.Done.Add(1)
			b.endLocked(j, ended, done, &let)
		}
	}
	b.mu.Unlock()
	call(let)
}

// awaits reports whether there is an open job for a segment.
func (b *board) awaits(s Scope, key profile.SegmentKey) bool {
	if b.awaited.Load() == 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range b.jobs {
		if j.Key == key && j.worker.scope == s {
			return true
		}
	}
	return false
}

// poll begins a request for the results of a plan, and withdraws the jobs that the request drops.
// It returns nil if this node has no such plan.
func (b *board) poll(from originKey, q *resultsRequest, now time.Time) *origin {
	b.mu.Lock()
	o := b.origins[from]
	var let []func()
	if o != nil {
		o.polls++
		for _, n := range q.dropped {
			if j := o.jobs[n]; j != nil {
				b.withdrawLocked(j, &let)
			}
		}
		if q.end {
			b.endOriginLocked(o, &let)
		}
	}
	b.mu.Unlock()
	call(let)
	return o
}

func (b *board) withdrawLocked(j *job, let *[]func()) {
	if !j.over() {
		b.counts.Withdrawn.Add(1)
		b.endLocked(j, wasWithdrawn, 0, let)
	}
}

func (b *board) endOriginLocked(o *origin, let *[]func()) {
	for _, j := range o.jobs {
		b.withdrawLocked(j, let)
	}
	delete(b.origins, o.key)
	signal(o.wake)
}

// heard returns the results of a plan from index seen on, and whether the plan has ended.
func (b *board) heard(o *origin, seen int) (list []result, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seen >= 0 && seen < len(o.results) {
		list = slices.Clone(o.results[seen:])
	}
	return list, b.origins[o.key] != o
}

// polled ends the request that poll has begun.
func (b *board) polled(o *origin, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o.polls--
	o.polled = now
}

// sweep ends jobs that are late, plans that are no longer polled, and idle workers. The result more
// reports whether sweep must be called again later.
func (b *board) sweep(now time.Time) (more bool) {
	b.mu.Lock()
	var let []func()
	for _, j := range b.jobs {
		if !now.Before(j.until) {
			b.counts.Late.Add(1)
			b.endLocked(j, ended, late, &let)
		}
	}
	for _, o := range b.origins {
		if o.polls == 0 && now.Sub(o.polled) >= lostAfter {
			b.counts.Forsaken.Add(1)
			b.endOriginLocked(o, &let)
		}
	}
	more = len(b.workers)+len(b.origins) > 0
	b.mu.Unlock()
	call(let)
	b.leave(func(w *worker) bool { return w.asking == 0 && !w.busy() && now.Sub(w.asked) >= workerIdle })
	return more
}

func call(list []func()) {
	for _, f := range list {
		f()
	}
}

// info lists the workers for operators.
func (b *board) info(now time.Time) (list []WorkerInfo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(b.workers)) {
		w := b.workers[id]
		list = append(list, WorkerInfo{Conn: w.conn, Scope: w.scope, Pieces: w.pieces, Most: w.most, Jobs: len(w.jobs), Queued: w.queued(now)})
	}
	return list
}
