package catalog

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/metric"
)

// Durations holds the histograms of a store. Observing needs no lock.
type Durations struct {
	// Durations of fetches, by source. For copies to devices (hbm) it is the destination.
	Fetched struct{ Disk, Peer, HBM prometheus.Histogram }
	// Ages of leases, by how they ended.
	Released, Expired prometheus.Histogram
	// Times since the last use of objects in memory: when evicted for room or a quota, and
	// when used again.
	Evicted, Reused prometheus.Histogram
}

// ageBuckets has bounds in seconds. The shortest is the time to the next turn of an agent,
// the longest fits a corpus that is queried once a week.
var ageBuckets = []float64{0.1, 1, 5, 15, 60, 300, 900, 1800, 3600, 2 * 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600}

// leaseBuckets has bounds in seconds, from a request that only looks up to more than the
// longest lease of the default settings.
var leaseBuckets = []float64{1e-3, 10e-3, 100e-3, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}

func newDurations() *Durations {
	fetch := func(where string) prometheus.Histogram {
		return metric.Durations{
			Name: "fetch_duration_seconds", Labels: prometheus.Labels{"tier": where},
			Help: "Duration in seconds of successful fetches of objects, from the request and including waits, by source or destination: disk (from disk into memory), peer (from another node or the object store into memory), hbm (from memory to a GPU).",
		}.New()
	}
	lease := func(how string) prometheus.Histogram {
		return metric.Durations{
			Name: "lease_age_seconds", Labels: prometheus.Labels{"end": how}, Classic: leaseBuckets,
			Help: "Age in seconds of leases on segments and checkpoints when they ended, by end: released (by the client, or when its connection was closed) or expired (timed out, or the client's connection was lost while it may still be reading).",
		}.New()
	}
	d := &Durations{
		Released: lease("released"), Expired: lease("expired"),
		Evicted: metric.Durations{
			Name: "eviction_age_seconds", Classic: ageBuckets,
			Help: "Seconds since the last use (or publication) of objects when they were evicted from memory for room or a quota. If these ages are not well above spliced_reuse_age_seconds, the evicted objects would probably have been used again.",
		}.New(),
		Reused: metric.Durations{
			Name: "reuse_age_seconds", Classic: ageBuckets,
			Help: "Seconds since the last use (or publication) of objects in memory when a client leased them.",
		}.New(),
	}
	d.Fetched.Disk, d.Fetched.Peer, d.Fetched.HBM = fetch("disk"), fetch("peer"), fetch("hbm")
	return d
}

// Fetch records a completed promotion.
func (d *Durations) Fetch(remote bool, took time.Duration) {
	h := d.Fetched.Disk
	if remote {
		h = d.Fetched.Peer
	}
	h.Observe(took.Seconds())
}

// Ended records the age of a lease of an object at its end. It leaves out leases of trial
// profiles.
func (d *Durations) Ended(o *objects.Object, since time.Time, h prometheus.Histogram, now time.Time) {
	if !o.Profile.Trial {
		h.Observe(max(0, now.Sub(since)).Seconds())
	}
}

// Since records the time since an object in memory was last used.
func (d *Durations) Since(o *objects.Object, h prometheus.Histogram, now time.Time) {
	if !o.InHBM() && !o.Profile.Trial {
		h.Observe(max(0, now.Sub(o.Used)).Seconds())
	}
}
