package tiering

import (
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// remote is the part of a store that finds objects outside this node. Guarded by the
// store's lock.
//
// An object that is neither in memory nor in the lower tier may be at a tier.Remote. A
// match asks for hints only, which read memory. An acquire, load or read-ahead of an
// object that is only hinted starts a search (search.go) for all such keys together. It
// finds where the objects are, and their entries:
//
//	hinted ──► searching ──► located ──► fetching ──► in memory
//	   ▲          │           │          │
//	   └ answerTTL└► absent ◄─┘ (corrupt, gone, unavailable, not worth its bytes)
//
// An object that was found and is worth its bytes is promoted like an entry of the lower
// tier, by the same engine, which reads the copy that was found. An absent object is not
// looked up again until answerTTL has passed, whatever the hints say.
//
// Invariant: a tier.Copy that was found belongs to one of remote.lookups, to one promotion
// or to remote.discarded, and is closed once.
type remote struct {
	*catalog
	promotions *promotions

	engine    *transfer.Engine[*search] // nil without a Remote
	learner   tier.Learner              // the Remote, if it is a Learner
	preparer  tier.Preparer             // the Remote, if it is a Preparer
	prepared  []tier.Want               // what the running match will ask the Remote for, in order; at most matchRows
	asked     int                       // index into prepared: entries before it were asked for already
	lookups   map[objects.Identity]*remoteLookup
	answers   []answer // in order of expiry
	discarded []tier.Copy
	want      tier.Want // argument of the last call of the Remote's Hint
	hint      tier.Hint // result of the last call of the Remote's Hint
}

// remoteLookup is an object with a remote lookup, running or answered.
type remoteLookup struct {
	id      objects.Identity
	search  *search        // the running search; nil once it has an answer
	urgent  bool           // a client asked for it
	planned bool           // as in AcquireQuery
	base    tier.Name      // as in wanted
	devices []rankOnDevice // ranks that also want the object in HBM
	until   time.Time
	copy    tier.Copy // the copy that was found and is not yet promoted; nil = absent
	entry   tier.Entry
	why     tier.Reason // why the object is absent
}

// answer is an answered lookup and the time until which the answer is valid.
type answer struct {
	of    *remoteLookup
	until time.Time
}

const (
	// answerTTL is the validity of an answer. It is some seconds, about the time that an
	// index takes to follow the evictions of a node (a guess).
	answerTTL = 5 * time.Second
	// maxAnswers is the maximum number of answers that are kept; the oldest are forgotten first.
	maxAnswers = 4096
)

// remoteState is the state of a remote lookup for an object that neither memory nor the lower
// tier has.
type remoteState uint8

const (
	notRemote remoteState = iota
	hinted
	searching // a lookup is running
	located
	fetching // being promoted
)

func (w *wanted) identity() objects.Identity {
	return objects.Identity{Name: w.name, Profile: w.profile, Tenant: w.tenant}
}

// beyondLocked returns the remote state of an object that neither memory nor the lower
// tier has, and, if known, why it is a miss.
func (rem *remote) beyondLocked(id objects.Identity) (remoteState, tier.Reason) {
	if rem.engine == nil {
		return notRemote, tier.ReasonNone
	}
	if p := rem.promotions.promotionLocked(id.Name); p != nil {
		if p.source == nil || p.profile != id.Profile || p.tenant != id.Tenant {
			return notRemote, tier.ReasonNone
		}
		return fetching, tier.ReasonNone
	}
	if k := rem.remoteLookupLocked(id); k != nil {
		switch {
		case k.search != nil:
			return searching, tier.ReasonNone
		case k.copy != nil:
			return located, tier.ReasonNone
		}
		return notRemote, k.why
	}
	if len(rem.objects.Below.Deleting) > 0 && rem.objects.Below.Deleting[id.Name] > 0 {
		return notRemote, tier.ReasonNone
	}
	if _, ok := rem.hintLocked(id); ok {
		return hinted, tier.ReasonNone
	}
	return notRemote, tier.ReasonNone
}

// fetchedLocked reports whether an object is being fetched from outside this node.
func (pro *promotions) fetchedLocked(n tier.Name) bool {
	p := pro.promotionLocked(n)
	return p != nil && p.source != nil
}

// remoteLookupLocked returns the lookup of an object if it is running or its answer is still
// valid, otherwise nil.
func (rem *remote) remoteLookupLocked(id objects.Identity) *remoteLookup {
	if len(rem.lookups) == 0 {
		return nil
	}
	k := rem.lookups[id]
	if k == nil || k.search == nil && !rem.cfg.Now().Before(k.until) {
		return nil
	}
	return k
}

func (rem *remote) hintLocked(id objects.Identity) (tier.Hint, bool) {
	rem.want = tier.Want{Name: id.Name, Fingerprint: id.Profile.Fingerprint(), Tenant: id.Tenant.ID}
	for i := rem.asked; i < len(rem.prepared); i++ { // asked moves only if this object was prepared
		if w := &rem.prepared[i]; w.Name == id.Name {
			rem.want.Mark, rem.asked = w.Mark, i
			break
		}
	}
	h, ok := rem.cfg.Remote.Hint(&rem.want)
	rem.hint = h
	return h, ok
}

// prepareLocked announces to the Remote which segments a match will ask for: the keys that have
// no object in the list held, and the keys of their other variants (the list second) that have
// no object in the list others. The caller must call forgetPreparedLocked afterwards.
func (rem *remote) prepareLocked(keys, second [][32]byte, held, others []*objects.Object, p *objects.Profile, t *objects.Tenant) {
	add := func(key *[32]byte) {
		rem.prepared = append(rem.prepared, tier.Want{Name: tier.Name{Key: *key}, Fingerprint: p.Fingerprint(), Tenant: t.ID})
	}
	for i := range keys {
		if held[i] != nil {
			continue
		}
		add(&keys[i])
		if len(second) > 0 && others[i] == nil && second[i] != ([32]byte{}) {
			add(&second[i])
		}
	}
	if len(rem.prepared) > 1 {
		rem.preparer.Prepare(rem.prepared)
	}
}

func (rem *remote) forgetPreparedLocked() { rem.prepared, rem.asked = rem.prepared[:0], 0 }

// foundLocked returns the entry of a copy that a search has found and that no promotion
// reads yet.
func (rem *remote) foundLocked(id objects.Identity) (tier.Entry, bool) {
	if k := rem.remoteLookupLocked(id); k != nil && k.copy != nil {
		return k.entry, true
	}
	return tier.Entry{}, false
}

// farLocked reports whether an object needs a remote lookup.
func (rem *remote) farLocked(id objects.Identity) bool {
	if rem.engine == nil {
		return false
	}
	if _, held := rem.objects.Below.Lookup(id.Name, id.Profile, id.Tenant); held {
		return false
	}
	at, _ := rem.beyondLocked(id)
	return at == hinted || at == searching
}

// heldFartherLocked reports whether an object that memory does not have may come from the
// lower tier or from outside this node.
func (rem *remote) heldFartherLocked(id objects.Identity) bool {
	if _, held := rem.objects.Below.Lookup(id.Name, id.Profile, id.Tenant); held {
		return true
	}
	at, _ := rem.beyondLocked(id)
	return at != notRemote
}

// elsewhereLocked reports whether an object was fetched and is still believed to be
// cached elsewhere. Such an object is evicted without demotion.
func (rem *remote) elsewhereLocked(o *objects.Object) bool {
	if !o.Fetched || rem.engine == nil {
		return false
	}
	_, ok := rem.hintLocked(o.Identity())
	return ok
}

// bestBeyondLocked finds a checkpoint of an accepted kind outside the node, an exact one
// rather than a spliced one. If there is none, it returns the reason.
func (rem *remote) bestBeyondLocked(hash *[32]byte, accept tier.CheckpointKind, p *objects.Profile, t *objects.Tenant) (n tier.Name, why tier.Reason) {
	if rem.engine == nil {
		return tier.Name{}, tier.ReasonNone
	}
	for _, kind := range [...]tier.CheckpointKind{tier.Exact, tier.Spliced} {
		if accept&kind == 0 {
			continue
		}
		n := tier.Name{Kind: kind, Key: *hash}
		if o := rem.objects.Names.Find(n, p, t); o != nil && (o.Fill == nil || !o.Fill.Fetched) {
			continue // this node has another object of this name
		}
		at, absent := rem.beyondLocked(objects.Identity{Name: n, Profile: p, Tenant: t})
		if at != notRemote {
			return n, tier.ReasonNone
		}
		why = objects.MoreTelling(why, absent)
	}
	return tier.Name{}, why
}

// statusBeyondLocked returns the status of a segment that may be outside the node. Its number of
// tokens is known only if the segment was found, or was cached on this node recently. If the
// number is known, the segment is a hit only if fetching it takes less time than computing it.
func (look *lookup) statusBeyondLocked(key *[32]byte, p *objects.Profile, t *objects.Tenant) (row SegmentStatus, ok bool) {
	id := objects.Identity{Name: tier.Name{Key: *key}, Profile: p, Tenant: t}
	at, _ := look.remote.beyondLocked(id)
	tokens := 0
	switch at {
	case notRemote:
		return row, false
	case fetching:
		tokens = look.promotions.promotionLocked(id.Name).entry.HitTokens()
	case located:
		tokens = look.remote.lookups[id].entry.HitTokens()
	case hinted, searching:
		_, known := look.objects.Names.Ghosts.Why(key, p.ID, t.ID)
		tokens = int(known)
		if at == hinted && tokens > 0 && !look.remote.worthLocked(id, 0, tokens, segmentBytes(p, tokens)) {
			look.counters.Beyond.NotWorth++
			return row, false
		}
	}
	if at == hinted || at == located {
		look.promotions.hintReadAheadLocked(id.Name, p, t)
	}
	if at != hinted {
		_, _ = look.remote.hintLocked(id) // sets remote.hint, which says where the segment is
	}
	return look.hitBeyondLocked(p, uint32(tokens)), true
}

// farPrefix is the longest prefix with a remote hint.
type farPrefix struct {
	at     int // index into the query's prefixes; -1 = none
	name   tier.Name
	missed tier.Reason // why longer prefixes missed
}

// takeFarLocked makes the longest remote prefix the result if it is worth fetching. Fetching
// saves the computation of the tokens that it has more than the longest local prefix. It costs
// the transfer of the whole checkpoint, since only a search could count the bytes that are on
// this node already.
func (look *lookup) takeFarLocked(far farPrefix, q *MatchQuery, dst *MatchResult, p *objects.Profile, t *objects.Tenant) {
	if far.at < 0 {
		return
	}
	id, tokens := objects.Identity{Name: far.name, Profile: p, Tenant: t}, q.Positions[far.at]
	if !look.remote.worthLocked(id, int(dst.PrefixTokens), int(tokens), prefixBytes(p, int(tokens))) {
		look.counters.Beyond.NotWorth++
		return
	}
	w := wanted{name: far.name, profile: p, tenant: t}
	if dst.PrefixTokens > 0 {
		w.base = tier.Name{Kind: dst.PrefixKind, Key: q.Prefixes[dst.PrefixIndex]}
	}
	dst.PrefixStates = tokens
	dst.PrefixTokens, dst.PrefixIndex, dst.PrefixKind, dst.PrefixPlace, dst.PrefixReason = tokens, far.at, far.name.Kind, tier.PlacePeer, far.missed
	if look.remote.hint.Place == tier.PlaceObject {
		look.counters.Object.PrefixHits++
		look.counters.Object.PrefixHitTokens += uint64(tokens)
	}
	look.promotions.hintAheadLocked(w)
}

// endsAtLocked reports whether the number of tokens of a remote checkpoint is the parameter end.
// It returns true if that number is not known.
func (look *lookup) endsAtLocked(n tier.Name, p *objects.Profile, t *objects.Tenant, end int) bool {
	if pr := look.promotions.promotionLocked(n); pr != nil {
		return pr.entry.End == end
	}
	e, ok := look.remote.foundLocked(objects.Identity{Name: n, Profile: p, Tenant: t})
	return !ok || e.End == end
}

// hitBeyondLocked counts and returns a hit at the place of the last hint. The error bound
// of the segment is not known before it arrives, so the hit has the profile's tolerance.
func (look *lookup) hitBeyondLocked(p *objects.Profile, tokens uint32) SegmentStatus {
	n := look.of(p)
	n.HitSegments++
	n.HitTokens += uint64(tokens)
	n.Beyond.HitSegments++
	n.Beyond.HitTokens += uint64(tokens)
	if look.remote.hint.Place == tier.PlaceObject {
		n.Object.HitSegments++
		n.Object.HitTokens += uint64(tokens)
	}
	return SegmentStatus{Status: tier.StatusHit, Place: tier.PlacePeer, Tokens: tokens, Error: p.MaxError()}
}

// segmentBytes returns the bytes of a segment with a number of interior tokens, over all
// ranks and without padding.
func segmentBytes(p *objects.Profile, interior int) int64 {
	shape := &p.Costs.Model().Shape
	return shape.SegmentBytes + shape.RowBytes(interior)
}

// prefixBytes returns the bytes of a checkpoint with all rows of its prefix, without padding.
func prefixBytes(p *objects.Profile, tokens int) int64 {
	return p.Costs.Model().Shape.PrefixBytes(tokens, 1)
}

// worthLocked reports whether fetching the given number of bytes takes less time than computing
// tokens [begin, end). It uses the latency and speed of the hint, or those of past fetches if
// the hint has none.
func (rem *remote) worthLocked(id objects.Identity, begin, end int, bytes int64) bool {
	h, _ := rem.hintLocked(id)
	return worth(h, id.Profile, begin, end, bytes)
}

// worth reports whether fetching the given number of bytes takes less time than computing tokens
// [begin, end).
func worth(h tier.Hint, p *objects.Profile, begin, end int, bytes int64) bool {
	m := p.Costs.Model()
	link := m.Link(cost.JobLoadPeer)
	if h.Latency > 0 {
		link.Fixed = h.Latency.Seconds() * 1e3
	}
	if h.BytesPerSecond > 0 {
		link.PerByte = 1e3 / h.BytesPerSecond
	}
	return link.Millis(bytes) < m.Prefill().Marginal(begin, end)
}

// takeCopyLocked passes the copy that a search has found to the promotion that reads it.
func (rem *remote) takeCopyLocked(p *promotion) {
	if p.into != nil || rem.engine == nil {
		return
	}
	id := objects.Identity{Name: p.name, Profile: p.profile, Tenant: p.tenant}
	if _, held := rem.objects.Below.Lookup(id.Name, id.Profile, id.Tenant); held {
		return
	}
	k := rem.lookups[id]
	p.source, p.further = k.copy, k.devices
	k.copy = nil
	delete(rem.lookups, id)
}

// endFetchLocked ends a promotion's use of its copy. If the copy is being read, Release
// discards it later. After an error it records the object as absent.
func (rem *remote) endFetchLocked(p *promotion, err error) {
	if p.source == nil {
		return
	}
	if p.fill == nil {
		rem.discardLocked(p.source)
	}
	switch how := transfer.OutcomeOf(err); how {
	case transfer.Corrupt, transfer.Gone, transfer.Unavailable:
		rem.absentLocked(objects.Identity{Name: p.name, Profile: p.profile, Tenant: p.tenant}, promotionReason(how))
	}
}

// absentLocked records that an object could not be fetched.
func (rem *remote) absentLocked(id objects.Identity, why tier.Reason) {
	k := rem.lookups[id]
	if k == nil || k.search == nil { // a running search may still find it elsewhere
		k = rem.replaceLocked(id)
		k.why = why
		rem.answerLocked(k)
	}
}

// replaceLocked replaces the record of an object that has no running search by a new one.
func (rem *remote) replaceLocked(id objects.Identity) *remoteLookup {
	if old := rem.lookups[id]; old != nil {
		rem.discardLocked(old.copy)
		old.copy = nil
	}
	k := &remoteLookup{id: id}
	rem.lookups[id] = k
	return k
}

// answerLocked marks a lookup as answered, valid for answerTTL.
func (rem *remote) answerLocked(k *remoteLookup) {
	now := rem.cfg.Now()
	k.search, k.until = nil, now.Add(answerTTL)
	rem.answers = append(rem.answers, answer{k, k.until})
	for len(rem.answers) > maxAnswers {
		rem.forgetAnswerLocked()
	}
}

func (rem *remote) forgetAnswerLocked() {
	k := rem.answers[0].of
	rem.answers[0] = answer{}
	rem.answers = rem.answers[1:]
	if rem.lookups[k.id] == k && k.search == nil {
		rem.discardLocked(k.copy)
		k.copy = nil
		delete(rem.lookups, k.id)
	}
}

// sweepBeyond forgets expired answers.
func (rem *remote) sweepBeyond(now time.Time) {
	if rem.engine == nil {
		return
	}
	_ = rem.inTurns(func() error {
		for n := 0; len(rem.answers) > 0 && !now.Before(rem.answers[0].until); n++ {
			if n == holdRows {
				return objects.ErrAgain
			}
			rem.forgetAnswerLocked()
		}
		return nil
	})
	rem.closeDiscarded()
}

// discardLocked queues a copy to be closed without the lock; nil does nothing.
func (rem *remote) discardLocked(c tier.Copy) {
	if c != nil {
		rem.discarded = append(rem.discarded, c)
	}
}

// closeDiscarded closes the copies queued by discardLocked.
func (rem *remote) closeDiscarded() {
	if rem.cfg.Remote == nil {
		return
	}
	rem.mu.Lock()
	list := rem.discarded
	rem.discarded = nil
	rem.mu.Unlock()
	for _, c := range list {
		c.Close()
	}
}

// closeBeyond closes all copies that were found and not promoted.
func (rem *remote) closeBeyond() {
	if rem.engine == nil {
		return
	}
	rem.mu.Lock()
	for len(rem.answers) > 0 {
		rem.forgetAnswerLocked()
	}
	rem.mu.Unlock()
	rem.closeDiscarded()
}
