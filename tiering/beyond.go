package tiering

import (
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
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

// beyondLocked returns the remote state of an object that neither memory nor the lower
// tier has, and, if known, why it is a miss.
func (pro *promotions) beyondLocked(id objects.Identity) (remoteState, tier.Reason) {
	if pro.remote.engine == nil {
		return notRemote, tier.ReasonNone
	}
	if p := pro.promotionLocked(id.Name); p != nil {
		if p.source == nil || p.profile != id.Profile || p.tenant != id.Tenant {
			return notRemote, tier.ReasonNone
		}
		return fetching, tier.ReasonNone
	}
	if k := pro.remote.remoteLookupLocked(id); k != nil {
		switch {
		case k.search != nil:
			return searching, tier.ReasonNone
		case k.copy != nil:
			return located, tier.ReasonNone
		}
		return notRemote, k.why
	}
	if len(pro.objects.Below.Deleting) > 0 && pro.objects.Below.Deleting[id.Name] > 0 {
		return notRemote, tier.ReasonNone
	}
	if _, ok := pro.remote.hintLocked(id); ok {
		return hinted, tier.ReasonNone
	}
	return notRemote, tier.ReasonNone
}

// fetchedLocked reports whether an object is being fetched from outside this node.
func (pro *promotions) fetchedLocked(n tier.Name) bool {
	p := pro.promotionLocked(n)
	return p != nil && p.source != nil
}

// farLocked reports whether an object needs a remote lookup.
func (pro *promotions) farLocked(id objects.Identity) bool {
	if pro.remote.engine == nil {
		return false
	}
	if _, held := pro.objects.Below.Lookup(id.Name, id.Profile, id.Tenant); held {
		return false
	}
	at, _ := pro.beyondLocked(id)
	return at == hinted || at == searching
}

// heldFartherLocked reports whether an object that memory does not have may come from the
// lower tier or from outside this node.
func (pro *promotions) heldFartherLocked(id objects.Identity) bool {
	if _, held := pro.objects.Below.Lookup(id.Name, id.Profile, id.Tenant); held {
		return true
	}
	at, _ := pro.beyondLocked(id)
	return at != notRemote
}

// bestBeyondLocked finds a checkpoint of an accepted kind outside the node, an exact one
// rather than a spliced one. If there is none, it returns the reason.
func (pro *promotions) bestBeyondLocked(hash *[32]byte, accept tier.CheckpointKind, p *objects.Profile, t *objects.Tenant) (n tier.Name, why tier.Reason) {
	if pro.remote.engine == nil {
		return tier.Name{}, tier.ReasonNone
	}
	for _, kind := range [...]tier.CheckpointKind{tier.Exact, tier.Spliced} {
		if accept&kind == 0 {
			continue
		}
		n := tier.Name{Kind: kind, Key: *hash}
		if o := pro.objects.Names.Find(n, p, t); o != nil && (o.Fill == nil || !o.Fill.Fetched) {
			continue // this node has another object of this name
		}
		at, absent := pro.beyondLocked(objects.Identity{Name: n, Profile: p, Tenant: t})
		if at != notRemote {
			return n, tier.ReasonNone
		}
		why = objects.MoreTelling(why, absent)
	}
	return tier.Name{}, why
}
