package daemon

import (
	"github.com/spliced-kv/spliced/daemon/usage"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// sample reads the counters that the history of charts consists of.
func (d *Daemon) sample() usage.Sample {
	s := usage.Sample{At: d.now()}
	for _, r := range d.usage.Rows() {
		s.Requests += r.Since.Requests()
		s.Prompt += r.Since.Prompt
		for f, n := range r.Since.Sources {
			s.Sources[f] += n
		}
		r.Since.Causes(func(c usage.Cause, n uint64) { s.Missed[c] += n })
		s.Saved += r.Since.Saved - r.Since.Lost
		s.First, s.Timed = s.First+r.Since.First, s.Timed+r.Since.Timed
	}
	c := d.store.Counters()
	s.Evictions = c.EvictedRoom + c.EvictedQuota
	for _, p := range d.store.Pools() {
		s.Bytes[p.Place] += p.UsedBytes
	}
	if d.disk != nil {
		used := d.disk.Usage()
		for i := range used.Pools {
			s.Bytes[tier.PlaceDisk] += used.Pools[i].UsedBytes
		}
	}
	return s
}
