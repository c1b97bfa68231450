package tiering

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/tiering/metric"
)

// durations are the histograms of a store. They are observed under its lock or not.
type durations struct {
	// fetched are objects that came to where they were wanted, by where they came from or,
	// for copies on devices, where they went.
	fetched struct{ disk, peer, hbm prometheus.Histogram }
	// Leases, by how they ended.
	released, expired prometheus.Histogram
}

// leaseBuckets reaches from a request that only looks to the longest lease of the default
// settings, and beyond.
var leaseBuckets = []float64{1e-3, 10e-3, 100e-3, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}

func newDurations() *durations {
	fetch := func(where string) prometheus.Histogram {
		return metric.Durations{
			Name: "fetch_duration_seconds", Labels: prometheus.Labels{"tier": where},
			Help: "Time from when an object was wanted elsewhere to when it was there, waits included: from disk into memory, from beyond this node (peer, the object store included) into memory, from memory to a GPU (hbm).",
		}.New()
	}
	lease := func(how string) prometheus.Histogram {
		return metric.Durations{
			Name: "lease_age_seconds", Labels: prometheus.Labels{"end": how}, Classic: leaseBuckets,
			Help: "Age of leases on segments and checkpoints as they ended: released (by their client, or with its connection) or expired (by time).",
		}.New()
	}
	d := &durations{released: lease("released"), expired: lease("expired")}
	d.fetched.disk, d.fetched.peer, d.fetched.hbm = fetch("disk"), fetch("peer"), fetch("hbm")
	return d
}

// fetch notes a promotion that is done.
func (d *durations) fetch(lane int, took time.Duration) {
	h := d.fetched.disk
	if lane == laneBeyond {
		h = d.fetched.peer
	}
	h.Observe(took.Seconds())
}

// ended notes the end of a lease. What a trial holds is not of interest.
func (d *durations) ended(l *lease, h prometheus.Histogram, now time.Time) {
	if !l.object.Profile.Trial {
		h.Observe(max(0, now.Sub(l.since)).Seconds())
	}
}

// Durations are the store's histograms: of leases, and of what was fetched from tiers that
// it has.
func (s *Store) Durations() []prometheus.Histogram {
	list := []prometheus.Histogram{s.durations.released, s.durations.expired}
	if s.cfg.Lower != nil {
		list = append(list, s.durations.fetched.disk)
	}
	if s.cfg.Remote != nil {
		list = append(list, s.durations.fetched.peer)
	}
	if len(s.hbm) > 0 {
		list = append(list, s.durations.fetched.hbm)
	}
	return list
}
