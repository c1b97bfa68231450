package tiering

import (
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Beyond memory and the lower tier an object may lie at a tier.Remote. A match asks for
// hints only, which look at memory. Whoever acquires, loads or reads ahead what is only
// hinted starts a search (search.go), of all such keys together, which finds where they
// lie and what they are:
//
//	hinted ──► searched ──► found ──► coming ──► in memory
//	   ▲          │           │          │
//	   └ answerTTL└► absent ◄─┘ (corrupt, gone, unavailable, not worth its bytes)
//
// What was found and is worth its bytes is promoted like an entry of the lower tier, by
// the same engine, which reads the copy that was found. What is absent is not asked for
// again until answerTTL has passed, whatever the hints say.
//
// Invariant: a tier.Copy that was found belongs to one of Store.sought, to one promotion
// or to Store.discarded, and is closed once.
type beyond struct {
	seek      *transfer.Engine[*search] // nil without a Remote
	learner   tier.Learner              // the Remote, if it is one
	preparer  tier.Preparer             // the same
	prepared  []tier.Want               // what the match that runs is going to ask for, in order; at most matchRows
	asked     int                       // of these, those before it are behind
	sought    map[objects.Identity]*sought
	answers   []answer // in the order in which they are forgotten
	discarded []tier.Copy
	want      tier.Want // argument of the call that is made to the Remote
	hint      tier.Hint // its last answer
}

// sought is an object that is, or was, looked for.
type sought struct {
	id      objects.Identity
	search  *search   // until it has an answer
	urgent  bool      // a client asked for it
	planned bool      // as of AcquireQuery
	base    tier.Name // as of wanted
	seats   []seat    // that want it in HBM as well
	until   time.Time
	copy    tier.Copy // that was found, and not promoted yet; nil = absent
	entry   tier.Entry
	why     tier.Reason // it is absent
}

// answer is a sought with an answer, until it is forgotten.
type answer struct {
	of    *sought
	until time.Time
}

const (
	// answerTTL is how long an answer holds: as long as an index takes to follow what a
	// node has evicted, some seconds (a guess).
	answerTTL = 5 * time.Second
	// maxAnswers bounds those that are remembered, the oldest are forgotten first.
	maxAnswers = 4096
)

// where something is that neither memory nor the lower tier has.
type where uint8

const (
	nowhere where = iota
	hinted
	searched // somebody looks for it
	found
	coming // it is being promoted
)

func (w *wanted) identity() objects.Identity {
	return objects.Identity{Name: w.name, Profile: w.profile, Tenant: w.tenant}
}

// beyondLocked is where something is that neither memory nor the lower tier has, and why
// it is a miss where that is known.
func (s *Store) beyondLocked(id objects.Identity) (where, tier.Reason) {
	if s.seek == nil {
		return nowhere, tier.ReasonNone
	}
	if p := s.promotionLocked(id.Name); p != nil {
		if p.source == nil || p.profile != id.Profile || p.tenant != id.Tenant {
			return nowhere, tier.ReasonNone
		}
		return coming, tier.ReasonNone
	}
	if k := s.soughtLocked(id); k != nil {
		switch {
		case k.search != nil:
			return searched, tier.ReasonNone
		case k.copy != nil:
			return found, tier.ReasonNone
		}
		return nowhere, k.why
	}
	if len(s.objects.Deleting) > 0 && s.objects.Deleting[id.Name] > 0 {
		return nowhere, tier.ReasonNone
	}
	if _, ok := s.hintLocked(id); ok {
		return hinted, tier.ReasonNone
	}
	return nowhere, tier.ReasonNone
}

// fetchedLocked tells whether something is on its way from beyond this node.
func (s *Store) fetchedLocked(n tier.Name) bool {
	p := s.promotionLocked(n)
	return p != nil && p.source != nil
}

// soughtLocked is what is known of a search that has no answer yet, or one that holds.
func (s *Store) soughtLocked(id objects.Identity) *sought {
	if len(s.sought) == 0 {
		return nil
	}
	k := s.sought[id]
	if k == nil || k.search == nil && !s.cfg.Now().Before(k.until) {
		return nil
	}
	return k
}

func (s *Store) hintLocked(id objects.Identity) (tier.Hint, bool) {
	s.want = tier.Want{Name: id.Name, Fingerprint: id.Profile.Fingerprint(), Tenant: id.Tenant.ID}
	for i := s.asked; i < len(s.prepared); i++ { // what was not prepared takes nobody's place
		if w := &s.prepared[i]; w.Name == id.Name {
			s.want.Mark, s.asked = w.Mark, i
			break
		}
	}
	h, ok := s.cfg.Remote.Hint(&s.want)
	s.hint = h
	return h, ok
}

// prepareLocked tells the Remote which segments a match is going to ask for: those of keys
// that memory does not have, and of their other variants if there are any.
// forgetPreparedLocked follows.
func (s *Store) prepareLocked(keys, second [][32]byte, held, others []*objects.Object, p *objects.Profile, t *objects.Tenant) {
	add := func(key *[32]byte) {
		s.prepared = append(s.prepared, tier.Want{Name: tier.Name{Key: *key}, Fingerprint: p.Fingerprint(), Tenant: t.ID})
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
	if len(s.prepared) > 1 {
		s.preparer.Prepare(s.prepared)
	}
}

func (s *Store) forgetPreparedLocked() { s.prepared, s.asked = s.prepared[:0], 0 }

// foundLocked is the entry of a copy that was found and is not being promoted.
func (s *Store) foundLocked(id objects.Identity) (tier.Entry, bool) {
	if k := s.soughtLocked(id); k != nil && k.copy != nil {
		return k.entry, true
	}
	return tier.Entry{}, false
}

// farLocked tells whether something has to be looked for beyond this node.
func (s *Store) farLocked(id objects.Identity) bool {
	if s.seek == nil {
		return false
	}
	if _, held := s.objects.LookupBelow(id.Name, id.Profile, id.Tenant); held {
		return false
	}
	at, _ := s.beyondLocked(id)
	return at == hinted || at == searched
}

// heldFartherLocked tells whether something that memory does not have may come from the
// lower tier or from beyond this node.
func (s *Store) heldFartherLocked(id objects.Identity) bool {
	if _, held := s.objects.LookupBelow(id.Name, id.Profile, id.Tenant); held {
		return true
	}
	at, _ := s.beyondLocked(id)
	return at != nowhere
}

// elsewhereLocked tells whether an object was fetched and others are believed to have it
// still: it may leave without a trace.
func (s *Store) elsewhereLocked(o *objects.Object) bool {
	if !o.Fetched || s.seek == nil {
		return false
	}
	_, ok := s.hintLocked(o.Identity())
	return ok
}

// bestBeyondLocked finds a checkpoint of an accepted kind, exact before spliced, that
// neither memory nor the lower tier has, or why there is none.
func (s *Store) bestBeyondLocked(hash *[32]byte, accept tier.CheckpointKind, p *objects.Profile, t *objects.Tenant) (n tier.Name, why tier.Reason) {
	if s.seek == nil {
		return tier.Name{}, tier.ReasonNone
	}
	for _, kind := range [...]tier.CheckpointKind{tier.Exact, tier.Spliced} {
		if accept&kind == 0 {
			continue
		}
		n := tier.Name{Kind: kind, Key: *hash}
		if o := s.objects.Named(n, p, t); o != nil && (o.Fill == nil || !o.Fill.Fetched) {
			continue // another one of this name is in the way
		}
		at, absent := s.beyondLocked(objects.Identity{Name: n, Profile: p, Tenant: t})
		if at != nowhere {
			return n, tier.ReasonNone
		}
		why = objects.MoreTelling(why, absent)
	}
	return tier.Name{}, why
}

// statusBeyondLocked answers for a segment that may lie beyond this node. How many
// tokens it saves is known where it was held here lately, or was found; then it is a hit
// only if it is worth its bytes.
func (s *Store) statusBeyondLocked(key *[32]byte, p *objects.Profile, t *objects.Tenant) (row SegmentStatus, ok bool) {
	id := objects.Identity{Name: tier.Name{Key: *key}, Profile: p, Tenant: t}
	at, _ := s.beyondLocked(id)
	tokens := 0
	switch at {
	case nowhere:
		return row, false
	case coming:
		tokens = s.promotionLocked(id.Name).entry.HitTokens()
	case found:
		tokens = s.sought[id].entry.HitTokens()
	case hinted, searched:
		_, known := s.objects.Ghosts.Why(key, p.ID, t.ID)
		tokens = int(known)
		if at == hinted && tokens > 0 && !s.worthLocked(id, 0, tokens, segmentBytes(p, tokens)) {
			s.counters.Beyond.NotWorth++
			return row, false
		}
	}
	if at == hinted || at == found {
		s.hintReadAheadLocked(id.Name, p, t)
	}
	if at != hinted {
		_, _ = s.hintLocked(id) // of where it lies
	}
	return s.hitBeyondLocked(p, uint32(tokens)), true
}

// farPrefix is the longest prefix that is believed to lie beyond this node.
type farPrefix struct {
	at     int // of the prefixes; -1 = none
	name   tier.Name
	missed tier.Reason // of those that are longer
}

// takeFarLocked answers the longest prefix beyond this node, if all it has more than the
// longest one on it is worth the bytes of the whole: how much of it is here already is
// not known before it is found.
func (s *Store) takeFarLocked(far farPrefix, q *MatchQuery, dst *MatchResult, p *objects.Profile, t *objects.Tenant) {
	if far.at < 0 {
		return
	}
	id, tokens := objects.Identity{Name: far.name, Profile: p, Tenant: t}, q.Positions[far.at]
	if !s.worthLocked(id, int(dst.PrefixTokens), int(tokens), prefixBytes(p, int(tokens))) {
		s.counters.Beyond.NotWorth++
		return
	}
	w := wanted{name: far.name, profile: p, tenant: t}
	if dst.PrefixTokens > 0 {
		w.base = tier.Name{Kind: dst.PrefixKind, Key: q.Prefixes[dst.PrefixIndex]}
	}
	dst.PrefixStates = tokens
	dst.PrefixTokens, dst.PrefixIndex, dst.PrefixKind, dst.PrefixPlace, dst.PrefixReason = tokens, far.at, far.name.Kind, tier.PlacePeer, far.missed
	if s.hint.Place == tier.PlaceObject {
		s.counters.Object.PrefixHits++
		s.counters.Object.PrefixHitTokens += uint64(tokens)
	}
	s.hintAheadLocked(w)
}

// endsAtLocked tells whether a checkpoint beyond this node ends at a token, as far as
// that is known.
func (s *Store) endsAtLocked(n tier.Name, p *objects.Profile, t *objects.Tenant, end int) bool {
	if pr := s.promotionLocked(n); pr != nil {
		return pr.entry.End == end
	}
	e, ok := s.foundLocked(objects.Identity{Name: n, Profile: p, Tenant: t})
	return !ok || e.End == end
}

// hitBeyondLocked answers and counts for a key that lies beyond this node, where the last
// hint says. How far off it is will be known when it is here: no farther than its profile
// tolerates.
func (s *Store) hitBeyondLocked(p *objects.Profile, tokens uint32) SegmentStatus {
	s.counters.HitSegments++
	s.counters.HitTokens += uint64(tokens)
	s.counters.Beyond.HitSegments++
	s.counters.Beyond.HitTokens += uint64(tokens)
	if s.hint.Place == tier.PlaceObject {
		s.counters.Object.HitSegments++
		s.counters.Object.HitTokens += uint64(tokens)
	}
	return SegmentStatus{Status: tier.StatusHit, Place: tier.PlacePeer, Tokens: tokens, Error: p.MaxError()}
}

// segmentBytes is what a segment of so many interior tokens takes on all ranks, but for
// padding.
func segmentBytes(p *objects.Profile, interior int) int64 {
	shape := &p.Costs.Model().Shape
	return shape.SegmentBytes + shape.RowBytes(interior)
}

// prefixBytes is what a checkpoint takes with all rows that it needs, but for padding.
func prefixBytes(p *objects.Profile, tokens int) int64 {
	return p.Costs.Model().Shape.PrefixBytes(tokens, 1)
}

// worthLocked tells whether fetching bytes takes less time than computing tokens [begin,
// end): as the hint says, or where that says nothing as fetches have taken so far.
func (s *Store) worthLocked(id objects.Identity, begin, end int, bytes int64) bool {
	h, _ := s.hintLocked(id)
	return worth(h, id.Profile, begin, end, bytes)
}

// worth tells whether fetching bytes takes less time than computing tokens [begin, end).
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

// takeCopyLocked gives a promotion the copy that it reads, if it was found beyond this
// node.
func (s *Store) takeCopyLocked(p *promotion) {
	if p.into != nil || s.seek == nil {
		return
	}
	id := objects.Identity{Name: p.name, Profile: p.profile, Tenant: p.tenant}
	if _, held := s.objects.LookupBelow(id.Name, id.Profile, id.Tenant); held {
		return
	}
	k := s.sought[id]
	p.source, p.further = k.copy, k.seats
	k.copy = nil
	delete(s.sought, id)
}

// endFetchLocked ends a promotion's use of its copy, unless it is being read, and
// remembers that it could not be had.
func (s *Store) endFetchLocked(p *promotion, err error) {
	if p.source == nil {
		return
	}
	if p.fill == nil {
		s.discardLocked(p.source)
	}
	switch how := transfer.OutcomeOf(err); how {
	case transfer.Corrupt, transfer.Gone, transfer.Unavailable:
		s.absentLocked(objects.Identity{Name: p.name, Profile: p.profile, Tenant: p.tenant}, promotionReason(how))
	}
}

// absentLocked remembers that something could not be had.
func (s *Store) absentLocked(id objects.Identity, why tier.Reason) {
	k := s.sought[id]
	if k == nil || k.search == nil { // else that may find it elsewhere
		k = s.replaceLocked(id)
		k.why = why
		s.answerLocked(k)
	}
}

// replaceLocked begins anew for something that nobody looks for.
func (s *Store) replaceLocked(id objects.Identity) *sought {
	if old := s.sought[id]; old != nil {
		s.discardLocked(old.copy)
		old.copy = nil
	}
	k := &sought{id: id}
	s.sought[id] = k
	return k
}

// answerLocked has an answer hold for its time.
func (s *Store) answerLocked(k *sought) {
	now := s.cfg.Now()
	k.search, k.until = nil, now.Add(answerTTL)
	s.answers = append(s.answers, answer{k, k.until})
	for len(s.answers) > maxAnswers {
		s.forgetAnswerLocked()
	}
}

func (s *Store) forgetAnswerLocked() {
	k := s.answers[0].of
	s.answers[0] = answer{}
	s.answers = s.answers[1:]
	if s.sought[k.id] == k && k.search == nil {
		s.discardLocked(k.copy)
		k.copy = nil
		delete(s.sought, k.id)
	}
}

// sweepBeyond forgets answers that do not hold any more.
func (s *Store) sweepBeyond(now time.Time) {
	if s.seek == nil {
		return
	}
	_ = s.inTurns(func() error {
		for n := 0; len(s.answers) > 0 && !now.Before(s.answers[0].until); n++ {
			if n == holdRows {
				return objects.ErrAgain
			}
			s.forgetAnswerLocked()
		}
		return nil
	})
	s.closeDiscarded()
}

// discardLocked has a copy closed once nobody holds the lock; nil is nothing.
func (s *Store) discardLocked(c tier.Copy) {
	if c != nil {
		s.discarded = append(s.discarded, c)
	}
}

// closeDiscarded closes what is not needed any more.
func (s *Store) closeDiscarded() {
	if s.cfg.Remote == nil {
		return
	}
	s.mu.Lock()
	list := s.discarded
	s.discarded = nil
	s.mu.Unlock()
	for _, c := range list {
		c.Close()
	}
}

// closeBeyond forgets everything that was found.
func (s *Store) closeBeyond() {
	if s.seek == nil {
		return
	}
	s.mu.Lock()
	for len(s.answers) > 0 {
		s.forgetAnswerLocked()
	}
	s.mu.Unlock()
	s.closeDiscarded()
}
