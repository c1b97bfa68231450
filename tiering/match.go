package tiering

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// matchRows bounds one critical section of Match; longer questions take several. All
// its keys are looked up before the objects are read, so that the processor waits for
// many of their cache lines at once: with 10^5 segments 32 keys take 1.9 us instead of
// 3.4 (measured).
const matchRows = 2 * holdRows

// Match answers the longest checkpoint of an accepted kind and the status of
// each segment key, in memory or else in the lower tier. It does no I/O, takes no
// lease, does not count as a use, and once dst has grown it allocates nothing.
func (s *Store) Match(q *MatchQuery, dst *MatchResult) error {
	p, err := s.profile(q.Profile)
	if err != nil {
		return err
	}
	t, err := s.tenant(q.Tenant)
	if err != nil {
		return err
	}
	if len(q.Positions) != len(q.Prefixes) {
		return fmt.Errorf("match: %d positions for %d prefixes: %w", len(q.Positions), len(q.Prefixes), tier.ErrInvalid)
	}
	for i := 1; i < len(q.Positions); i++ {
		if q.Positions[i] <= q.Positions[i-1] {
			return fmt.Errorf("match: position %d after %d: %w", q.Positions[i], q.Positions[i-1], tier.ErrInvalid)
		}
	}
	if q.Accept&^(tier.Exact|tier.Spliced) != 0 {
		return fmt.Errorf("match: accepts kinds %#x: %w", q.Accept, tier.ErrInvalid)
	}
	*dst = MatchResult{Segments: slices.Grow(dst.Segments[:0], len(q.Keys))[:len(q.Keys)]}
	s.matchPrefix(q, dst, p, t)
	s.matchSegments(q, dst, p, t)
	return nil
}

func (s *Store) matchSegments(q *MatchQuery, dst *MatchResult, p *profileState, t *tenant) {
	for first := 0; first < len(q.Keys); first += matchRows {
		keys := q.Keys[first:min(first+matchRows, len(q.Keys))]
		s.mu.Lock()
		s.statusesLocked(keys, dst.Segments[first:first+len(keys)], p, t, q.Device)
		s.mu.Unlock()
	}
}

func (s *Store) statusesLocked(keys [][32]byte, rows []SegmentStatus, p *profileState, t *tenant, device bool) {
	var found [matchRows]*object
	for i := range keys {
		found[i] = s.segments.Find(&keys[i])
	}
	for i := range keys {
		rows[i] = s.statusLocked(found[i], &keys[i], p, t, device)
	}
}

// statusLocked answers and counts for one key and what the catalogue has of it.
func (s *Store) statusLocked(o *object, key *[32]byte, p *profileState, t *tenant, device bool) SegmentStatus {
	switch {
	case o == nil || o.profile != p || o.tenant != t:
		if s.cfg.Lower != nil && s.matchBelowLocked(key, p, t) {
			if device && s.aboveLocked(&s.found, p, t) {
				return s.hitAboveLocked(uint32(s.found.HitTokens()))
			}
			return s.hitBelowLocked(uint32(s.found.HitTokens()))
		}
		why, tokens := s.ghosts.Why(key, p.id, t.ID)
		s.counters.miss(why, tokens)
		return SegmentStatus{Status: tier.StatusMiss, Reason: why}
	case o.fill != nil && o.fill.promotion != nil:
		return s.hitBelowLocked(uint32(o.tokens()))
	case o.fill != nil:
		s.counters.miss(tier.ReasonPending, uint32(o.tokens()))
		return SegmentStatus{Status: tier.StatusPending, Reason: tier.ReasonPending}
	}
	s.counters.HitSegments++
	s.counters.HitTokens += uint64(o.tokens())
	place := s.place
	switch {
	case !device:
	case o.resident != nil:
		place = tier.PlaceHBM
		s.counters.HBM.HitSegments++
		s.counters.HBM.HitTokens += uint64(o.tokens())
	default:
		s.hintHBMLocked(o)
	}
	return SegmentStatus{Status: tier.StatusHit, Place: place, Tokens: uint32(o.tokens())}
}

// matchBelowLocked finds a segment in the lower tier, as s.found, without copies
// of the entry: most keys are found nowhere.
func (s *Store) matchBelowLocked(key *[32]byte, p *profileState, t *tenant) bool {
	s.asked = tier.Name{Key: *key}
	if len(s.deleting) > 0 && s.deleting[s.asked] > 0 {
		return false
	}
	var ok bool
	s.found, ok = s.cfg.Lower.Lookup(&s.asked)
	if !ok || s.found.Tenant != t.ID || s.found.Fingerprint != p.Fingerprint() {
		return false
	}
	s.hintReadAheadLocked(s.asked, p, t)
	return true
}

// aboveLocked tells whether an entry of the lower tier has copies in HBM.
func (s *Store) aboveLocked(e *tier.Entry, p *profileState, t *tenant) bool {
	if s.hbm == nil || s.hbm.loose == 0 {
		return false
	}
	r := s.hbm.held[residentKey{e.Name, p, t}]
	return r != nil && r.source == nil && r.generation == e.Generation
}

func (s *Store) hitAboveLocked(tokens uint32) SegmentStatus {
	s.counters.HitSegments++
	s.counters.HitTokens += uint64(tokens)
	s.counters.HBM.HitSegments++
	s.counters.HBM.HitTokens += uint64(tokens)
	return SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceHBM, Tokens: tokens}
}

// hitBelowLocked answers and counts for a key that lies in the lower tier.
func (s *Store) hitBelowLocked(tokens uint32) SegmentStatus {
	s.counters.HitSegments++
	s.counters.HitTokens += uint64(tokens)
	s.counters.HitSegmentsDisk++
	s.counters.HitTokensDisk += uint64(tokens)
	return SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDisk, Tokens: tokens}
}

// matchPrefix walks the prefixes from the longest down. The reason it gives for
// the positions that were longer than the hit is the most telling one: a
// checkpoint of another kind, one being filled, else what became of the longest.
func (s *Store) matchPrefix(q *MatchQuery, dst *MatchResult, p *profileState, t *tenant) {
	if q.Accept == 0 || len(q.Prefixes) == 0 {
		return
	}
	missed := tier.ReasonNone
	for end := len(q.Prefixes); end > 0 && dst.PrefixTokens == 0; end -= matchRows {
		s.mu.Lock()
		for i := end - 1; i >= max(0, end-matchRows); i-- {
			o, why := s.bestLocked(&q.Prefixes[i], q.Accept, p, t)
			if o != nil && uint32(o.end) == q.Positions[i] {
				dst.PrefixTokens, dst.PrefixIndex, dst.PrefixKind, dst.PrefixPlace = q.Positions[i], i, o.kind, s.place
				switch {
				case !q.Device:
				case o.resident != nil:
					dst.PrefixPlace = tier.PlaceHBM
				default:
					s.hintHBMLocked(o)
				}
				break
			}
			if s.cfg.Lower == nil {
				// Nowhere else to look.
			} else if e, ok := s.bestBelowAtLocked(&q.Prefixes[i], q.Accept, p, t, int(q.Positions[i])); ok {
				dst.PrefixTokens, dst.PrefixIndex, dst.PrefixKind, dst.PrefixPlace = q.Positions[i], i, e.Kind, tier.PlaceDisk
				if q.Device && s.aboveLocked(&e, p, t) {
					dst.PrefixPlace = tier.PlaceHBM
				}
				s.hintReadAheadLocked(e.Name, p, t)
				break
			}
			if i == len(q.Prefixes)-1 && why == tier.ReasonNone {
				why, _ = s.ghosts.Why(&q.Prefixes[i], p.id, t.ID)
			}
			missed = moreTelling(missed, why)
		}
		s.mu.Unlock()
	}
	dst.PrefixReason = missed
	s.mu.Lock()
	defer s.mu.Unlock()
	if dst.PrefixTokens > 0 {
		s.counters.PrefixHits++
		s.counters.PrefixHitTokens += uint64(dst.PrefixTokens)
		switch dst.PrefixPlace {
		case tier.PlaceDisk:
			s.counters.PrefixHitsDisk++
			s.counters.PrefixHitTokensDisk += uint64(dst.PrefixTokens)
		case tier.PlaceHBM:
			s.counters.HBM.PrefixHits++
			s.counters.HBM.PrefixHitTokens += uint64(dst.PrefixTokens)
		}
	} else {
		s.counters.PrefixMisses[missed]++
	}
}

// bestLocked finds the published checkpoint of an accepted kind, exact before
// spliced, or says what stands in its place: pending, another kind, one that has
// lost its states, none.
func (s *Store) bestLocked(hash *[32]byte, accept tier.CheckpointKind, p *profileState, t *tenant) (*object, tier.Reason) {
	return s.bestNodeLocked(hash, accept, p, t, false)
}

// bestNodeLocked is bestLocked, which takes a stripped node as well if rows are all
// that is wanted.
func (s *Store) bestNodeLocked(hash *[32]byte, accept tier.CheckpointKind, p *profileState, t *tenant, rows bool) (*object, tier.Reason) {
	var best *object
	why := tier.ReasonNone
	for o := s.checkpoints.Find(hash); o != nil; o = o.sibling {
		switch {
		case o.profile != p || o.tenant != t:
		case o.fill != nil && !(rows && o.published()):
			why = moreTelling(why, tier.ReasonPending)
		case o.phase == stripped && !rows:
			why = moreTelling(why, tier.ReasonEvicted)
		case o.kind&accept == 0:
			why = moreTelling(why, tier.ReasonFlagOnly)
		case !s.soundLocked(o):
			why = moreTelling(why, tier.ReasonAborted)
		case best == nil || o.kind < best.kind:
			best = o
		}
	}
	return best, why
}

func moreTelling(a, b tier.Reason) tier.Reason {
	rank := [tier.Reasons]uint8{tier.ReasonUnknown: 1, tier.ReasonRefused: 2, tier.ReasonAborted: 3, tier.ReasonRemoved: 4, tier.ReasonEvicted: 5, tier.ReasonPending: 6, tier.ReasonFlagOnly: 7}
	if rank[b] > rank[a] {
		return b
	}
	return a
}

// goneLocked is what became of a key that no tier holds.
func (s *Store) goneLocked(key *[32]byte, p *profileState, t *tenant) tier.Reason {
	why, _ := s.ghosts.Why(key, p.id, t.ID)
	return why
}
