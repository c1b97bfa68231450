package serve

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Match returns the longest checkpoint of an accepted kind and the status of each segment
// key. It looks in memory, then in the lower tier, then at remote hints. It does no I/O,
// takes no lease and does not count as a use. Once dst has grown it allocates nothing.
func (look *Lookup) Match(q *MatchQuery, dst *MatchResult) error {
	p, t, err := look.cat.Scope(q.Profile, q.Tenant, 0)
	if err != nil {
		return err
	}
	if q.Device != 0 && look.hbm.Of(q.Device) == nil {
		return ErrNoDevice(q.Device)
	}
	if len(q.Positions) != len(q.Prefixes) {
		return fmt.Errorf("match: %d positions for %d prefixes: %w", len(q.Positions), len(q.Prefixes), tier.ErrInvalid)
	}
	if len(q.Others) > 0 && len(q.Others) != len(q.Keys) {
		return fmt.Errorf("match: %d other variants of %d keys: %w", len(q.Others), len(q.Keys), tier.ErrInvalid)
	}
	for i := 1; i < len(q.Positions); i++ {
		if q.Positions[i] <= q.Positions[i-1] {
			return fmt.Errorf("match: position %d after %d: %w", q.Positions[i], q.Positions[i-1], tier.ErrInvalid)
		}
	}
	if q.Accept&^tier.AnyKind != 0 {
		return fmt.Errorf("match: accepts kinds %#x: %w", q.Accept, tier.ErrInvalid)
	}
	*dst = MatchResult{MaxError: p.MaxError(), Segments: slices.Grow(dst.Segments[:0], len(q.Keys))[:len(q.Keys)]}
	look.matchPrefix(q, dst, p, t)
	look.matchSegments(q, dst, p, t)
	return nil
}

func (look *Lookup) matchSegments(q *MatchQuery, dst *MatchResult, p *objects.Profile, t *objects.Tenant) {
	variants := len(q.Others) > 0
	most := MatchRows
	if variants {
		most /= 2 // two keys per row
	}
	for first := 0; first < len(q.Keys); first += most {
		rows := dst.Segments[first:min(first+most, len(q.Keys))]
		look.cat.Mu.Lock()
		if variants {
			look.variantsLocked(first, rows, p, t, q)
		} else {
			look.statusesLocked(first, rows, p, t, q)
		}
		look.cat.Mu.Unlock()
	}
}

// statusesLocked answers the rows of the query's keys from index first on.
func (look *Lookup) statusesLocked(first int, rows []SegmentStatus, p *objects.Profile, t *objects.Tenant, q *MatchQuery) {
	var found [MatchRows]*objects.Object
	segments := look.cat.Objects.Names.Segments
	keys := q.Keys[first : first+len(rows)]
	for i := range keys {
		found[i] = segments.Find(&keys[i])
	}
	if look.remote.Preparer != nil && !q.Local {
		look.remote.PrepareLocked(keys, nil, found[:], nil, p, t)
		defer look.remote.ForgetPreparedLocked()
	}
	n := look.cat.Of(p)
	for i := range keys {
		if !look.hitLocked(&rows[i], found[i], &keys[i], p, t, q, n) {
			look.missLocked(&rows[i], found[i], &keys[i], p, t, n)
		}
	}
}

// variantsLocked is statusesLocked for a query with Others: if a key misses, it tries the
// segment's other variant.
func (look *Lookup) variantsLocked(first int, rows []SegmentStatus, p *objects.Profile, t *objects.Tenant, q *MatchQuery) {
	var found, others [MatchRows / 2]*objects.Object
	segments := look.cat.Objects.Names.Segments
	keys, second := q.Keys[first:first+len(rows)], q.Others[first:first+len(rows)]
	for i := range keys {
		found[i], others[i] = segments.Find(&keys[i]), segments.Find(&second[i])
	}
	if look.remote.Preparer != nil && !q.Local {
		look.remote.PrepareLocked(keys, second, found[:], others[:], p, t)
		defer look.remote.ForgetPreparedLocked()
	}
	n := look.cat.Of(p)
	for i := range keys {
		row := &rows[i]
		switch {
		case look.hitLocked(row, found[i], &keys[i], p, t, q, n):
		case second[i] != ([32]byte{}) && look.hitLocked(row, others[i], &second[i], p, t, q, n):
			row.Other = true
			n.HitSegmentsVariant++
		default:
			look.missLocked(row, found[i], &keys[i], p, t, n)
		}
	}
}

// missLocked sets and counts the miss of one key.
func (look *Lookup) missLocked(row *SegmentStatus, o *objects.Object, key *[32]byte, p *objects.Profile, t *objects.Tenant, n *stats.Counters) {
	if o != nil && o.Profile == p && o.Tenant == t {
		n.Miss(tier.ReasonPending, uint32(o.Tokens()))
		*row = SegmentStatus{Status: tier.StatusPending, Reason: tier.ReasonPending}
		return
	}
	why, tokens := look.cat.Objects.Names.Ghosts.Why(key, p.ID, t.ID)
	n.Miss(why, tokens)
	*row = SegmentStatus{Status: tier.StatusMiss, Reason: why}
}

// hitLocked sets and counts the hit of one key; o is the key's object in the catalog, if
// any. If there is no hit, it returns false and leaves the row unchanged.
func (look *Lookup) hitLocked(row *SegmentStatus, o *objects.Object, key *[32]byte, p *objects.Profile, t *objects.Tenant, q *MatchQuery, n *stats.Counters) bool {
	if o == nil || o.Profile != p || o.Tenant != t || o.Fill != nil {
		return look.hitElsewhereLocked(row, o, key, p, t, q)
	}
	tokens := uint32(o.Tokens())
	n.HitSegments++
	n.HitTokens += uint64(tokens)
	*row = SegmentStatus{Status: tier.StatusHit, Place: look.cat.Place, Tokens: tokens, Error: errorOf(p, &o.Packed)}
	switch {
	case q.Device == 0:
	case o.Resident.Serves(q.Device):
		row.Place = tier.PlaceHBM
		look.hitHBMLocked(q.Device, uint64(tokens))
	default:
		look.hbm.Hint(o, q.Device)
	}
	return true
}

// hitElsewhereLocked is hitLocked for an object that is not published in memory.
func (look *Lookup) hitElsewhereLocked(row *SegmentStatus, o *objects.Object, key *[32]byte, p *objects.Profile, t *objects.Tenant, q *MatchQuery) (hit bool) {
	switch {
	case o == nil || o.Profile != p || o.Tenant != t:
		if look.cat.Config.Lower != nil {
			if below, ok := look.statusBelowLocked(key, p, t, q.Device); ok {
				*row = below
				return true
			}
		}
		if o == nil && look.remote.Engine != nil && !q.Local {
			if beyond, ok := look.statusBeyondLocked(key, p, t); ok {
				*row = beyond
				return true
			}
		}
	case o.Fill.Fetched && !q.Local:
		_, _ = look.remote.HintLocked(o.Identity())
		*row = look.hitBeyondLocked(p, uint32(o.Tokens()))
		return true
	case o.Fill.Promoted && !o.Fill.Fetched:
		*row = look.hitBelowLocked(uint32(o.Tokens()), errorOf(p, &o.Packed), look.cat.Of(p))
		return true
	}
	return false
}

// errorOf returns the error bound to report for a hit. A stored bound is rounded up and
// may exceed the profile's tolerance, so the result is limited to the tolerance. Without a
// tolerance nothing is packed; packed is then not read, which spares a match a cache miss per
// object.
func errorOf(p *objects.Profile, packed *profile.Packed) float64 {
	most := p.MaxError()
	if most == 0 {
		return 0
	}
	return min(float64(max(packed.Errors())), most)
}

// hitHBMLocked counts a segment hit, and its tokens, in the HBM of a device.
func (look *Lookup) hitHBMLocked(on tier.DeviceID, tokens uint64) {
	c := look.hbm.Of(on).Count()
	c.HitSegments++
	c.HitTokens += tokens
}

func (look *Lookup) hitAboveLocked(on tier.DeviceID, tokens uint32, off float64, n *stats.Counters) SegmentStatus {
	n.HitSegments++
	n.HitTokens += uint64(tokens)
	look.hitHBMLocked(on, uint64(tokens))
	return SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceHBM, Tokens: tokens, Error: off}
}

// statusBelowLocked returns the status of a segment in the lower tier, which may then be
// read ahead.
func (look *Lookup) statusBelowLocked(key *[32]byte, p *objects.Profile, t *objects.Tenant, on tier.DeviceID) (row SegmentStatus, found bool) {
	e := look.cat.Objects.Below.Match(key, p, t)
	if e == nil {
		return row, false
	}
	look.promotions.HintReadAheadLocked(e.Name, p, t)
	if on != 0 && look.cat.Objects.HBM.Has(e, p, t, on) {
		return look.hitAboveLocked(on, uint32(e.HitTokens()), errorOf(p, &e.Packed), look.cat.Of(p)), true
	}
	return look.hitBelowLocked(uint32(e.HitTokens()), errorOf(p, &e.Packed), look.cat.Of(p)), true
}

// hitBelowLocked returns and counts a hit in the lower tier.
func (look *Lookup) hitBelowLocked(tokens uint32, off float64, n *stats.Counters) SegmentStatus {
	n.HitSegments++
	n.HitTokens += uint64(tokens)
	n.HitSegmentsDisk++
	n.HitTokensDisk += uint64(tokens)
	return SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDisk, Tokens: tokens, Error: off}
}

// matchPrefix looks up the prefixes from the longest down and stops at the first hit. It
// also reports why longer positions missed. Of several reasons it reports the most
// informative: a checkpoint of another kind exists, one is being filled, or else the
// reason of the longest position.
func (look *Lookup) matchPrefix(q *MatchQuery, dst *MatchResult, p *objects.Profile, t *objects.Tenant) {
	if q.Accept == 0 || len(q.Prefixes) == 0 {
		return
	}
	missed := tier.ReasonNone
	far := farPrefix{at: -1}
	for end := len(q.Prefixes); end > 0 && dst.PrefixTokens == 0; end -= MatchRows {
		look.cat.Mu.Lock()
		for i := end - 1; i >= max(0, end-MatchRows); i-- {
			o, why := look.cat.Objects.Names.Best(&q.Prefixes[i], q.Accept, p, t)
			if o != nil && uint32(o.End) == q.Positions[i] {
				dst.PrefixTokens, dst.PrefixIndex, dst.PrefixKind, dst.PrefixPlace = q.Positions[i], i, o.Kind, look.cat.Place
				switch {
				case q.Device == 0:
				case o.Resident.Serves(q.Device):
					dst.PrefixPlace = tier.PlaceHBM
				case o.Kind != tier.Rows:
					look.hbm.Hint(o, q.Device)
				}
				dst.PrefixStates = statesOf(o)
				break
			}
			if look.cat.Config.Lower == nil {
				// No other tier to look in.
			} else if e, ok := look.cat.Objects.Below.BestAt(&q.Prefixes[i], q.Accept, p, t, int(q.Positions[i])); ok {
				dst.PrefixTokens, dst.PrefixIndex, dst.PrefixKind, dst.PrefixPlace = q.Positions[i], i, e.Kind, tier.PlaceDisk
				if q.Device != 0 && look.cat.Objects.HBM.Has(&e, p, t, q.Device) {
					dst.PrefixPlace = tier.PlaceHBM
				}
				dst.PrefixStates = look.statesBelowLocked(&e, p, t)
				look.promotions.HintReadAheadLocked(e.Name, p, t)
				break
			}
			if far.at < 0 && look.remote.Engine != nil && !q.Local {
				if n, _ := look.promotions.BestBeyondLocked(&q.Prefixes[i], q.Accept, p, t); n != (tier.Name{}) && look.endsAtLocked(n, p, t, int(q.Positions[i])) {
					far = farPrefix{i, n, missed}
				}
			}
			if i == len(q.Prefixes)-1 && why == tier.ReasonNone {
				why, _ = look.cat.Objects.Names.Ghosts.Why(&q.Prefixes[i], p.ID, t.ID)
			}
			missed = objects.MoreTelling(missed, why)
		}
		look.cat.Mu.Unlock()
	}
	dst.PrefixReason = missed
	look.cat.Mu.Lock()
	defer look.cat.Mu.Unlock()
	look.takeFarLocked(far, q, dst, p, t)
	if dst.PrefixTokens > 0 {
		n := look.cat.Of(p)
		n.PrefixHits++
		n.PrefixHitTokens += uint64(dst.PrefixTokens)
		switch dst.PrefixPlace {
		case tier.PlaceDisk:
			n.PrefixHitsDisk++
			n.PrefixHitTokensDisk += uint64(dst.PrefixTokens)
		case tier.PlacePeer:
			n.Beyond.PrefixHits++
			n.Beyond.PrefixHitTokens += uint64(dst.PrefixTokens)
		case tier.PlaceHBM:
			c := look.hbm.Of(q.Device).Count()
			c.PrefixHits++
			c.PrefixHitTokens += uint64(dst.PrefixTokens)
		}
	} else {
		look.cat.Of(p).PrefixMisses[missed]++
	}
}

// statesOf returns the token up to which a checkpoint or its ancestors have states; 0 if
// none has. States after that token are rebuilt from rows.
func statesOf(o *objects.Object) uint32 {
	for ; o != nil; o = o.Parent {
		if o.Kind != tier.Rows {
			return uint32(o.End)
		}
	}
	return 0
}

// statesBelowLocked is statesOf for an entry of the lower tier.
func (look *Lookup) statesBelowLocked(e *tier.Entry, p *objects.Profile, t *objects.Tenant) uint32 {
	node, held := *e, true
	for range look.cat.Config.MaxChain {
		switch {
		case !held:
			return 0
		case node.Kind != tier.Rows:
			return uint32(node.End)
		case node.Parent == (tier.Name{}):
			return 0
		}
		if o := look.cat.Objects.Names.Find(node.Parent, p, t); o != nil {
			return statesOf(o)
		}
		node, held = look.cat.Objects.Below.Lookup(node.Parent, p, t)
	}
	return 0
}

// Room returns how many bytes segments of the given interior tokens need, over all ranks
// and with their token ids. The second result is the number of bytes that the pool and the
// tenant's quota would have for these segments if everything evictable were evicted. Room
// reads memory only.
func (look *Lookup) Room(id tier.ProfileID, tenant tier.TenantID, interiors, tokens []int) (need, free int64, err error) {
	p, t, err := look.cat.Scope(id, tenant, 0)
	if err != nil {
		return 0, 0, err
	}
	if len(interiors) != len(tokens) {
		return 0, 0, fmt.Errorf("room for %d segments of %d lengths: %w", len(interiors), len(tokens), tier.ErrInvalid)
	}
	for i, n := range interiors {
		size := look.cat.Objects.Memory.SizeOf(p, p.SegmentParts(n), tokens[i])
		need += size.Charge()
	}
	pool := look.cat.Objects.Pools[objects.PublicPool]
	look.cat.Mu.Lock()
	defer look.cat.Mu.Unlock()
	free = pool.Budget - pool.Pinned
	if t.QuotaBytes > 0 {
		free = min(free, t.QuotaBytes-t.Pinned)
	}
	return need, max(free, 0), nil
}
