package journal

import (
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Names has the names of tenants and of eviction policies, which decisions do not contain.
type Names struct {
	Tenant func(tier.TenantID) string
	// Policies of the two kinds of pools, and of evictions because of a tenant's quota.
	Public, Private, Quota string
	Disk                   string // policy of the disk
}

// Decided appends an event for a decision about an object. Some kinds of decisions are no event.
func (j *Journal) Decided(d *decision.Decision, n *Names) {
	e := Event{
		At: d.At, Object: objectOf(d.Name), Key: d.Name.Key, Profile: uint32(d.Profile), Tokens: d.End - d.Begin, Bytes: d.Bytes,
		Value: d.Value, Tenant: n.Tenant(d.Tenant), Model: d.Model, Client: d.Client, Why: d.Why.String(),
	}
	switch d.What {
	case decision.Admit:
		e.Kind, e.Text = came(d)
	case decision.Evict, decision.Strip, decision.Drop:
		e.Kind = Evicted
	case decision.Demote:
		e.Kind = Demoted
	default:
		return
	}
	if d.What == decision.Strip {
		e.Text = "its states left memory, its rows stay for what extends it"
	}
	switch {
	case d.In == tier.PlaceDisk:
		e.Text, e.Policy = "it left the disk", n.Disk
	case d.Why == decision.ForQuota:
		e.Policy = n.Quota
	case d.Why != decision.ForRoom:
	case e.Object == Segment:
		e.Policy = n.Public
	default:
		e.Policy = n.Private
	}
	if d.Rival.Name != (tier.Name{}) {
		e.Rivals, e.Rival, e.Worth = objectOf(d.Rival.Name), d.Rival.Name.Key, d.Rival.Value
	}
	j.Append(e)
}

// came returns the event's kind and text for an object that was stored.
func came(d *decision.Decision) (Kind, string) {
	switch {
	case d.Why == decision.Filled || d.Why == decision.FilledAgain:
		return Published, ""
	case d.In == tier.PlaceHBM:
		return Promoted, "a copy into HBM"
	case d.From == tier.PlacePeer:
		return Fetched, "from another node into memory"
	case d.From == tier.PlaceObject:
		return Fetched, "from the object store into memory"
	}
	return Promoted, "from the disk into memory"
}

func objectOf(n tier.Name) Object {
	if n.Kind == 0 {
		return Segment
	}
	return Checkpoint
}
