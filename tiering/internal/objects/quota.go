package objects

import (
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/deadline"
)

// A tenant without a quota has no policies of its own. When it gets its first one, what it
// holds is told to new policies a few objects at a time, in the order of use, which is all
// that many policies go by.
//
//	none ──► listing ──► telling ──► complete: the quota counts
//
// Until they are complete nothing leaves for the quota. They stay when the quota ends.

// catchUp is how far a tenant's policies have come.
type catchUp struct {
	quota  int64                  // that is to count
	listed int                    // places of the table that have been looked at
	uses   deadline.Heap[*Object] // not told yet, least recent first
	came   uint64                 // uses, since the beginning
	seen   uint64                 // of these, before the last step
}

// placesAtOnce bounds the places of the table that are looked at in one critical section.
const placesAtOnce = 64

// SetQuota gives a tenant another quota; 0 = none. It counts at once unless CatchUp has
// something to do first.
func (s *Set) SetQuota(t *Tenant, bytes int64) {
	if t.Evict == nil && bytes > 0 {
		t.Evict, t.behind = s.cfg.Eviction(), &catchUp{}
		if s.HBM != nil {
			t.Above = s.cfg.Eviction()
		}
	}
	if t.behind != nil {
		t.behind.quota = bytes
	} else {
		t.QuotaBytes = bytes
	}
}

// WantedQuota is the quota that was set last.
func (t *Tenant) WantedQuota() int64 {
	if t.behind != nil {
		return t.behind.quota
	}
	return t.QuotaBytes
}

// CatchUp tells a tenant's policies of some of what they lack. more: they are not complete.
// It tells EvictRows more than have come since the last call, so that it ends however much
// is used meanwhile.
func (s *Set) CatchUp(t *Tenant) (more bool) {
	b := t.behind
	if b == nil {
		return false
	}
	if places := s.Table.Places(); b.listed < len(places) {
		end := min(b.listed+placesAtOnce, len(places))
		for _, o := range places[b.listed:end] {
			if o != nil && o.Tenant == t && o.Ranked != Absent {
				b.uses.Add(&deadline.Deadline[*Object]{At: o.Used, Order: uint64(o.ID) >> 1, Of: o})
			}
		}
		b.listed, b.seen = end, b.came
		return true
	}
	for n := EvictRows + int(b.came-b.seen); n > 0 && b.uses.Len() > 0; {
		next := b.uses.First()
		b.uses.Remove(next)
		n -= s.tellUse(next.Of, next.At)
	}
	b.seen = b.came
	if b.uses.Len() > 0 {
		return true
	}
	t.QuotaBytes, t.behind = b.quota, nil
	return false
}

// add notes a use that the policies are to be told of, behind those of the same time.
func (b *catchUp) add(o *Object, at time.Time) {
	b.came++
	b.uses.Add(&deadline.Deadline[*Object]{At: at, Order: 1<<63 | b.came, Of: o})
}

// tellUse tells a tenant's policy of a use, if the object has not left since, and answers
// how many calls that took. What the object extends comes before it: policies count what is
// extended only while they hold it.
func (s *Set) tellUse(o *Object, used time.Time) (calls int) {
	own := o.Tenant.evictionOf(o)
	switch {
	case o.Ranked == Absent:
	case o.InTenant != Absent:
		own.Touch(o.ID, used)
	default:
		up := o.Parent
		for up != nil && up.Ranked == Absent {
			up = up.Parent
		}
		if up != nil && up.InTenant == Absent {
			calls = s.tellUse(up, used)
		}
		o.InTenant.change(o.Ranked, own, o.ID, s.Item(o), used)
		o.InTenant = o.Ranked
	}
	return calls + 1
}
