package journal

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/share"
)

var (
	_ api.Events   = (*Journal)(nil)
	_ api.Follower = (*Follower)(nil)
)

// filter selects events by the criteria of an api.EventQuery.
type filter struct {
	kinds  uint32 // one bit per kind; 0 = all kinds
	tenant string
}

func filterOf(q *api.EventQuery) (f filter) {
	for _, name := range q.Kinds {
		if i := slices.Index(api.EventKinds, name); i >= 0 {
			f.kinds |= 1 << i
		}
	}
	f.tenant = q.Tenant
	return f
}

func (f *filter) passes(e *Event) bool {
	return (f.kinds == 0 || f.kinds>>e.Kind&1 == 1) && (f.tenant == "" || f.tenant == e.Tenant)
}

// Events implements api.Events.
func (j *Journal) Events(q api.EventQuery) (list []api.Event, more bool) {
	f := filterOf(&q)
	if q.After == nil {
		return j.newest(&f, q.Limit), false
	}
	r := reader{journal: j, filter: f}
	j.mu.Lock()
	r.seekLocked(*q.After)
	j.mu.Unlock()
	for end, n := false, 0; !end; {
		var told int
		list, told, end = r.read(list, q.Limit+1-n, false)
		if n += told; n > q.Limit {
			return list[:len(list)-1], true
		}
	}
	return list, false
}

// newest returns the latest matching events, in order. If there are more than limit, each tenant
// and each class of events gets a share.
func (j *Journal) newest(f *filter, limit int) (list []api.Event) {
	j.mu.Lock()
	rings, before := slices.Clone(j.mu.rings), j.mu.next
	j.mu.Unlock()
	lists := make([][]Event, len(rings))
	for i, r := range rings {
		lists[i] = j.newestOf(r, before, f, limit)
	}
	all := share.Merge(lists, limit)
	slices.SortFunc(all, func(a, b Event) int { return cmp.Compare(a.number, b.number) })
	for i := range all {
		list = append(list, j.tell(&all[i]))
	}
	return list
}

// newestOf copies the latest matching events of a ring, newest first. It returns only events whose
// numbers are below the parameter before.
func (j *Journal) newestOf(r *ring, before uint64, f *filter, limit int) (list []Event) {
	for more := true; more && len(list) < limit; {
		j.mu.Lock()
		at := r.from(before)
		for n := 0; n < stepEvents && len(list) < limit; n++ {
			if more = at > r.first; !more {
				break
			}
			at--
			e := r.at(at)
			if f.passes(e) {
				list = append(list, *e)
			}
			before = e.number
		}
		j.mu.Unlock()
	}
	return list
}

// nextLocked returns the earliest event at the given places, one per ring, and the index of its
// ring; nil = none.
func (j *Journal) nextLocked(at []uint64) (e *Event, from int) {
	for i := range at {
		if r := j.mu.rings[i]; at[i] < r.next && (e == nil || r.at(at[i]).number < e.number) {
			e, from = r.at(at[i]), i
		}
	}
	return e, from
}

// fromLocked returns for each ring the place of its first event with that or a higher number.
func (j *Journal) fromLocked(number uint64) []uint64 {
	at := make([]uint64, len(j.mu.rings))
	for i, r := range j.mu.rings {
		at[i] = r.from(number)
	}
	return at
}

// droppedLocked returns the number of the latest event that was dropped. Earlier events in other
// rings may still be kept.
func (j *Journal) droppedLocked() (last uint64) {
	for _, r := range j.mu.rings {
		last = max(last, r.dropped)
	}
	return last
}

// copied is the number of events that are copied while the lock is held.
const copied = 32

// reader reads the events of a journal in order.
type reader struct {
	journal   *Journal
	filter    filter
	restarted bool // it continues after an event of an earlier start

	next   uint64 // number of the next event to read; guarded by the journal's lock
	known  uint64 // losses up to this number are reported; guarded by the journal's lock
	asleep bool   // it has read all events and waits; guarded by the journal's lock
	batch  [copied]Event
}

// seekLocked makes the reader continue after an event. The parameter after is the id of that event,
// which shows whether the event is of this start; 0 = begin with the oldest kept event.
func (r *reader) seekLocked(after uint64) {
	j := r.journal
	number := after - j.base
	r.restarted = after != 0 && (after < j.base || number >= j.mu.next)
	if after != 0 && !r.restarted {
		r.next = number + 1
		return
	}
	r.next, r.known = j.mu.next, j.droppedLocked() // events dropped before the reader began are not reported as lost
	at := j.fromLocked(0)
	if e, _ := j.nextLocked(at); e != nil {
		r.next = e.number
	}
}

// lostLocked returns the number of events that were dropped since the last call and before the
// reader read them. An event before the latest dropped one may still be kept in another ring; such
// events are not counted.
func (r *reader) lostLocked() (lost uint64) {
	j := r.journal
	last := j.droppedLocked()
	begin := max(r.next, r.known+1)
	lost = last + 1 - begin
	begins, ends := j.fromLocked(begin), j.fromLocked(last+1)
	for i := range begins {
		lost -= ends[i] - begins[i]
	}
	r.known = last
	j.mu.lost += lost
	return lost
}

// read examines a bounded number of events and appends those that match, at most limit. Before
// them, it appends an event that reports losses, if there are any. The result told is the number of
// matching events, and the result end reports whether all events are read. If the parameter sleep
// is true and there was nothing to append, the reader begins to wait.
func (r *reader) read(dst []api.Event, limit int, sleep bool) (_ []api.Event, told int, end bool) {
	j := r.journal
	j.mu.Lock()
	lost, id := uint64(0), j.base+r.next-1
	at := j.fromLocked(r.next)
	limit = min(limit, copied)
	for n := 0; n < stepEvents && told < limit; n++ {
		e, from := j.nextLocked(at)
		if e == nil {
			r.next, end = j.mu.next, true
			break
		}
		if e.number > r.next && e.number > r.known+1 { // a gap: numbers are consecutive
			if told > 0 {
				break // the events before the gap are reported first
			}
			lost, id = r.lostLocked(), j.base+e.number-1
		}
		if r.filter.passes(e) {
			r.batch[told] = *e
			told++
		}
		r.next = e.number + 1
		at[from]++
	}
	if sleep && end && told == 0 && lost == 0 && !r.restarted {
		r.asleep = true
		j.mu.asleep++
	}
	j.mu.Unlock()
	if r.restarted {
		dst = append(dst, j.lost(id, 0))
		r.restarted = false
	}
	if lost > 0 {
		dst = append(dst, j.lost(id, lost))
	}
	for i := range r.batch[:told] {
		dst = append(dst, j.tell(&r.batch[i]))
	}
	return dst, told, end
}

// lost returns an event which reports that n events up to the given id were dropped. If n is 0, it
// reports instead that the daemon has restarted and events of the earlier start are lost.
func (j *Journal) lost(id, n uint64) api.Event {
	e := api.Event{ID: id, At: j.now(), Kind: api.EventLost, Why: api.LostBehind, Lost: n}
	e.Text = fmt.Sprintf("%d events are no longer kept", n)
	if n == 0 {
		e.Why, e.Text = api.LostRestart, "the daemon has restarted since the last event read: later events from before the restart are lost"
	}
	return e
}

// Follower reads events as they happen.
type Follower struct {
	reader
	wake chan struct{} // filled to wake the follower
}

// Follow implements api.Events.
func (j *Journal) Follow(q api.EventQuery) (api.Follower, error) {
	f := &Follower{reader: reader{journal: j, filter: filterOf(&q)}, wake: make(chan struct{}, 1)}
	j.mu.Lock()
	defer j.mu.Unlock()
	if n := len(j.mu.followers); n >= MaxFollowers {
		j.mu.refused++
		return nil, fmt.Errorf("%d event streams are open, the maximum: %w", n, api.ErrUnavailable)
	}
	f.next = j.mu.next
	if q.After != nil {
		f.seekLocked(*q.After)
	}
	j.mu.followers[f] = struct{}{}
	return f, nil
}

// Last implements api.Follower.
func (f *Follower) Last() uint64 {
	j := f.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	if f.restarted { // the restart is not reported yet
		return 0
	}
	return j.base + f.next - 1
}

// Close implements api.Follower.
func (f *Follower) Close() {
	j := f.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.mu.followers, f)
}

// Next implements api.Follower.
func (f *Follower) Next(ctx context.Context, patience time.Duration, dst []api.Event) ([]api.Event, error) {
	var limit *time.Timer
	for before := len(dst); ; {
		var end bool
		room := max(1, cap(dst)-len(dst)-2) // the loss of events may take two places
		dst, _, end = f.read(dst, room, len(dst) == before)
		switch {
		case len(dst) > before && (end || cap(dst)-len(dst) < 3):
			return dst, nil
		case !end || len(dst) > before:
			if ctx.Err() != nil {
				return dst, ctx.Err()
			}
			continue
		}
		if limit == nil {
			limit = time.NewTimer(patience)
			defer limit.Stop()
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			f.rouse()
			return dst, ctx.Err()
		case <-limit.C:
			f.rouse()
			return dst, nil
		}
	}
}

// rouse ends the follower's sleep, if nothing has woken it yet.
func (f *Follower) rouse() {
	j := f.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	if f.asleep {
		f.asleep = false
		j.mu.asleep--
		return
	}
	<-f.wake // it was woken meanwhile
}
