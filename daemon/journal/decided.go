package journal

import (
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Names are the names of the numbers in decisions.
type Names struct {
	Tenant func(tier.TenantID) string
	// Policies of the pools and, for evictions because of a tenant's quota, of all pools.
	Public, Private, Quota string
	Disk                   string // of the disk
}

// Decided appends a decision about an object, if it is an event.
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

// came returns the kind of the event of a stored object, and its source.
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
