package view

import (
	"github.com/spliced-kv/spliced/daemon/gpu"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// The structs of this file declare series that are computed at each scrape, since no component
// counts them (see package metric).

type buildSeries struct {
	Version string `label:"version"`
	Commit  string `label:"commit"`
	Is      int    `prom:"build_info" help:"Version and commit of the daemon, as labels. The value is always 1."`
}

type nodeSeries struct {
	Started  float64 `prom:"start_time_seconds" help:"Start time of this daemon, in seconds since the Unix epoch."`
	Replaced uint64  `prom:"socket_replaced_total" help:"Times that another file or socket was found at the path of the engine socket."`
}

type capabilitySeries struct {
	Feature string `label:"feature"`
	State   string `label:"state"`
	Is      int    `prom:"capability_info" help:"Checks of the node (state ok or degraded) and features of its memory device, one series each. The value is always 1."`
}

type poolSeries struct {
	Tier      string `label:"tier"`
	Pool      string `label:"pool"`
	Capacity  int64  `prom:"tier_capacity_bytes" help:"Size limit of a pool in a tier, in bytes."`
	Evictable int64  `prom:"tier_used_bytes,state=evictable" help:"Bytes in use in a pool, by state: leased, pending (being filled), quarantined (lease expired, client may still be reading), demoting (being written to disk or copied to the object store or another node), evictable."`
	Objects   int    `prom:"pool_objects" help:"Objects in a pool: segments (pool public) or checkpoints (pool private)."`
}

// memorySeries is the memory of a pool that clients or the disk hold. Memory that is being written
// to disk counts as demoting, since it can be evicted only when the write ends.
type memorySeries struct {
	Tier        string `label:"tier"`
	Pool        string `label:"pool"`
	Leased      int64  `prom:"tier_used_bytes,state=leased"`
	Pending     int64  `prom:"tier_used_bytes,state=pending"`
	Quarantined int64  `prom:"tier_used_bytes,state=quarantined"`
	Demoting    int64  `prom:"tier_used_bytes,state=demoting"`
}

type dirtySeries struct {
	Tier      string `label:"tier"`
	Pool      string `label:"pool"`
	Dirty     int64  `prom:"pool_dirty_bytes" help:"Bytes in memory that have to be written to disk before they can be evicted."`
	ReadAhead int64  `prom:"pool_read_ahead_bytes" help:"Bytes of objects read ahead, or being read ahead, that no client has used yet."`
}

// lookupSeries are lookups by tier. The store's totals include the hits of HBM and disk.
type lookupSeries struct {
	Segments     [6]uint64 `count:"{hbm,dram,disk,peer,object,miss}" prom:"lookups_total,result=*" help:"Segment keys in match requests, by result: the fastest tier that has the segment, or miss. These are lookups, not tokens served."`
	Tokens       [6]uint64 `count:"{hbm,dram,disk,peer,object,miss}" prom:"lookup_tokens_total,result=*" help:"Tokens of segment keys in match requests, by result: the fastest tier that has the segment, or miss. A key may be looked up twice or not used, and a key never seen counts no tokens, so compute hit ratios from served_tokens_total."`
	Prefixes     [5]uint64 `count:"{hbm,dram,disk,peer,object}" prom:"prefix_hits_total,tier=*" help:"Match requests that found a checkpoint, by the fastest tier that has it."`
	PrefixTokens [5]uint64 `count:"{hbm,dram,disk,peer,object}" prom:"prefix_hit_tokens_total,tier=*" help:"Prompt tokens covered by the checkpoints that match requests found, by the fastest tier that has the checkpoint."`
	Avoided      uint64    `prom:"prefill_tokens_avoided_total" help:"Tokens of segments and checkpoints that engines leased, whether or not they used them."`
}

type diskSeries struct {
	Reads        int     `prom:"disk_reads_tried" help:"1 while the disk tier tries to read objects; 0 while objects on disk are misses, because the directory is not open, the circuit breaker is open after repeated failures, or a read hangs."`
	ReadStalled  float64 `prom:"disk_stalled_seconds,operation=read" help:"Age of the oldest running disk operation, in seconds, by operation: read, or write (including syncs and catalogue rows); 0 if below 5 seconds. While reads hang, objects on disk are misses; while writes hang, the disk tier accepts no objects."`
	WriteStalled float64 `prom:"disk_stalled_seconds,operation=write"`
	ReadSeconds  float64 `prom:"disk_read_seconds_total" help:"Total duration of successful reads of objects from disk, in seconds."`
}

type diskStateSeries struct {
	State string `label:"state"`
	Is    int    `prom:"disk_state" help:"1 for the current state of the disk tier, 0 for all others. In ok and full (new objects replace old ones) it reads and writes; in paused and failed it only reads; in opening, missing, refused, locked, version, unreadable, foreign and closed it does neither."`
}

// Series of each configured GPU, of which there are at most settings.MaxDevices.

type gpuSeries struct {
	Device string `label:"device"`
	Name   string `label:"name"`
	Is     int    `prom:"hbm_info" help:"Model name of a GPU whose memory is shared, by the GPU's UUID (label device). The value is always 1."`
}

type gpuStateSeries struct {
	Device string `label:"device"`
	State  string `label:"state"`
	Is     int    `prom:"hbm_state" help:"1 for the current state of a GPU, 0 for all others: opening, serving, missing (could not be opened or had no memory), lost (stopped working)."`
}

type deviceSeries struct {
	GPU   string `label:"device"`
	Bytes int64  `prom:"hbm_connection_bytes" help:"Bytes of GPU memory reserved for the private use of single connections."`
	stats.Device
}

// devicePoolSeries is a pool of one GPU. The series of the tier are sums over all GPUs.
type devicePoolSeries struct {
	Device   string `label:"device"`
	Pool     string `label:"pool"`
	Capacity int64  `prom:"hbm_pool_capacity_bytes" help:"Size limit of a pool in the memory of a GPU, in bytes."`
	Used     int64  `prom:"hbm_pool_used_bytes" help:"Bytes in use in a pool of GPU memory."`
	Leased   int64  `prom:"hbm_pool_leased_bytes" help:"Bytes in a pool of GPU memory that are leased or in use by an operation, so they cannot be evicted."`
	Objects  int    `prom:"hbm_pool_objects" help:"Copies of objects, and buffers of rows, in a pool of GPU memory."`
}

type driverSeries struct {
	Device   string `label:"device"`
	Stuck    int64  `prom:"hbm_stuck_calls" help:"CUDA driver calls on memory of other processes that have exceeded their timeout and not returned."`
	Late     int64  `prom:"hbm_late_calls_total" help:"CUDA driver calls on memory of other processes that exceeded their timeout, whether or not they returned later."`
	Gathered int64  `prom:"hbm_gathered_total" help:"Kernel operands that were scattered in memory and had to be copied together first."`
	Staged   int64  `prom:"hbm_unpinned_bytes_total" help:"Bytes copied between host and GPU through a staging buffer, because the host memory was not registered with the CUDA driver."`
}

type adviceSeries struct {
	New uint64 `prom:"advice_tokens_total,seen=no"`
}

type verdictSeries struct {
	Object  string `label:"object"`
	Verdict string `label:"verdict"`
	Reason  string `label:"reason"`
	Given   uint64 `prom:"advice_verdicts_total" help:"Advice about checkpoints and missing segments, by object, verdict (admitted: worth storing, or refused) and reason."`
}

type decisionSeries struct {
	Decision string `label:"decision"`
	Why      string `label:"why"`
	Made     uint64 `prom:"decisions_total" help:"Decisions about segments and checkpoints, by kind (admitted, refused, evicted, thinned, demoted, dropped; advised and discouraged are advice to engines) and reason."`
}

type answerSeries struct {
	Op       string `label:"op"`
	Code     string `label:"code"`
	Answered uint64 `prom:"requests_total" help:"Answered requests on the engine socket, by operation and result code."`
}

type rowSeries struct {
	Op       string `label:"op"`
	Code     string `label:"code"`
	Answered uint64 `prom:"rows_total" help:"Rows of batch requests on the engine socket, by operation and result code of the row."`
}

type failureSeries struct {
	Component string `label:"component"`
	Kind      string `label:"kind"`
	Refused   uint64 `prom:"errors_total" help:"Requests and batch rows that were refused or failed, by kind of error. Misses, objects that exist already and cancellations by the client are not errors."`
}

// trialSeries count the work of splicectl doctor. Other series include its requests, but not the
// objects of its test profile.
type trialSeries struct {
	Connections    uint64 `prom:"doctor_connections_total" help:"Connections of splicectl doctor, recognized by their client name. They are also included in connections_total."`
	Published      uint64 `prom:"doctor_published_total" help:"Objects published by splicectl doctor for its test profile. They are in no other counter, and are not written to disk, copied or announced."`
	PublishedBytes uint64 `prom:"doctor_published_bytes_total" help:"Bytes of the objects that splicectl doctor published for its test profile."`
}

type trialAnswerSeries struct {
	Code     string `label:"code"`
	Answered uint64 `prom:"doctor_requests_total" help:"Answers and batch rows for connections of splicectl doctor, by result code. They are also included in requests_total and rows_total."`
}

// savedSeries has one row per tier, for both pools together.
type savedSeries struct {
	Tier  string `label:"tier"`
	Bytes int64  `prom:"shared_saved_bytes" help:"Bytes of memory that sharing saves now: the bytes that active leases read, minus one copy of each object that is leased more than once."`
}

// eachStruct calls f with pointers to filled structs that declare series.
func (v *exporter) eachStruct(f func(any)) {
	f(&buildSeries{v.o.Version, v.o.Commit, 1})
	f(&nodeSeries{float64(v.o.Started.UnixMilli()) / 1e3, v.o.Guard.Replaced()})
	for _, c := range v.Checks() {
		f(&capabilitySeries{c.Name, c.State, 1})
	}
	for _, feature := range v.o.Device.Describe().Features {
		f(&capabilitySeries{"device_" + feature, "ok", 1})
	}
	stored := v.o.Store.Counters()
	f(&stored)
	f(lookupsOf(&stored))
	v.eachPool(f)
	v.eachOfDisk(f)
	v.eachOfGPU(f)
	v.eachOfAdvice(f)
	v.eachOfProfiles(f)
	v.eachOfCosts(f)
	v.eachOfCanary(f)
	v.eachOfServed(f)
	v.eachOfServer(f)
	v.eachOfCluster(f)
}

func lookupsOf(c *stats.Counters) *lookupSeries {
	split := func(all, hbm, disk, beyond, object uint64) [5]uint64 {
		return [5]uint64{hbm, all - hbm - disk - beyond, disk, beyond - object, object}
	}
	s := &lookupSeries{
		Prefixes:     split(c.PrefixHits, c.HBM.PrefixHits, c.PrefixHitsDisk, c.Beyond.PrefixHits, c.Object.PrefixHits),
		PrefixTokens: split(c.PrefixHitTokens, c.HBM.PrefixHitTokens, c.PrefixHitTokensDisk, c.Beyond.PrefixHitTokens, c.Object.PrefixHitTokens),
		Avoided:      c.AcquiredTokens + c.LoadedTokens,
	}
	segments := split(c.HitSegments, c.HBM.HitSegments, c.HitSegmentsDisk, c.Beyond.HitSegments, c.Object.HitSegments)
	tokens := split(c.HitTokens, c.HBM.HitTokens, c.HitTokensDisk, c.Beyond.HitTokens, c.Object.HitTokens)
	copy(s.Segments[:], segments[:])
	copy(s.Tokens[:], tokens[:])
	for why := tier.ReasonNone + 1; why < tier.ReasonFlagOnly; why++ { // flag_only concerns checkpoints only
		s.Segments[5] += c.MissSegments[why]
		s.Tokens[5] += c.MissTokens[why]
	}
	return s
}

func (v *exporter) eachPool(f func(any)) {
	pools := v.o.Store.Pools()
	saved := map[string]int64{}
	for _, p := range pools {
		saved[tierName(p.Place)] += p.SavedBytes
	}
	for level, bytes := range saved {
		f(&savedSeries{level, bytes})
	}
	for _, p := range pools {
		if p.Device != 0 {
			f(&devicePoolSeries{v.gpuName(p.Device), p.Name, p.CapacityBytes, p.UsedBytes, p.LeasedBytes, p.Objects})
		}
	}
	for _, p := range poolTotals(pools) {
		level := tierName(p.Place)
		held, pool := memoryOf(level, &p)
		f(held)
		f(pool)
		if v.o.Disk != nil && p.Place == v.o.Place {
			f(&dirtySeries{level, p.Name, p.DirtyBytes, p.ReadAheadBytes})
		}
	}
}

func memoryOf(level string, p *tiering.PoolInfo) (*memorySeries, *poolSeries) {
	held := p.LeasedBytes + p.PendingBytes + p.QuarantinedBytes + p.DemotingBytes
	return &memorySeries{level, p.Name, p.LeasedBytes, p.PendingBytes, p.QuarantinedBytes, p.DemotingBytes},
		&poolSeries{level, p.Name, p.CapacityBytes, p.UsedBytes - held, p.Objects}
}

func (v *exporter) eachOfDisk(f func(any)) {
	if v.o.Disk == nil {
		return
	}
	u, health, c := v.o.Disk.Usage(), v.o.Disk.Health(), v.o.Disk.Counters()
	for i := range u.Pools {
		p := &u.Pools[i]
		f(&poolSeries{tierName(tier.PlaceDisk), p.Name, p.BudgetBytes, p.UsedBytes, p.Entries})
	}
	disk.States(func(state disk.State) { f(&diskStateSeries{state.String(), one(state == health.State)}) })
	f(&diskSeries{one(health.Reads), health.ReadStalled.Seconds(), health.WriteStalled.Seconds(), float64(c.ReadNanos) / 1e9})
	f(&c)
}

func (v *exporter) eachOfGPU(f func(any)) {
	counters := v.o.Store.DeviceCounters()
	for _, g := range v.o.GPUs {
		now, _ := g.State()
		for s := range gpu.States {
			f(&gpuStateSeries{g.Name, s.String(), one(s == now)})
		}
		if g.Device == nil {
			continue
		}
		f(&gpuSeries{g.Name, g.Device.Describe().Name, 1})
		f(&deviceSeries{g.Name, g.ConnectionBytes(), counters[g.ID-1].Device})
		if n, ok := g.Counters(); ok {
			f(&driverSeries{g.Name, n.StuckCalls, n.LateCalls, n.Gathered, n.Unpinned})
		}
	}
}

func (v *exporter) eachOfAdvice(f func(any)) {
	a := v.o.Store.Advisor().Stats()
	f(&a)
	f(&adviceSeries{a.Tokens - a.SeenTokens})
	for object, counts := range map[string]*[cost.Reasons]uint64{"checkpoint": &a.Checkpoints, "segment": &a.Segments} {
		for r := range cost.Reason(cost.Reasons) {
			verdict := "refused"
			if r.Admitted() {
				verdict = "admitted"
			}
			if r.Code() != "unknown" && r != cost.ReasonNone {
				f(&verdictSeries{object, verdict, r.Code(), counts[r]})
			}
		}
	}
	v.o.Store.Decisions().Counts(func(what decision.What, why decision.Reason, n uint64) {
		f(&decisionSeries{what.String(), slug(why.String()), n})
	})
}

func (v *exporter) eachOfServer(f func(any)) {
	load, counts := v.o.Server.Load(), v.o.Server.Counts()
	f(&load)
	f(counts)
	counts.EachAnswer(func(op, code string, answers, rows uint64) {
		if answers > 0 {
			f(&answerSeries{op, code, answers})
		}
		if rows > 0 {
			f(&rowSeries{op, code, rows})
		}
	})
	counts.EachFailure(func(code string, n uint64) { f(&failureSeries{"socket", code, n}) })
	published, bytes := v.o.Store.Trials()
	f(&trialSeries{counts.TrialConnections(), published, bytes})
	counts.EachTrial(func(code string, n uint64) { f(&trialAnswerSeries{code, n}) })
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
