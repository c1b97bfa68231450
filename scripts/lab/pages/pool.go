package pages

import (
	"container/list"
	"fmt"
)

// Pool manages the blocks of one engine and records which requests use them.
//
// Invariant: a block is free, or belongs to one storage, or is one of the shared blocks that the
// field slots manages. A referenced run is never evicted.
type Pool struct {
	cfg      Config
	free     []int // a stack, the lowest on top at first
	slots    slots
	shared   map[share]*object
	chunks   list.List // of unreferenced *object, the least recent first
	prefixes list.List
	idle     demand // evictable memory of chunks
	kept     int    // evictable blocks of prefixes
	resident map[RequestID]*resident
	stats    Stats
}

// object is a shared run.
type object struct {
	share
	whole int // tokens of the piece
	storage
	refs  int           // number of references by resident requests
	place *list.Element // in chunks or prefixes, while refs is 0
}

// resident is the memory of a request.
type resident struct {
	own    []storage
	shared []*object
	fresh  []*object // elements of shared that this request allocated
}

// Stats is the state of a pool and its counters.
type Stats struct {
	Free       int // blocks
	Referenced int // blocks that resident requests read
	Idle       int // blocks with evictable content only
	Requests   int // resident
	Refused    [PrefixesKept + 1]uint64
	Evicted    uint64 // shared runs of chunks
	Dropped    uint64 // prefixes
}

// New returns a pool of free blocks.
func New(c Config) (*Pool, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	p := &Pool{cfg: c, slots: newSlots(c.BlockTokens), shared: map[share]*object{}, resident: map[RequestID]*resident{}}
	p.free = make([]int, c.Blocks)
	for i := range p.free {
		p.free[i] = c.Blocks - 1 - i
	}
	return p, nil
}

// Stats returns a snapshot.
func (p *Pool) Stats() Stats {
	s := p.stats
	s.Free = len(p.free)
	s.Idle = p.idle.blocks + p.slots.loose() + p.kept
	s.Referenced = p.cfg.Blocks - s.Free - s.Idle
	s.Requests = len(p.resident)
	return s
}

// Admit reserves all blocks that a request needs. If there is no room, it returns a *Refusal and
// leaves the pool unchanged. A refused request may be admitted after other requests are
// released, unless it is TooLarge. After success the id is resident until Release.
func (p *Pool) Admit(id RequestID, q *Request) (*Admitted, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	if p.resident[id] != nil {
		return nil, fmt.Errorf("request %d is resident: %w", id, ErrInvalid)
	}
	runs := p.cfg.runs(q)
	need, err := p.join(runs)
	if err != nil {
		return nil, err
	}
	if refusal := p.refuse(need, runs); refusal != nil {
		p.leave(runs)
		p.stats.Refused[refusal.Reason]++
		return nil, refusal
	}
	p.makeRoom(need.all)
	return p.place(id, runs), nil
}

// needs is the memory that a request needs and that is not cached: for its chunks, and in total.
type needs struct{ chunks, all demand }

// join references all shared runs of a request that are cached, so that they do not count as
// evictable, and adds up the memory of the other runs. The cached runs stay in the eviction
// lists until the request is admitted.
func (p *Pool) join(runs []run) (needs, error) {
	var n needs
	fresh := map[share]int{}
	for i := range runs {
		r := &runs[i]
		d := p.cfg.demand(r)
		if r.what != own {
			o := p.shared[r.share]
			whole, seen := fresh[r.share]
			if o != nil {
				whole, seen = o.whole, true
			}
			if seen && whole != r.whole {
				p.leave(runs[:i])
				return n, fmt.Errorf("key %d stands for %d tokens and for %d: %w", r.key, whole, r.whole, ErrInvalid)
			}
			if o != nil {
				p.refer(o)
			}
			if seen {
				continue
			}
			fresh[r.share] = r.whole
		}
		if r.chunk {
			n.chunks.add(d)
		}
		n.all.add(d)
	}
	return n, nil
}

// leave undoes join.
func (p *Pool) leave(runs []run) {
	for i := range runs {
		if o := p.shared[runs[i].share]; o != nil && runs[i].what != own {
			p.unrefer(o)
		}
	}
}

// refer and unrefer count references to an object, and update the counts of evictable memory.
func (p *Pool) refer(o *object) {
	o.refs++
	if o.refs == 1 {
		p.countIdle(o, -1)
	}
}

func (p *Pool) unrefer(o *object) {
	o.refs--
	if o.refs == 0 {
		p.countIdle(o, 1)
	}
}

func (p *Pool) countIdle(o *object, sign int) {
	if o.what == prefix {
		p.kept += sign * len(o.blocks)
		return
	}
	p.idle.blocks += sign * len(o.blocks)
	p.slots.hold(o.rest, -sign)
}

// refuse returns nil if evicting unreferenced runs can free the needed memory, and the memory for
// chunks can be found without evicting a prefix. If not, refuse returns a Refusal.
func (p *Pool) refuse(n needs, runs []run) *Refusal {
	had := len(p.free) + p.idle.blocks + p.slots.loose()
	short := func(reason Reason, d demand, had int) *Refusal {
		return &Refusal{Reason: reason, Need: d.blocks + ceil(max(0, d.slots-p.slots.room()), p.cfg.BlockTokens), Had: had}
	}
	switch {
	case !p.cfg.fits(n.all, had+p.kept, p.slots.room()):
		reason := Full
		if !p.cfg.fits(p.cfg.alone(runs), p.cfg.Blocks, 0) {
			reason = TooLarge
		}
		return short(reason, n.all, had+p.kept)
	case !p.cfg.fits(n.chunks, had, p.slots.room()):
		return short(PrefixesKept, n.chunks, had)
	}
	return nil
}

// alone returns the memory that a request needs in an empty pool.
func (r *Rules) alone(runs []run) (d demand) {
	seen := map[share]bool{}
	for i := range runs {
		if s := runs[i].share; s.what == own || !seen[s] {
			seen[s] = true
			d.add(r.demand(&runs[i]))
		}
	}
	return d
}

// fits reports whether the given number of whole blocks, and of slots in shared blocks, suffices
// for d.
func (r *Rules) fits(d demand, blocks, slots int) bool {
	hard := d.blocks - d.soft
	return hard <= blocks && d.slots+d.soft*r.BlockTokens-slots <= (blocks-hard)*r.BlockTokens
}

// makeRoom evicts the least recently used unreferenced chunks, until d fits into the free memory
// with all its blocks whole. If no such chunk is left, it accepts that the soft blocks of d are
// stored in pieces (see demand). If that does not suffice, it evicts prefixes.
func (p *Pool) makeRoom(d demand) {
	whole := d
	whole.soft = 0
	p.evict(&p.chunks, whole, &p.stats.Evicted)
	p.evict(&p.prefixes, d, &p.stats.Dropped)
	if !p.cfg.fits(d, len(p.free), p.slots.free) {
		panic(fmt.Sprintf("pages: %+v does not fit %d blocks and %d slots with nothing to evict", d, len(p.free), p.slots.free))
	}
}

// evict evicts from the front of a list until d fits or the list is empty. It does not evict
// runs that the new request references.
func (p *Pool) evict(victims *list.List, d demand, counter *uint64) {
	for e := victims.Front(); e != nil && !p.cfg.fits(d, len(p.free), p.slots.free); {
		o := e.Value.(*object)
		e = e.Next()
		if o.refs > 0 {
			continue
		}
		victims.Remove(o.place)
		p.drop(o)
		*counter++
	}
}

// drop frees an unreferenced run.
func (p *Pool) drop(o *object) {
	delete(p.shared, o.share)
	if o.what == prefix {
		p.kept -= len(o.blocks)
	} else {
		p.idle.blocks -= len(o.blocks)
	}
	p.giveBack(&o.storage)
}

// place assigns memory, which must be free, to every run.
func (p *Pool) place(id RequestID, runs []run) *Admitted {
	out, held := &Admitted{}, &resident{}
	fresh := map[*object]bool{}
	for i := range runs {
		r := &runs[i]
		o, known := p.shared[r.share]
		switch {
		case r.what == own:
			s := p.store(r)
			held.own = append(held.own, s)
			p.slots.hold(s.rest, 1)
			out.add(r, &s, &p.cfg.Rules, true)
			continue
		case !known:
			o = &object{share: r.share, whole: r.whole, storage: p.store(r)}
			p.shared[r.share], fresh[o] = o, true
			held.fresh = append(held.fresh, o)
			p.slots.hold(o.rest, 1)
		case o.place != nil:
			p.listOf(o).Remove(o.place)
			o.place = nil
		}
		if fresh[o] {
			o.refs++ // join has referenced the objects that were cached before
		}
		held.shared = append(held.shared, o)
		out.add(r, &o.storage, &p.cfg.Rules, !known)
	}
	p.resident[id] = held
	return out
}

func (a *Admitted) add(r *run, s *storage, rules *Rules, compute bool) {
	a.Table = s.entries(a.Table, r, rules.BlockTokens, compute)
	if !compute {
		a.Reused += r.tokens
		return
	}
	a.Computed += r.tokens
	a.Padding += rules.padding(r)
}

func (p *Pool) store(r *run) storage {
	d := p.cfg.demand(r)
	pieces := d.soft - min(d.soft, len(p.free))
	var s storage
	for range d.blocks - pieces {
		s.blocks = append(s.blocks, p.take())
	}
	s.rest = p.slots.alloc(d.slots+pieces*p.cfg.BlockTokens, p.take)
	return s
}

func (p *Pool) take() int {
	b := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return b
}

func (p *Pool) giveBack(s *storage) {
	p.free = append(p.free, s.blocks...)
	p.slots.release(s.rest, func(b int) { p.free = append(p.free, b) })
}

// Abandon is Release for a request that has not written the tokens that it was to compute. It
// also drops the shared runs that this request allocated, unless another request already uses
// them.
func (p *Pool) Abandon(id RequestID) bool {
	held := p.resident[id]
	if held == nil {
		return false
	}
	fresh := held.fresh
	p.Release(id)
	for _, o := range fresh {
		if o.refs > 0 { // another request uses it
			continue
		}
		p.listOf(o).Remove(o.place)
		p.drop(o)
	}
	return true
}

// Release ends a request. It frees the request's own blocks; shared runs stay cached until their
// room is needed. It returns false if the request is not resident.
func (p *Pool) Release(id RequestID) bool {
	held := p.resident[id]
	if held == nil {
		return false
	}
	delete(p.resident, id)
	for i := range held.own {
		p.slots.hold(held.own[i].rest, -1)
		p.giveBack(&held.own[i])
	}
	for _, o := range held.shared {
		p.unrefer(o)
		if o.refs == 0 {
			o.place = p.listOf(o).PushBack(o)
		}
	}
	return true
}

func (p *Pool) listOf(o *object) *list.List {
	if o.what == prefix {
		return &p.prefixes
	}
	return &p.chunks
}
