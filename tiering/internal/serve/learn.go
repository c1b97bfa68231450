package serve

import (
	"context"

	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Learning reports whether the Remote may have more than its hints show, so that calling
// Learn before a match helps. It reads memory only and takes no lock.
func (look *Lookup) Learning() bool {
	return look.remote.Learner != nil && look.remote.Learner.Learning()
}

// Learn asks the Remote about all objects that the match of q will name and about which
// nothing is known on this node. It takes one round trip; the Remote bounds its duration.
// Learn ignores errors in the query, since the match reports them.
func (look *Lookup) Learn(ctx context.Context, q *MatchQuery) {
	if look.remote.Learner == nil || q.Local {
		return
	}
	p, t, err := look.cat.Scope(q.Profile, q.Tenant, 0)
	if err != nil {
		return
	}
	var names []tier.Name
	for i := range q.Keys {
		names = append(names, tier.Name{Key: q.Keys[i]})
	}
	for i := range q.Others {
		if q.Others[i] != ([32]byte{}) {
			names = append(names, tier.Name{Key: q.Others[i]})
		}
	}
	// Longest prefixes first, in case the Remote cannot ask for all.
	for i := len(q.Prefixes) - 1; i >= 0; i-- {
		for _, kind := range [...]tier.CheckpointKind{tier.Exact, tier.Spliced} {
			if q.Accept&kind != 0 {
				names = append(names, tier.Name{Kind: kind, Key: q.Prefixes[i]})
			}
		}
	}
	var wants []tier.Want
	look.cat.Mu.Each(len(names), catalog.HoldRows, func(i int) {
		if look.unknownLocked(objects.Identity{Name: names[i], Profile: p, Tenant: t}) {
			wants = append(wants, tier.Want{Name: names[i], Fingerprint: p.Fingerprint(), Tenant: t.ID})
		}
	})
	if len(wants) > 0 {
		look.remote.Learner.Learn(ctx, wants)
	}
}

// unknownLocked reports whether an object is neither in memory or the lower tier, nor on
// its way, and neither a hint nor a recent answer says anything about it.
func (look *Lookup) unknownLocked(id objects.Identity) bool {
	if look.cat.Objects.Names.Find(id.Name, id.Profile, id.Tenant) != nil || look.promotions.PromotionLocked(id.Name) != nil {
		return false
	}
	if _, held := look.cat.Objects.Below.Lookup(id.Name, id.Profile, id.Tenant); held {
		return false
	}
	at, why := look.promotions.BeyondLocked(id)
	return at == move.NotRemote && why == tier.ReasonNone
}
