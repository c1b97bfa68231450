package view

import (
	"context"
	"strings"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// objectPools returns how much of the bucket all nodes use under the configured prefix.
func (v *View) objectPools() []api.Pool {
	if v.o.Object == nil {
		return nil
	}
	g := v.o.Object.Gauges()
	return []api.Pool{{
		Name: "shared", Tier: tierName(tier.PlaceObject), CapacityBytes: int64(v.o.Config.ObjectSize), UsedBytes: int64(g.Held),
		PendingBytes: int64(g.QueuedBytes), Objects: int(g.Listed),
	}}
}

// ProbeObjectStore implements api.Node.
func (v *operator) ProbeObjectStore(ctx context.Context) api.ObjectProbe {
	if v.o.Object == nil {
		return api.ObjectProbe{}
	}
	c := v.o.Config
	p := api.ObjectProbe{Enabled: true, Endpoint: c.ObjectEndpoint, Bucket: c.ObjectBucket, Prefix: c.ObjectPrefix}
	for _, step := range v.o.Object.Probe(ctx) {
		s := api.ProbeStep{Name: step.Name, Seconds: step.Took.Seconds()}
		if step.Err != nil {
			s.Error = strings.ToValidUTF8(step.Err.Error(), "?")
		}
		p.Steps = append(p.Steps, s)
	}
	p.ClockAhead = v.o.Object.Health().ClockAhead.Seconds()
	v.tellProbed(&p)
	return p
}
