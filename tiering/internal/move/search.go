package move

import (
	"context"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// search asks the Remote for objects of one tenant: the job of a flight (see package transfer).
// It looks up either segments, all in one round trip, or one checkpoint and those of its
// ancestors that are not on this node, with one round trip for each. Guarded by the store's lock.
type search struct {
	owner *Remote
	*transfer.Flight
	rows  []*remoteLookup // grows while the ancestors of a checkpoint are looked up
	until deadline.Deadline[any]
}

const (
	// MaxWants is the maximum number of objects of a search. It also bounds the critical
	// section that starts a search, which takes some µs per object.
	MaxWants = 64
	// maxSearches bounds the searches that wait or run. One tenant may have a quarter of them.
	maxSearches = 256
)

// errFindTime is the error of a search that timed out.
var errFindTime = fmt.Errorf("nobody has answered in time: %w", tier.ErrUnavailable)

// open creates the engine of remote lookups.
func (rem *Remote) open() {
	rem.Lookups = map[objects.Identity]*remoteLookup{}
	rem.Learner, _ = rem.cat.Config.Remote.(tier.Learner)
	rem.Preparer, _ = rem.cat.Config.Remote.(tier.Preparer)
	rem.Engine = transfer.New[*search](transfer.Config{
		Lock: &rem.cat.Mu, Workers: true, Queue: maxSearches, Share: max(maxSearches/4, maxSearches/len(rem.cat.Objects.Tenants)),
		Now: rem.cat.Config.Now, After: rem.cat.Launch,
	})
}

// SeekLocked starts a search for hinted objects of one tenant. If other searches cover all
// objects, it returns the flight of the search that covers the first object. It returns nil if
// there is nothing to look up, or if too many searches are running.
func (rem *Remote) SeekLocked(ws []Wanted, devices []RankOnDevice) *transfer.Flight {
	if len(ws) == 0 {
		return nil
	}
	if k := rem.Lookups[ws[0].Identity()]; len(ws) == 1 && k != nil && k.search != nil {
		k.devices = append(k.devices, devices...)
		if ws[0].Urgent {
			k.urgent = true
			rem.Engine.Urge(k.search.Flight)
		}
		return k.search.Flight
	}
	owner := uint32(ws[0].Tenant.ID)
	if rem.cat.Closed || !rem.Engine.Room(owner, 1) {
		return nil
	}
	q := &search{owner: rem}
	urgent := false
	for i := range ws {
		if k := rem.addLookupLocked(q, ws[i].Identity()); k != nil {
			k.urgent, k.planned, k.devices, k.base = ws[i].Urgent, ws[i].Planned, slices.Clone(devices), ws[i].Base
			urgent = urgent || k.urgent
		}
	}
	if len(q.rows) == 0 { // other searches cover all of them
		return rem.Lookups[ws[0].Identity()].search.Flight
	}
	q.until = deadline.Deadline[any]{At: rem.cat.Config.Now().Add(rem.cat.Config.FindTTL), Order: rem.cat.LeaseIDs.Add(1), Of: q}
	rem.cat.Objects.Deadlines.Add(&q.until)
	q.Flight, _ = rem.Engine.Start(q, q, transfer.Options{Owner: owner, Urgent: urgent})
	return q.Flight
}

// addLookupLocked adds an object to a search and returns its lookup. It returns nil if
// another search covers the object.
func (rem *Remote) addLookupLocked(q *search, id objects.Identity) *remoteLookup {
	if k := rem.Lookups[id]; k != nil && k.search != nil {
		return nil
	}
	k := rem.replaceLocked(id)
	k.search = q
	q.rows = append(q.rows, k)
	return k
}

// seekAheadLocked looks up objects that matches have named: segments of one tenant
// together, each checkpoint alone.
func (rem *Remote) seekAheadLocked(far []Wanted) {
	for len(far) > 0 {
		n := 1
		for far[0].Name.Kind == 0 && n < len(far) && far[n].Name.Kind == 0 && far[n].Tenant == far[0].Tenant {
			n++
		}
		if rem.SeekLocked(far[:n], nil) == nil {
			rem.cat.Counters.ReadAheadDropped += uint64(n)
		}
		far = far[n:]
	}
}

// Begin allocates nothing.
func (q *search) Begin(*transfer.Flight) error {
	q.owner.cat.Running.Add(1)
	return nil
}

// Move sends the queries, and starts to promote objects that were found and are worth
// their bytes.
func (q *search) Move(ctx context.Context, _ *transfer.Flight, moved func(error)) {
	rem := q.owner
	err := q.find(ctx)
	if err == nil {
		heads := q.heads()
		rem.cat.Mu.Each(len(heads), catalog.HoldRows, func(i int) { q.settleLocked(heads[i]) })
	}
	if transfer.OutcomeOf(err) == transfer.Failed {
		err = fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
	}
	moved(err)
}

// heads returns the objects that were asked for, without their ancestors.
func (q *search) heads() []*remoteLookup {
	if q.rows[0].id.Name.Kind != 0 {
		return q.rows[:1]
	}
	return q.rows
}

// find looks up all rows, including ancestors that it adds on the way.
func (q *search) find(ctx context.Context) error {
	rem := q.owner
	for asked := 0; asked < len(q.rows); {
		rows := q.rows[asked:]
		asked = len(q.rows)
		wants := make([]tier.Want, len(rows))
		for i, k := range rows {
			wants[i] = tier.Want{Name: k.id.Name, Fingerprint: k.id.Profile.Fingerprint(), Tenant: k.id.Tenant.ID, Base: k.base}
		}
		copies, err := rem.cat.Config.Remote.Find(ctx, wants)
		if err == nil && len(copies) != len(rows) {
			err = fmt.Errorf("find: %d answers to %d questions: %w", len(copies), len(rows), tier.ErrUnavailable)
		}
		if err != nil {
			rem.cat.Mu.Each(len(copies), catalog.HoldRows, func(i int) { rem.discardLocked(copies[i]) })
			return err
		}
		rem.cat.Mu.Each(len(rows), catalog.HoldRows, func(i int) { q.hearLocked(rows[i], copies[i]) })
	}
	return nil
}

// hearLocked records the answer for one row. If the found checkpoint has a parent that is
// not on this node, it adds the parent to the search.
func (q *search) hearLocked(k *remoteLookup, c tier.Copy) {
	rem := q.owner
	if q.Ended() {
		rem.discardLocked(c)
		return
	}
	if c == nil {
		rem.cat.Counters.Beyond.FindMisses++
		k.why = tier.ReasonEvicted
		return
	}
	e := *c.Entry()
	if e.Name != k.id.Name || e.Fingerprint != k.id.Profile.Fingerprint() || e.Tenant != k.id.Tenant.ID || !k.id.Profile.Fits(&e) {
		rem.cat.Counters.Beyond.FindsWrong++
		k.why = tier.ReasonAborted
		rem.discardLocked(c)
		return
	}
	e.Bytes, e.Level, e.Generation = 0, tier.LevelDefault, 0 // these values are only valid at the other node
	k.copy, k.Entry = c, e
	if e.Parent == (tier.Name{}) || len(q.rows) >= rem.cat.Config.MaxChain {
		return
	}
	up := objects.Identity{Name: e.Parent, Profile: k.id.Profile, Tenant: k.id.Tenant}
	if rem.cat.Objects.Names.Find(up.Name, up.Profile, up.Tenant) != nil || rem.coming(up.Name) {
		return
	}
	if _, held := rem.cat.Objects.Below.Lookup(up.Name, up.Profile, up.Tenant); held {
		return
	}
	if at := rem.remoteLookupLocked(up); at == nil {
		rem.addLookupLocked(q, up)
	}
}

// settleLocked answers the lookup of an object, and starts to promote the object if it was
// found and is worth its bytes.
func (q *search) settleLocked(k *remoteLookup) {
	rem := q.owner
	if q.Ended() {
		return
	}
	chain := []*remoteLookup{k}
	if k.id.Name.Kind != 0 {
		chain = q.rows
	}
	begin, bytes, known := k.Entry.Begin, int64(0), k.copy != nil
	for _, node := range chain {
		if known = known && node.copy != nil; known {
			begin = min(begin, node.Entry.Begin)
			bytes += rankBytes(node.id.Profile, &node.Entry) * int64(node.id.Profile.Ranks)
		}
	}
	switch {
	case k.copy == nil:
	case !known: // one of its ancestors cannot be fetched
		rem.cat.Counters.Beyond.FindMisses++
		q.loseLocked(k, tier.ReasonEvicted)
	case !k.planned && !rem.WorthLocked(k.id, begin, k.Entry.End, bytes):
		rem.cat.Counters.Beyond.NotWorth++
		q.loseLocked(k, tier.ReasonRefused)
	}
	for _, node := range chain {
		rem.answerLocked(node)
	}
	if k.copy != nil {
		rem.promote(Wanted{Name: k.id.Name, Profile: k.id.Profile, Tenant: k.id.Tenant, Urgent: k.urgent})
	}
}

// loseLocked turns a found object into an absent one.
func (q *search) loseLocked(k *remoteLookup, why tier.Reason) {
	q.owner.discardLocked(k.copy)
	k.copy, k.why = nil, why
}

// rankBytes returns the bytes of one rank's layout of an entry whose shape was checked.
func rankBytes(p *objects.Profile, e *tier.Entry) int64 { return p.PartsOf(e).Bytes }

// Landed does nothing.
func (q *search) Landed(*transfer.Flight) (again bool, err error) { return false, nil }

// End ends the lookups of rows that have no answer yet. Rows that could not be asked for
// count as absent for AnswerTTL.
func (q *search) End(_ *transfer.Flight, err error) {
	rem := q.owner
	rem.cat.Objects.Deadlines.Remove(&q.until)
	for _, k := range q.rows {
		if k.search != q {
			continue
		}
		if k.copy != nil {
			q.loseLocked(k, tier.ReasonNone)
		}
		if how := transfer.OutcomeOf(err); how == transfer.Stopped || rem.cat.Closed {
			k.search = nil
			delete(rem.Lookups, k.id)
		} else {
			k.why = missReason(how)
			rem.answerLocked(k)
		}
	}
}

// OverdueLocked ends a search at its deadline.
func (q *search) OverdueLocked() { q.owner.Engine.Cancel(q.Flight, errFindTime) }

// Release lets the store close, as far as this search is concerned.
func (q *search) Release(*transfer.Flight) { q.owner.cat.Running.Done() }

// Arrived returns nil: other flights bring the objects that a search finds.
func (q *search) Arrived() *objects.Object { return nil }

// Reason returns why a row is a miss after a failed search.
func (q *search) Reason(how transfer.Outcome) tier.Reason { return missReason(how) }
