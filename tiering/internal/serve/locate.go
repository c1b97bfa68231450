package serve

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Located says which objects of a MatchQuery this node has, and where. The next Locate
// into the same result reuses Segments.
type Located struct {
	Prefix      int // index into Positions of the longest cached prefix; -1 = none
	PrefixPlace tier.Place
	Segments    []SegmentStatus // hits in PlaceDRAM or PlaceDisk, and misses
}

// Locate is a Match that serves to compare nodes. It looks only at memory and the lower
// tier, counts neither hits nor misses, reads nothing ahead and does no I/O. It ignores
// Device and Local.
func (look *Lookup) Locate(q *MatchQuery, dst *Located) error {
	p, t, err := look.cat.Scope(q.Profile, q.Tenant, 0)
	if err != nil {
		return err
	}
	if len(q.Positions) != len(q.Prefixes) {
		return fmt.Errorf("locate: %d positions for %d prefixes: %w", len(q.Positions), len(q.Prefixes), tier.ErrInvalid)
	}
	*dst = Located{Prefix: -1, Segments: slices.Grow(dst.Segments[:0], len(q.Keys))[:len(q.Keys)]}
	for end := len(q.Prefixes); end > 0 && dst.Prefix < 0; end -= MatchRows {
		look.cat.Mu.Lock()
		for i := end - 1; i >= max(0, end-MatchRows) && dst.Prefix < 0; i-- {
			if place := look.prefixAtLocked(&q.Prefixes[i], q.Accept, int(q.Positions[i]), p, t); place != tier.PlaceNone {
				dst.Prefix, dst.PrefixPlace = i, place
			}
		}
		look.cat.Mu.Unlock()
	}
	for first := 0; first < len(q.Keys); first += MatchRows {
		look.cat.Mu.Lock()
		for i := first; i < min(first+MatchRows, len(q.Keys)); i++ {
			dst.Segments[i] = look.segmentAtLocked(&q.Keys[i], p, t)
		}
		look.cat.Mu.Unlock()
	}
	return nil
}

// prefixAtLocked returns the place of a checkpoint of an accepted kind whose number of
// tokens is the parameter end; PlaceNone if there is none.
func (look *Lookup) prefixAtLocked(hash *[32]byte, accept tier.CheckpointKind, end int, p *objects.Profile, t *objects.Tenant) tier.Place {
	if o, _ := look.cat.Objects.Names.Best(hash, accept, p, t); o != nil && o.End == end {
		return look.cat.Place
	}
	if _, ok := look.cat.Objects.Below.BestAt(hash, accept, p, t, end); ok {
		return tier.PlaceDisk
	}
	return tier.PlaceNone
}

func (look *Lookup) segmentAtLocked(key *[32]byte, p *objects.Profile, t *objects.Tenant) SegmentStatus {
	if o := look.cat.Objects.Names.Segments.Find(key); o != nil && o.Profile == p && o.Tenant == t {
		switch {
		case o.Fill == nil:
			return SegmentStatus{Status: tier.StatusHit, Place: look.cat.Place, Tokens: uint32(o.Tokens())}
		case o.Fill.Promoted && !o.Fill.Fetched:
			return SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDisk, Tokens: uint32(o.Tokens())}
		}
		return SegmentStatus{Status: tier.StatusMiss, Reason: tier.ReasonPending}
	}
	if look.cat.Config.Lower != nil {
		if e := look.cat.Objects.Below.Match(key, p, t); e != nil {
			return SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDisk, Tokens: uint32(e.HitTokens())}
		}
	}
	return SegmentStatus{Status: tier.StatusMiss}
}
