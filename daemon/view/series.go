package view

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spliced-kv/spliced/daemon/gpu"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// The structs of this file declare series that no part counts as they are: they are
// put together when somebody asks (see package metric).

type buildSeries struct {
	Version string `label:"version"`
	Commit  string `label:"commit"`
	Is      int    `prom:"build_info" help:"What was built."`
}

type nodeSeries struct {
	Started  float64 `prom:"start_time_seconds" help:"When this daemon started, since the epoch."`
	Replaced uint64  `prom:"socket_replaced_total" help:"Times that the path of the engine socket was found to lead elsewhere."`
}

type capabilitySeries struct {
	Feature string `label:"feature"`
	State   string `label:"state"`
	Is      int    `prom:"capability_info" help:"What the node can and cannot do."`
}

type poolSeries struct {
	Tier      string `label:"tier"`
	Pool      string `label:"pool"`
	Capacity  int64  `prom:"tier_capacity_bytes" help:"Budget of a pool in a tier."`
	Evictable int64  `prom:"tier_used_bytes,state=evictable" help:"Bytes in use by state: leased, pending (being filled), quarantined (lease expired, client still there), demoting (being written to the disk or copied to the object store or another node, and as a rule free after that), evictable."`
	Objects   int    `prom:"pool_objects" help:"Segments (public) and checkpoints (private) held."`
}

// memorySeries is what clients and the disk hold of a pool. What is being written
// to the disk can be counted on only when that ends, so that it is not evictable.
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
	Dirty     int64  `prom:"pool_dirty_bytes" help:"Bytes in memory that could leave but for a write to disk first."`
	ReadAhead int64  `prom:"pool_read_ahead_bytes" help:"Bytes read ahead, or on the way, and not used yet."`
}

// lookupSeries are hits by the tier that has them; the store counts those of HBM
// and of the disk among all.
type lookupSeries struct {
	Segments     [6]uint64 `count:"{hbm,dram,disk,peer,object,miss}" prom:"lookups_total,result=*" help:"Segment keys asked for by match, by the tier that has them or miss."`
	Tokens       [6]uint64 `count:"{hbm,dram,disk,peer,object,miss}" prom:"lookup_tokens_total,result=*" help:"Tokens asked for by match, by the tier that has them or miss, as far as the size of a miss is known. A hit is counted in tokens."`
	Prefixes     [5]uint64 `count:"{hbm,dram,disk,peer,object}" prom:"prefix_hits_total,tier=*" help:"Matches that found a checkpoint, by the tier it lies in."`
	PrefixTokens [5]uint64 `count:"{hbm,dram,disk,peer,object}" prom:"prefix_hit_tokens_total,tier=*" help:"Tokens covered by the checkpoints found, by the tier they lie in."`
	Avoided      uint64    `prom:"prefill_tokens_avoided_total" help:"Tokens of segments and checkpoints that engines took leases on."`
}

type diskSeries struct {
	Reads        int     `prom:"disk_reads_tried" help:"1 while what is on disk is read, 0 while it counts as a miss: not open, too many reads in a row have failed, or one hangs."`
	ReadStalled  float64 `prom:"disk_stalled_seconds,operation=read" help:"How long the oldest operation under way has not returned, by what it does: read, write (syncs and rows too). 0 below 5 seconds. While reads hang what is on disk is a miss, while writes do nothing new is taken."`
	WriteStalled float64 `prom:"disk_stalled_seconds,operation=write"`
	ReadSeconds  float64 `prom:"disk_read_seconds_total" help:"Time that reads took, of all of them."`
}

type diskStateSeries struct {
	State string `label:"state"`
	Is    int    `prom:"disk_state" help:"1 for the state that the disk tier is in, 0 for the others. full: old entries make room for new ones; paused, failed: nothing is written; opening, missing, refused, locked, version, unreadable, foreign: nothing is read either."`
}

// The series of each GPU of the setting, of which there are settings.MaxDevices at most.

type gpuSeries struct {
	Device string `label:"device"`
	Name   string `label:"name"`
	Is     int    `prom:"hbm_info" help:"A GPU whose memory is lent, by its UUID."`
}

type gpuStateSeries struct {
	Device string `label:"device"`
	State  string `label:"state"`
	Is     int    `prom:"hbm_state" help:"1 for the state that a GPU is in, 0 for the others. missing: it could not be opened or gave no memory; lost: it gives no service any more."`
}

type deviceSeries struct {
	GPU   string `label:"device"`
	Bytes int64  `prom:"hbm_connection_bytes" help:"Memory of the GPU that clients have of their own."`
	stats.Device
}

// devicePoolSeries is a pool of one GPU; those of the tier are the sums over all of them.
type devicePoolSeries struct {
	Device   string `label:"device"`
	Pool     string `label:"pool"`
	Capacity int64  `prom:"hbm_pool_capacity_bytes" help:"Budget of a pool on a GPU."`
	Used     int64  `prom:"hbm_pool_used_bytes" help:"Bytes of it in use."`
	Leased   int64  `prom:"hbm_pool_leased_bytes" help:"Of these, bytes that are leased or in use by an operation."`
	Objects  int    `prom:"hbm_pool_objects" help:"Copies, and buffers of rows, in it."`
}

type driverSeries struct {
	Device   string `label:"device"`
	Stuck    int64  `prom:"hbm_stuck_calls" help:"Calls of the driver on memory of other processes that run past their time now."`
	Late     int64  `prom:"hbm_late_calls_total" help:"Calls of the driver on memory of other processes that ever ran past their time."`
	Gathered int64  `prom:"hbm_gathered_total" help:"Operands of kernels that lay in several runs and were put together first."`
	Staged   int64  `prom:"hbm_unpinned_bytes_total" help:"Bytes of the host's memory copied by way of staging, because the driver did not register them."`
}

type adviceSeries struct {
	New uint64 `prom:"advice_tokens_total,seen=no"`
}

type verdictSeries struct {
	Object  string `label:"object"`
	Verdict string `label:"verdict"`
	Reason  string `label:"reason"`
	Given   uint64 `prom:"advice_verdicts_total" help:"What advice was given about checkpoints and missing segments, by reason."`
}

type decisionSeries struct {
	Decision string `label:"decision"`
	Why      string `label:"why"`
	Made     uint64 `prom:"decisions_total" help:"Decisions about segments and checkpoints by what was decided and why: what happened, and what engines were advised (advised, discouraged)."`
}

type costSeries struct {
	Profile string `label:"profile"`
	Model   string `label:"model"`
	Samples int    `prom:"prefill_samples_total" help:"Prefills that engines have measured, by profile."`
}

type predictionSeries struct {
	Profile string  `label:"profile"`
	Model   string  `label:"model"`
	Tokens  string  `label:"tokens"`
	Seconds float64 `prom:"prefill_predicted_seconds" help:"What computing a prompt of so many tokens is believed to take."`
}

type jobSeries struct {
	Profile string  `label:"profile"`
	Model   string  `label:"model"`
	Job     string  `label:"job"`
	Fixed   float64 `prom:"cost_fixed_seconds" help:"What a job is believed to take whatever its size."`
}

type bandwidthSeries struct {
	Profile   string  `label:"profile"`
	Model     string  `label:"model"`
	Job       string  `label:"job"`
	PerSecond float64 `prom:"cost_bytes_per_second" help:"How fast a job is believed to go, beside its fixed part."`
}

// canarySeries are the reports on one profile, of which a tenant has a bounded
// number.
type canarySeries struct {
	Model    string  `label:"model"`
	Profile  string  `label:"profile"`
	Tenant   string  `label:"tenant"`
	Compared uint64  `prom:"canary_compared_total" help:"Reuses that engines computed again and compared, as they reported."`
	Failed   uint64  `prom:"canary_failed_total" help:"Of these, those that differed by more than the engine's bound."`
	Worst    float64 `prom:"canary_worst_difference" help:"Largest difference that was reported since the daemon's start."`
	Off      int     `prom:"profile_switched_off" help:"1 while a profile is switched off for splicing. Only an operator switches it on."`
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
	Refused   uint64 `prom:"errors_total" help:"Requests and rows of batches that were refused, by kind. A miss is no error."`
}

// eachStruct calls f with pointers to structs that declare series, filled in.
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
	v.eachOfCosts(f)
	v.eachOfCanary(f)
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
	for why := tier.ReasonNone + 1; why < tier.ReasonFlagOnly; why++ { // flag_only is of checkpoints
		s.Segments[5] += c.MissSegments[why]
		s.Tokens[5] += c.MissTokens[why]
	}
	return s
}

func (v *View) eachPool(f func(any)) {
	pools := v.o.Store.Pools()
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

// jobNames are the jobs that a daemon on one node predicts.
var jobNames = map[cost.Job]string{
	cost.JobLoadHBM: "load_hbm", cost.JobLoadDRAM: "load_dram", cost.JobLoadDisk: "load_disk",
	cost.JobCompose: "compose", cost.JobRotate: "rotate", cost.JobReplay: "replay", cost.JobPublish: "publish",
}

// eachOfCosts is what each profile's predictions are made from.
func (v *View) eachOfCosts(f func(any)) {
	for _, c := range v.o.Store.Costs() {
		id := strconv.FormatUint(uint64(c.Profile), 10)
		f(&costSeries{id, c.Model, c.Samples})
		for _, tokens := range []int{100, 1000, 10_000, 100_000} {
			f(&predictionSeries{id, c.Model, strconv.Itoa(tokens), c.Prefill.Millis(0, tokens) / 1e3})
		}
		for job, name := range jobNames {
			link := c.Links[job]
			f(&jobSeries{id, c.Model, name, link.Fixed / 1e3})
			if link.PerByte > 0 {
				f(&bandwidthSeries{id, c.Model, name, 1e3 / link.PerByte})
			}
		}
	}
}

func (v *View) eachOfCanary(f func(any)) {
	sums := v.o.Canary.Sums()
	f(&sums)
	for _, r := range v.o.Canary.List() {
		f(&canarySeries{
			strings.ToValidUTF8(r.Model, "?"), fmt.Sprintf("%x", r.Fingerprint), v.o.Server.TenantName(r.Tenant),
			r.Compared, r.Failed, r.Worst, one(r.Off),
		})
	}
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
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
