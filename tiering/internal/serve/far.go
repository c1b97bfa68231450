package serve

import (
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// statusBeyondLocked returns the status of a segment that may be outside the node. Its number of
// tokens is known only if the segment was found, or was cached on this node recently. If the
// number is known, the segment is a hit only if fetching it takes less time than computing it.
func (look *Lookup) statusBeyondLocked(key *[32]byte, p *objects.Profile, t *objects.Tenant) (row SegmentStatus, ok bool) {
	id := objects.Identity{Name: tier.Name{Key: *key}, Profile: p, Tenant: t}
	at, _ := look.promotions.BeyondLocked(id)
	tokens := 0
	switch at {
	case move.NotRemote:
		return row, false
	case move.Fetching:
		tokens = look.promotions.PromotionLocked(id.Name).Entry.HitTokens()
	case move.Located:
		tokens = look.remote.Lookups[id].Entry.HitTokens()
	case move.Hinted, move.Searching:
		_, known := look.cat.Objects.Names.Ghosts.Why(key, p.ID, t.ID)
		tokens = int(known)
		if at == move.Hinted && tokens > 0 && !look.remote.WorthLocked(id, 0, tokens, segmentBytes(p, tokens)) {
			look.cat.Counters.Beyond.NotWorth++
			return row, false
		}
	}
	if at == move.Hinted || at == move.Located {
		look.promotions.HintReadAheadLocked(id.Name, p, t)
	}
	if at != move.Hinted {
		_, _ = look.remote.HintLocked(id) // sets Remote.Hint, which says where the segment is
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
func (look *Lookup) takeFarLocked(far farPrefix, q *MatchQuery, dst *MatchResult, p *objects.Profile, t *objects.Tenant) {
	if far.at < 0 {
		return
	}
	id, tokens := objects.Identity{Name: far.name, Profile: p, Tenant: t}, q.Positions[far.at]
	if !look.remote.WorthLocked(id, int(dst.PrefixTokens), int(tokens), prefixBytes(p, int(tokens))) {
		look.cat.Counters.Beyond.NotWorth++
		return
	}
	w := move.Wanted{Name: far.name, Profile: p, Tenant: t}
	if dst.PrefixTokens > 0 {
		w.Base = tier.Name{Kind: dst.PrefixKind, Key: q.Prefixes[dst.PrefixIndex]}
	}
	dst.PrefixStates = tokens
	dst.PrefixTokens, dst.PrefixIndex, dst.PrefixKind, dst.PrefixPlace, dst.PrefixReason = tokens, far.at, far.name.Kind, tier.PlacePeer, far.missed
	if look.remote.Hint.Place == tier.PlaceObject {
		look.cat.Counters.Object.PrefixHits++
		look.cat.Counters.Object.PrefixHitTokens += uint64(tokens)
	}
	look.promotions.HintAheadLocked(w)
}

// endsAtLocked reports whether the number of tokens of a remote checkpoint is the parameter end.
// It returns true if that number is not known.
func (look *Lookup) endsAtLocked(n tier.Name, p *objects.Profile, t *objects.Tenant, end int) bool {
	if pr := look.promotions.PromotionLocked(n); pr != nil {
		return pr.Entry.End == end
	}
	e, ok := look.remote.FoundLocked(objects.Identity{Name: n, Profile: p, Tenant: t})
	return !ok || e.End == end
}

// hitBeyondLocked counts and returns a hit at the place of the last hint. The error bound
// of the segment is not known before it arrives, so the hit has the profile's tolerance.
func (look *Lookup) hitBeyondLocked(p *objects.Profile, tokens uint32) SegmentStatus {
	n := look.cat.Of(p)
	n.HitSegments++
	n.HitTokens += uint64(tokens)
	n.Beyond.HitSegments++
	n.Beyond.HitTokens += uint64(tokens)
	if look.remote.Hint.Place == tier.PlaceObject {
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
