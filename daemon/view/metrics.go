package view

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Registry holds everything that /metrics answers.
func (v *View) Registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), metrics{v})
	for _, h := range v.o.Server.Counts().Durations() {
		r.MustRegister(h)
	}
	return r
}

// metrics turns counters of the store and the server into Prometheus metrics
// when they are asked for, so that counting costs nothing twice.
type metrics struct{ *View }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("spliced_"+name, help, labels, nil)
}

var (
	buildInfo      = describe("build_info", "What was built.", "version", "commit")
	capabilityInfo = describe("capability_info", "What the node can and cannot do.", "feature", "state")

	tierCapacity = describe("tier_capacity_bytes", "Budget of a pool in a tier.", "tier", "pool")
	tierUsed     = describe("tier_used_bytes", "Bytes in use by state: leased, pending (being filled), quarantined (lease expired, client still there), demoting (being written to the disk, and free after that), evictable.", "tier", "pool", "state")
	poolObjects  = describe("pool_objects", "Segments (public) and checkpoints (private) held.", "tier", "pool")

	lookupTokens     = describe("lookup_tokens_total", "Tokens asked for by match, by the tier that has them or miss, as far as the size of a miss is known. A hit is counted in tokens.", "result")
	lookups          = describe("lookups_total", "Segment keys asked for by match, by the tier that has them or miss.", "result")
	missTokens       = describe("miss_tokens_total", "Tokens of missed segments by reason, as far as their size is known.", "reason")
	misses           = describe("misses_total", "Missed segments by reason.", "reason")
	prefixHits       = describe("prefix_hits_total", "Matches that found a checkpoint, by the tier it lies in.", "tier")
	prefixHitTokens  = describe("prefix_hit_tokens_total", "Tokens covered by the checkpoints found, by the tier they lie in.", "tier")
	prefixMisses     = describe("prefix_misses_total", "Matches that found no checkpoint, by reason.", "reason")
	avoided          = describe("prefill_tokens_avoided_total", "Tokens of segments and checkpoints that engines took leases on.")
	evictions        = describe("evictions_total", "Objects that left a tier by reason: room, quota, operator, and on disk parent (the checkpoint they extend left). From memory most are still on disk, see demotions_total.", "tier", "reason")
	evictedBytes     = describe("evicted_bytes_total", "Bytes evicted.", "tier")
	refusedObjects   = describe("admissions_refused_total", "Reservations refused by reason.", "reason")
	published        = describe("published_total", "Objects published.")
	publishedBytes   = describe("published_bytes_total", "Bytes published, over all ranks.")
	aborted          = describe("aborted_total", "Fills that ended without publication, by reason.", "reason")
	committedBytes   = describe("fetch_bytes_total", "Bytes copied into a tier (dram: from clients, disk: from memory) and out of it.", "tier", "direction")
	leases           = describe("leases", "Live leases on segments and checkpoints.")
	leasesExpired    = describe("lease_expired_total", "Leases that ended by time.")
	leasesQuarantine = describe("leases_quarantined", "Expired leases whose memory waits for the client.")
	kernelRuns       = describe("kernels_total", "Requests computed by kind, and by the tier whose memory they read.", "kind", "tier")

	sessions    = describe("engine_sessions", "Attached clients.")
	connsTotal  = describe("connections_total", "Connections by what became of them at the door.", "result")
	connsDrop   = describe("connections_dropped_total", "Connections ended by the daemon, by reason.", "reason")
	requests    = describe("requests_total", "Answered requests.", "op", "code")
	rows        = describe("rows_total", "Rows of answered batches.", "op", "code")
	lookupTime  = describe("lookup_duration_seconds", "Time from the arrival of a match to its answer.")
	failures    = describe("errors_total", "Requests and rows of batches that were refused, by kind. A miss is no error.", "component", "kind")
	inFlight    = describe("requests_in_flight", "Requests on workers, waiting for one, or waiting for a disk.")
	queued      = describe("requests_queued", "Requests waiting for a worker.")
	lentBytes   = describe("connection_memory_bytes", "Staging and slot bytes granted to connections (touched or not).")
	bootSeconds = describe("start_time_seconds", "When this daemon started, since the epoch.")
)

// Describe implements prometheus.Collector.
func (m metrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// sink shortens the making of metrics.
type sink chan<- prometheus.Metric

func (s sink) count(d *prometheus.Desc, v uint64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// copyHistogram gives a histogram a second name. Writing one that we made cannot
// fail.
func (s sink) copyHistogram(d *prometheus.Desc, h prometheus.Histogram) {
	var m dto.Metric
	_ = h.Write(&m)
	buckets := map[float64]uint64{}
	for _, b := range m.Histogram.Bucket {
		buckets[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	s <- prometheus.MustNewConstHistogram(d, m.Histogram.GetSampleCount(), m.Histogram.GetSampleSum(), buckets)
}

// Collect implements prometheus.Collector.
func (v metrics) Collect(ch chan<- prometheus.Metric) {
	s := sink(ch)
	s.gauge(buildInfo, 1, v.o.Version, v.o.Commit)
	s.gauge(bootSeconds, float64(v.o.Started.UnixMilli())/1e3)
	for _, c := range v.Checks() {
		s.gauge(capabilityInfo, 1, c.Name, c.State)
	}
	for _, f := range v.o.Device.Describe().Features {
		s.gauge(capabilityInfo, 1, "device_"+f, "ok")
	}
	v.poolMetrics(s)
	counters := v.o.Store.Counters()
	lookupMetrics(s, &counters)
	storeMetrics(s, &counters)
	v.hbmMetrics(s, &counters)
	v.diskMetrics(s, &counters)
	v.adviceMetrics(s)
	v.costMetrics(s)
	v.decisionMetrics(s)
	v.canaryMetrics(s)
	v.serverMetrics(s)
}

func (v *View) poolMetrics(s sink) {
	for _, p := range v.o.Store.Pools() {
		level := tierName(p.Place)
		s.gauge(tierCapacity, float64(p.CapacityBytes), level, p.Name)
		for state, bytes := range usedByState(&p) {
			s.gauge(tierUsed, float64(bytes), level, p.Name, state)
		}
		s.gauge(poolObjects, float64(p.Objects), level, p.Name)
		if v.o.Disk != nil && p.Place == v.o.Place {
			s.gauge(dirtyBytes, float64(p.DirtyBytes), level, p.Name)
			s.gauge(readAheadBytes, float64(p.ReadAheadBytes), level, p.Name)
		}
	}
}

// usedByState divides what a pool uses. What is being written to the disk can be
// counted on only when that ends, so that it is not evictable.
func usedByState(p *tiering.PoolInfo) map[string]int64 {
	held := p.LeasedBytes + p.PendingBytes + p.QuarantinedBytes + p.DemotingBytes
	return map[string]int64{
		"leased": p.LeasedBytes, "pending": p.PendingBytes, "quarantined": p.QuarantinedBytes, "demoting": p.DemotingBytes,
		"evictable": p.UsedBytes - held,
	}
}

func lookupMetrics(s sink, c *tiering.Counters) {
	s.count(lookups, c.HBM.HitSegments, "hbm")
	s.count(lookups, c.HitSegments-c.HitSegmentsDisk-c.HBM.HitSegments, "dram")
	s.count(lookups, c.HitSegmentsDisk, "disk")
	s.count(lookupTokens, c.HBM.HitTokens, "hbm")
	s.count(lookupTokens, c.HitTokens-c.HitTokensDisk-c.HBM.HitTokens, "dram")
	s.count(lookupTokens, c.HitTokensDisk, "disk")
	var keys, tokens uint64
	for why := range c.MissSegments {
		reason := tier.Reason(why)
		if reason == tier.ReasonNone || reason == tier.ReasonFlagOnly {
			continue // of checkpoints, or not at all
		}
		keys, tokens = keys+c.MissSegments[why], tokens+c.MissTokens[why]
		s.count(misses, c.MissSegments[why], reason.String())
		s.count(missTokens, c.MissTokens[why], reason.String())
	}
	s.count(lookups, keys, "miss")
	s.count(lookupTokens, tokens, "miss")
	s.count(prefixHits, c.HBM.PrefixHits, "hbm")
	s.count(prefixHits, c.PrefixHits-c.PrefixHitsDisk-c.HBM.PrefixHits, "dram")
	s.count(prefixHits, c.PrefixHitsDisk, "disk")
	s.count(prefixHitTokens, c.HBM.PrefixHitTokens, "hbm")
	s.count(prefixHitTokens, c.PrefixHitTokens-c.PrefixHitTokensDisk-c.HBM.PrefixHitTokens, "dram")
	s.count(prefixHitTokens, c.PrefixHitTokensDisk, "disk")
	for why, n := range c.PrefixMisses {
		if tier.Reason(why) != tier.ReasonNone {
			s.count(prefixMisses, n, tier.Reason(why).String())
		}
	}
	s.count(avoided, c.AcquiredTokens+c.LoadedTokens)
}

func storeMetrics(s sink, c *tiering.Counters) {
	s.count(evictions, c.EvictedRoom, "dram", "room")
	s.count(evictions, c.EvictedQuota, "dram", "quota")
	s.count(evictions, c.Removed, "dram", "operator")
	s.count(evictedBytes, c.EvictedBytes, "dram")
	s.count(refusedObjects, c.RefusedFull, "full")
	s.count(refusedObjects, c.RefusedQuota, "quota")
	s.count(refusedObjects, c.RefusedBusy, "busy")
	s.count(published, c.Published)
	s.count(publishedBytes, c.PublishedBytes)
	for i, name := range [...]string{"client", "death", "corrupt", "device", "expiry"} {
		s.count(aborted, c.Aborted[i], name)
	}
	s.count(committedBytes, c.CommittedBytes, "dram", "in")
	s.gauge(leases, float64(c.Leases))
	s.gauge(leasesQuarantine, float64(c.Quarantined))
	s.count(leasesExpired, c.LeasesExpired)
	s.count(kernelRuns, c.Composed, "compose", "dram")
	s.count(kernelRuns, c.Rotated, "rotate", "dram")
	s.count(kernelRuns, c.Assembled, "assemble", "dram")
	s.count(kernelRuns, c.Replayed, "replay", "dram")
}

func (v *View) serverMetrics(s sink) {
	load, counts := v.o.Server.Load(), v.o.Server.Counts()
	s.gauge(sessions, float64(load.Sessions))
	counts.EachConnection(func(result string, n uint64) { s.count(connsTotal, n, result) })
	counts.EachDrop(func(why string, n uint64) { s.count(connsDrop, n, why) })
	counts.EachAnswer(func(op, code string, answers, inBatches uint64) {
		if answers > 0 {
			s.count(requests, answers, op, code)
		}
		if inBatches > 0 {
			s.count(rows, inBatches, op, code)
		}
	})
	counts.EachFailure(func(code string, n uint64) { s.count(failures, n, "socket", code) })
	s.gauge(inFlight, float64(load.InFlight))
	s.gauge(queued, float64(load.Queued))
	s.gauge(requestsWaiting, float64(load.Waiting))
	s.gauge(lentBytes, float64(load.LentBytes))
	s.copyHistogram(lookupTime, counts.Duration(wire.OpMatch))
}
