package tiering

import (
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// An object that is neither in memory nor in the lower tier may be at a tier.Remote. A
// match asks for hints only, which read memory. An acquire, load or read-ahead of an
// object that is only hinted starts a search (search.go) for all such keys together. It
// finds where the objects are, and their entries:
//
//	hinted ──► searched ──► found ──► coming ──► in memory
//	   ▲          │           │          │
//	   └ answerTTL└► absent ◄─┘ (corrupt, gone, unavailable, not worth its bytes)
//
// An object that was found and is worth its bytes is promoted like an entry of the lower
// tier, by the same engine, which reads the copy that was found. An absent object is not
// looked up again until answerTTL has passed, whatever the hints say.
//
// Invariant: a tier.Copy that was found belongs to one of Store.sought, to one promotion
// or to Store.discarded, and is closed once.
type beyond struct {
	seek      *transfer.Engine[*search] // nil without a Remote
	learner   tier.Learner              // the Remote, if it is a Learner
	preparer  tier.Preparer             // the Remote, if it is a Preparer
	prepared  []tier.Want               // what the running match will ask for, in order; at most matchRows
	asked     int                       // index into prepared: earlier ones were asked already
	sought    map[objects.Identity]*sought
	answers   []answer // in order of expiry
	discarded []tier.Copy
	want      tier.Want // argument of the current call to the Remote
	hint      tier.Hint // its last answer
}

// sought is an object with a remote lookup, running or answered.
type sought struct {
	id      objects.Identity
	search  *search   // while it has no answer
	urgent  bool      // a client asked for it
	planned bool      // as in AcquireQuery
	base    tier.Name // as in wanted
	seats   []seat    // ranks that also want it in HBM
	until   time.Time
	copy    tier.Copy // found and not yet promoted; nil = absent
	entry   tier.Entry
	why     tier.Reason // why it is absent
}

// answer is a sought that has an answer, until it is forgotten.
type answer struct {
	of    *sought
	until time.Time
}

const (
	// answerTTL is the validity of an answer: about as long as an index takes to follow a
	// node's evictions, some seconds (a guess).
	answerTTL = 5 * time.Second
	// maxAnswers bounds the answers that are kept; the oldest are forgotten first.
	maxAnswers = 4096
)

// where is the state of a remote lookup for an object that neither memory nor the lower
// tier has.
type where uint8

const (
	nowhere where = iota
	hinted
	searched // a lookup is running
	found
	coming // being promoted
)

func (w *wanted) identity() objects.Identity {
	return objects.Identity{Name: w.name, Profile: w.profile, Tenant: w.tenant}
}

// beyondLocked returns the remote state of an object that neither memory nor the lower
// tier has, and, if known, why it is a miss.
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

// fetchedLocked reports whether an object is being fetched from outside this node.
func (s *Store) fetchedLocked(n tier.Name) bool {
	p := s.promotionLocked(n)
	return p != nil && p.source != nil
}

// soughtLocked returns the lookup of an object if it is running or its answer is still
// valid, otherwise nil.
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
	for i := s.asked; i < len(s.prepared); i++ { // asked moves only if this one was prepared
		if w := &s.prepared[i]; w.Name == id.Name {
			s.want.Mark, s.asked = w.Mark, i
			break
		}
	}
	h, ok := s.cfg.Remote.Hint(&s.want)
	s.hint = h
	return h, ok
}

// prepareLocked announces to the Remote which segments a match will ask for: the keys
// that memory does not have, and their other variants if there are any. The caller calls
// forgetPreparedLocked afterwards.
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

// foundLocked returns the entry of a copy that was found and is not being promoted.
func (s *Store) foundLocked(id objects.Identity) (tier.Entry, bool) {
	if k := s.soughtLocked(id); k != nil && k.copy != nil {
		return k.entry, true
	}
	return tier.Entry{}, false
}

// farLocked reports whether an object needs a remote lookup.
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

// heldFartherLocked reports whether an object that memory does not have may come from the
// lower tier or from outside this node.
func (s *Store) heldFartherLocked(id objects.Identity) bool {
	if _, held := s.objects.LookupBelow(id.Name, id.Profile, id.Tenant); held {
		return true
	}
	at, _ := s.beyondLocked(id)
	return at != nowhere
}

// elsewhereLocked reports whether an object was fetched and is still believed to be
// cached elsewhere. Such an object is evicted without demotion.
func (s *Store) elsewhereLocked(o *objects.Object) bool {
	if !o.Fetched || s.seek == nil {
		return false
	}
	_, ok := s.hintLocked(o.Identity())
	return ok
}

// bestBeyondLocked finds a remote checkpoint of an accepted kind, exact before spliced.
// If there is none it returns the reason.
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
			continue // another object of this name is in the way
		}
		at, absent := s.beyondLocked(objects.Identity{Name: n, Profile: p, Tenant: t})
		if at != nowhere {
			return n, tier.ReasonNone
		}
		why = objects.MoreTelling(why, absent)
	}
	return tier.Name{}, why
}

// statusBeyondLocked returns the status of a segment that may be remote. The tokens that
// it saves are known if it was cached here recently or was found. In that case it is a
// hit only if it is worth its bytes.
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
		_, _ = s.hintLocked(id) // sets s.hint, which says where it is
	}
	return s.hitBeyondLocked(p, uint32(tokens)), true
}

// farPrefix is the longest prefix with a remote hint.
type farPrefix struct {
	at     int // index into the prefixes; -1 = none
	name   tier.Name
	missed tier.Reason // why the longer ones missed
}

// takeFarLocked returns the longest remote prefix as the result if the tokens that it has
// beyond the longest local prefix are worth the bytes of the whole checkpoint. How much
// of it is here already is unknown until it is found.
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

// endsAtLocked reports whether a remote checkpoint ends at a token, as far as that is
// known.
func (s *Store) endsAtLocked(n tier.Name, p *objects.Profile, t *objects.Tenant, end int) bool {
	if pr := s.promotionLocked(n); pr != nil {
		return pr.entry.End == end
	}
	e, ok := s.foundLocked(objects.Identity{Name: n, Profile: p, Tenant: t})
	return !ok || e.End == end
}

// hitBeyondLocked counts and returns a hit at the place of the last hint. Its error bound
// is not known before it arrives and is at most the profile's tolerance.
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

// segmentBytes returns the bytes of a segment with a number of interior tokens, over all
// ranks and without padding.
func segmentBytes(p *objects.Profile, interior int) int64 {
	shape := &p.Costs.Model().Shape
	return shape.SegmentBytes + shape.RowBytes(interior)
}

// prefixBytes returns the bytes of a checkpoint with all rows that it needs, without
// padding.
func prefixBytes(p *objects.Profile, tokens int) int64 {
	return p.Costs.Model().Shape.PrefixBytes(tokens, 1)
}

// worthLocked reports whether fetching bytes takes less time than computing tokens
// [begin, end). It uses the hint, or the costs of past fetches where the hint gives none.
func (s *Store) worthLocked(id objects.Identity, begin, end int, bytes int64) bool {
	h, _ := s.hintLocked(id)
	return worth(h, id.Profile, begin, end, bytes)
}

// worth reports whether fetching bytes takes less time than computing tokens [begin,
// end).
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

// takeCopyLocked passes the copy that was found remotely to the promotion that reads it.
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

// endFetchLocked ends a promotion's use of its copy, unless the copy is being read. After
// an error it records the object as absent.
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

// absentLocked records that an object could not be fetched.
func (s *Store) absentLocked(id objects.Identity, why tier.Reason) {
	k := s.sought[id]
	if k == nil || k.search == nil { // a running search may find it elsewhere
		k = s.replaceLocked(id)
		k.why = why
		s.answerLocked(k)
	}
}

// replaceLocked starts a new record for an object without a running search.
func (s *Store) replaceLocked(id objects.Identity) *sought {
	if old := s.sought[id]; old != nil {
		s.discardLocked(old.copy)
		old.copy = nil
	}
	k := &sought{id: id}
	s.sought[id] = k
	return k
}

// answerLocked starts the validity of an answer.
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

// sweepBeyond forgets expired answers.
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

// discardLocked queues a copy to be closed without the lock; nil does nothing.
func (s *Store) discardLocked(c tier.Copy) {
	if c != nil {
		s.discarded = append(s.discarded, c)
	}
}

// closeDiscarded closes the copies queued by discardLocked.
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

// closeBeyond discards everything that was found.
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
