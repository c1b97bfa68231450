package parallel

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Scope is the profile and tenant that segments belong to.
type Scope struct {
	Profile     tier.ProfileID
	Fingerprint profile.Fingerprint
	Tenant      tier.TenantID
}

func (s Scope) want(key profile.SegmentKey) tier.Want {
	return tier.Want{Name: tier.Name{Key: key}, Fingerprint: s.Fingerprint, Tenant: s.Tenant}
}

// Segment is a segment to compute. IDs is shared and must not be modified.
type Segment struct {
	Key  profile.SegmentKey
	Spec profile.SegmentSpec
	IDs  []uint32 // token ids, Spec.Tokens of them
}

// primersOf lists the distinct primers after which segments are captured.
func primersOf(list []Segment) (primers []profile.PrimerID) {
	for i := range list {
		if id := list[i].Spec.Primer; id != (profile.PrimerID{}) && !slices.Contains(primers, id) {
			primers = append(primers, id)
		}
	}
	return primers
}

// key returns the key of a segment, or an error if its geometry is invalid for the profile.
func key(p *profile.Profile, salt []byte, spec profile.SegmentSpec, ids []uint32) (profile.SegmentKey, error) {
	if err := p.CheckSpec(spec); err != nil {
		return profile.SegmentKey{}, err
	}
	if len(ids) != spec.Tokens {
		return profile.SegmentKey{}, fmt.Errorf("parallel: %d token ids for %d tokens: %w", len(ids), spec.Tokens, tier.ErrInvalid)
	}
	return p.SegmentKey(salt, spec, ids), nil
}
