package view

import (
	"strconv"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/advise"
)

var (
	advices         = describe("advice_total", "Requests for advice that were answered.")
	advisedPrompts  = describe("advice_prompts_total", "Served prompts by whether the tree of prompts has taken them.", "result")
	advisedTokens   = describe("advice_tokens_total", "Tokens of the prompts that advice was asked for, by whether they had been seen before.", "seen")
	advisedWhy      = describe("advice_positions_total", "Positions for checkpoints that were thought of, by why.", "why")
	advisedVerdicts = describe("advice_verdicts_total", "What advice was given about checkpoints and missing segments, by reason.", "object", "verdict", "reason")
	advisedWays     = describe("advice_ways_total", "Way that a prompt is served the quickest.", "way")
	promptScopes    = describe("prompt_tree_scopes", "Pairs of profile and tenant whose prompts are remembered.")
	promptNodes     = describe("prompt_tree_nodes", "Places where remembered prompts part or end.")
	promptBytes     = describe("prompt_tree_bytes", "Memory of remembered prompts.")
	promptTokens    = describe("prompt_tree_tokens", "Tokens of remembered prompts, each shared one once.")
	promptDropped   = describe("prompt_tree_dropped_total", "Nodes that were forgotten for room.")
	placementSolves = describe("placement_solutions_total", "Placements of checkpoints that were solved anew.")

	prefillSamples = describe("prefill_samples_total", "Prefills that engines have measured, by profile.", "profile", "model")
	prefillSeconds = describe("prefill_predicted_seconds", "What computing a prompt of so many tokens is believed to take.", "profile", "model", "tokens")
	jobBandwidth   = describe("cost_bytes_per_second", "How fast a job is believed to go, beside its fixed part.", "profile", "model", "job")
	jobSeconds     = describe("cost_fixed_seconds", "What a job is believed to take whatever its size.", "profile", "model", "job")
)

// jobNames are the jobs that a daemon on one node predicts.
var jobNames = map[cost.Job]string{
	cost.JobLoadHBM: "load_hbm", cost.JobLoadDRAM: "load_dram", cost.JobLoadDisk: "load_disk",
	cost.JobCompose: "compose", cost.JobRotate: "rotate", cost.JobReplay: "replay", cost.JobPublish: "publish",
}

// advice is what the store advises and what it believes things to take.
func (v *View) adviceMetrics(s sink) {
	a := v.o.Store.Advisor().Stats()
	s.count(advices, a.Asked)
	s.count(advisedPrompts, a.Recorded, "remembered")
	s.count(advisedPrompts, a.NotRecorded, "left_out")
	s.count(advisedTokens, a.SeenTokens, "yes")
	s.count(advisedTokens, a.Tokens-a.SeenTokens, "no")
	for why := advise.WhyBranch; why <= advise.WhyPlaced; why++ {
		s.count(advisedWhy, a.Positions[why], why.String())
	}
	verdicts(s, "checkpoint", &a.Checkpoints)
	verdicts(s, "segment", &a.Segments)
	for way := cost.WayRecompute; way <= cost.Ways; way++ {
		s.count(advisedWays, a.Ways[way-1], way.String())
	}
	s.gauge(promptScopes, float64(a.Scopes))
	s.gauge(promptNodes, float64(a.Nodes))
	s.gauge(promptBytes, float64(a.Bytes))
	s.gauge(promptTokens, float64(a.NodeTokens))
	s.count(promptDropped, a.Dropped)
	s.count(placementSolves, a.Solved)
}

func verdicts(s sink, object string, counts *[cost.Reasons]uint64) {
	for r := range cost.Reason(cost.Reasons) {
		switch {
		case r.Code() == "unknown" || r == cost.ReasonNone:
		case r.Admitted():
			s.count(advisedVerdicts, counts[r], object, "admitted", r.Code())
		default:
			s.count(advisedVerdicts, counts[r], object, "refused", r.Code())
		}
	}
}

// costs is what each profile's predictions are made from.
func (v *View) costMetrics(s sink) {
	for _, c := range v.o.Store.Costs() {
		id := strconv.FormatUint(uint64(c.Profile), 10)
		s.count(prefillSamples, uint64(c.Samples), id, c.Model)
		for _, tokens := range []int{100, 1000, 10_000, 100_000} {
			s.gauge(prefillSeconds, c.Prefill.Millis(0, tokens)/1e3, id, c.Model, strconv.Itoa(tokens))
		}
		for job, name := range jobNames {
			link := c.Links[job]
			s.gauge(jobSeconds, link.Fixed/1e3, id, c.Model, name)
			if link.PerByte > 0 {
				s.gauge(jobBandwidth, 1e3/link.PerByte, id, c.Model, name)
			}
		}
	}
}
