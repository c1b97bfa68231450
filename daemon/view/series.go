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
	Is      int    `prom:"build_info" help:"Version of the build."`
}

type nodeSeries struct {
	Started  float64 `prom:"start_time_seconds" help:"Start time of this daemon, in seconds since the epoch."`
	Replaced uint64  `prom:"socket_replaced_total" help:"Times that the path of the engine socket was found replaced."`
}

type capabilitySeries struct {
	Feature string `label:"feature"`
	State   string `label:"state"`
	Is      int    `prom:"capability_info" help:"Checks and device features of the node, by state."`
}

type poolSeries struct {
	Tier      string `label:"tier"`
	Pool      string `label:"pool"`
	Capacity  int64  `prom:"tier_capacity_bytes" help:"Budget of a pool in a tier."`
	Evictable int64  `prom:"tier_used_bytes,state=evictable" help:"Bytes in use by state: leased, pending (being filled), quarantined (lease expired, client still there), demoting (being written to the disk or copied to the object store or another node, and as a rule free after that), evictable."`
	Objects   int    `prom:"pool_objects" help:"Segments (public) and checkpoints (private) held."`
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
	Dirty     int64  `prom:"pool_dirty_bytes" help:"Bytes in memory that can be evicted only after a write to disk."`
	ReadAhead int64  `prom:"pool_read_ahead_bytes" help:"Bytes read ahead or being read, and not used yet."`
}

// lookupSeries are lookups by tier. The store's totals include the hits of HBM and disk.
type lookupSeries struct {
	Segments     [6]uint64 `count:"{hbm,dram,disk,peer,object,miss}" prom:"lookups_total,result=*" help:"Segment keys that match was asked for, by the tier that has them or miss. Counts lookups, not tokens served."`
	Tokens       [6]uint64 `count:"{hbm,dram,disk,peer,object,miss}" prom:"lookup_tokens_total,result=*" help:"Tokens that match was asked for by segment keys, by the tier that has them or miss. Counts lookups, not tokens served: a key may be asked for twice or not used, and a miss counts only the tokens that its key is known to have, none if it was never seen. For hit ratios use served_tokens_total."`
	Prefixes     [5]uint64 `count:"{hbm,dram,disk,peer,object}" prom:"prefix_hits_total,tier=*" help:"Matches that found a checkpoint, by its tier."`
	PrefixTokens [5]uint64 `count:"{hbm,dram,disk,peer,object}" prom:"prefix_hit_tokens_total,tier=*" help:"Tokens covered by the checkpoints found, by their tier."`
	Avoided      uint64    `prom:"prefill_tokens_avoided_total" help:"Tokens of segments and checkpoints that engines leased, whether they then used them or not."`
}

type diskSeries struct {
	Reads        int     `prom:"disk_reads_tried" help:"1 while objects on disk can be read, 0 while they count as misses: not open, too many reads in a row have failed, or one hangs."`
	ReadStalled  float64 `prom:"disk_stalled_seconds,operation=read" help:"Age of the oldest pending operation, by kind: read, write (including syncs and rows). 0 below 5 seconds. While reads hang, objects on disk are misses; while writes hang, nothing new is accepted."`
	WriteStalled float64 `prom:"disk_stalled_seconds,operation=write"`
	ReadSeconds  float64 `prom:"disk_read_seconds_total" help:"Total time of reads."`
}

type diskStateSeries struct {
	State string `label:"state"`
	Is    int    `prom:"disk_state" help:"1 for the state that the disk tier is in, 0 for the others. full: old entries make room for new ones; paused, failed: nothing is written; opening, missing, refused, locked, version, unreadable, foreign: nothing is read either."`
}

// Series of each configured GPU, of which there are at most settings.MaxDevices.

type gpuSeries struct {
	Device string `label:"device"`
	Name   string `label:"name"`
	Is     int    `prom:"hbm_info" help:"A GPU whose memory is shared, by its UUID."`
}

type gpuStateSeries struct {
	Device string `label:"device"`
	State  string `label:"state"`
	Is     int    `prom:"hbm_state" help:"1 for the state that a GPU is in, 0 for the others. missing: it could not be opened or had no memory; lost: it stopped working."`
}

type deviceSeries struct {
	GPU   string `label:"device"`
	Bytes int64  `prom:"hbm_connection_bytes" help:"GPU memory private to clients."`
	stats.Device
}

// devicePoolSeries is a pool of one GPU. The series of the tier are sums over all GPUs.
type devicePoolSeries struct {
	Device   string `label:"device"`
	Pool     string `label:"pool"`
	Capacity int64  `prom:"hbm_pool_capacity_bytes" help:"Budget of a pool on a GPU."`
	Used     int64  `prom:"hbm_pool_used_bytes" help:"Bytes of it in use."`
	Leased   int64  `prom:"hbm_pool_leased_bytes" help:"Of these, bytes that are leased or in use by an operation."`
	Objects  int    `prom:"hbm_pool_objects" help:"Copies and buffers of rows in it."`
}

type driverSeries struct {
	Device   string `label:"device"`
	Stuck    int64  `prom:"hbm_stuck_calls" help:"Driver calls on memory of other processes that are past their timeout now."`
	Late     int64  `prom:"hbm_late_calls_total" help:"Driver calls on memory of other processes that exceeded their timeout."`
	Gathered int64  `prom:"hbm_gathered_total" help:"Kernel operands gathered from several runs first."`
	Staged   int64  `prom:"hbm_unpinned_bytes_total" help:"Bytes of host memory copied through staging because the driver did not register them."`
}

type adviceSeries struct {
	New uint64 `prom:"advice_tokens_total,seen=no"`
}

type verdictSeries struct {
	Object  string `label:"object"`
	Verdict string `label:"verdict"`
	Reason  string `label:"reason"`
	Given   uint64 `prom:"advice_verdicts_total" help:"Advice on checkpoints and missing segments, by reason."`
}

type decisionSeries struct {
	Decision string `label:"decision"`
	Why      string `label:"why"`
	Made     uint64 `prom:"decisions_total" help:"Decisions about segments and checkpoints by kind and reason, including advice to engines (advised, discouraged)."`
}

type answerSeries struct {
	Op       string `label:"op"`
	Code     string `label:"code"`
	Answered uint64 `prom:"requests_total" help:"Answered requests."`
}

type rowSeries struct {
	Op       string `label:"op"`
	Code     string `label:"code"`
	Answered uint64 `prom:"rows_total" help:"Rows of answered batches."`
}

type failureSeries struct {
	Component string `label:"component"`
	Kind      string `label:"kind"`
	Refused   uint64 `prom:"errors_total" help:"Requests and rows of batches that were refused or failed, by kind. Normal outcomes are not counted: miss, exists, and canceled by the client."`
}

// trialSeries count the work of splicectl doctor. Other series include its requests, but not the
// objects of its test profile.
type trialSeries struct {
	Connections    uint64 `prom:"doctor_connections_total" help:"Connections of splicectl doctor, by the client's name. Included in all connections."`
	Published      uint64 `prom:"doctor_published_total" help:"Objects published for the test profile of splicectl doctor. No other counter includes them, and they are neither written, sent nor announced."`
	PublishedBytes uint64 `prom:"doctor_published_bytes_total" help:"Bytes of these."`
}

type trialAnswerSeries struct {
	Code     string `label:"code"`
	Answered uint64 `prom:"doctor_requests_total" help:"Answers and rows of batches for connections of splicectl doctor. Included in all requests."`
}

// savedSeries has one row per tier, for both pools together.
type savedSeries struct {
	Tier  string `label:"tier"`
	Bytes int64  `prom:"shared_saved_bytes" help:"Bytes saved by sharing now: for every object in the tier, the bytes of the ranks' shares that live leases read, less one copy of the object (with one rank: leases less one, times its bytes)."`
}

// eachStruct calls f with pointers to filled structs that declare series.
func (v *View) eachStruct(f func(any)) {
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

func (v *View) eachPool(f func(any)) {
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

func (v *View) eachOfDisk(f func(any)) {
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

func (v *View) eachOfGPU(f func(any)) {
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

func (v *View) eachOfAdvice(f func(any)) {
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

func (v *View) eachOfServer(f func(any)) {
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
