package view

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Limits on values of the labels tenant and profile. Tenants are configured, but an engine may
// register one identity after another, and the reports about them stay. The limits are generous
// guesses: if both are reached, a daemon has fewer than about 10,000 series.
const (
	maxTenantLabels  = 64
	maxProfileLabels = 64
)

// labels has the label values of tenants and profiles, a bounded number of each. A tenant or
// profile beyond that number has the value metric.Other.
type labels struct{ tenants, profiles *metric.Values }

func newLabels() labels {
	return labels{metric.NewValues(maxTenantLabels), metric.NewValues(maxProfileLabels)}
}

// shortName returns the first 12 hex digits of a fingerprint; "" for the zero fingerprint.
func shortName(f profile.Fingerprint) string {
	if f == (profile.Fingerprint{}) {
		return ""
	}
	return hex.EncodeToString(f[:6])
}

func (l labels) profile(f profile.Fingerprint) string { return l.profiles.Of(shortName(f)) }

// tenantLabel returns the label value of a tenant, also of one that is no longer configured.
func (v *base) tenantLabel(id tier.TenantID) string {
	return v.labels.tenant(cmp.Or(v.o.Tenants.NameOf(id), fmt.Sprintf("tenant %d", id)))
}

func (l labels) tenant(name string) string { return l.tenants.Of(strings.ToValidUTF8(name, "?")) }

// profileSeries describes the profiles that label other series.
type profileSeries struct {
	Profile        string `label:"profile"`
	Fingerprint    string `label:"fingerprint"`
	Model          string `label:"model"`
	Adapter        string `label:"adapter"`
	TensorParallel string `label:"tensor_parallel"`
	Is             int    `prom:"profile_info" help:"Fingerprint, model and adapter of a profile that is registered or has canary reports, to join with other series by the label profile (first 12 hex digits of the fingerprint). At most 64 profiles since the start have a label of their own; the rest share other."`
}

type costSeries struct {
	Profile string `label:"profile"`
	Samples int    `prom:"prefill_samples_total" help:"Prefills that engines have measured and reported."`
}

type taskSeries struct {
	Profile string  `label:"profile"`
	Task    string  `label:"task"`
	Tokens  string  `label:"tokens"`
	Source  string  `label:"source"`
	Seconds float64 `prom:"splice_predicted_seconds" help:"Predicted duration in seconds of a part of a splice: walk (over as many computed rows as label tokens says) or capture (of as many tokens). Source is measured (by engines) or guess (derived from the prefill prediction)."`
}

type predictionSeries struct {
	Profile string  `label:"profile"`
	Tokens  string  `label:"tokens"`
	Source  string  `label:"source"`
	Seconds float64 `prom:"prefill_predicted_seconds" help:"Predicted time in seconds to compute a prompt of as many tokens as label tokens says. Source is measured (by engines) or guess (from the settings or the daemon's default)."`
}

type jobSeries struct {
	Profile string  `label:"profile"`
	Job     string  `label:"job"`
	Source  string  `label:"source"`
	Fixed   float64 `prom:"cost_fixed_seconds" help:"Predicted fixed time of a job in seconds, independent of its size. Source is measured, or guess (from the settings or the daemon's default)."`
}

type bandwidthSeries struct {
	Profile   string  `label:"profile"`
	Job       string  `label:"job"`
	Source    string  `label:"source"`
	PerSecond float64 `prom:"cost_bytes_per_second" help:"Predicted throughput of a job in bytes per second, apart from its fixed time. Source is measured, or guess (from the settings or the daemon's default)."`
}

// canarySeries has the reports on one profile of one tenant. The series with the label "other" has
// the sums over all profiles or tenants beyond the limit of that label.
type canarySeries struct {
	Profile  string  `label:"profile"`
	Tenant   string  `label:"tenant"`
	Compared uint64  `prom:"canary_compared_total" help:"Reused segments that engines recomputed and compared, as reported by the engines' canaries."`
	Failed   uint64  `prom:"canary_failed_total" help:"Reused segments that differed from the recomputed ones by more than the engine's limit, as reported by the engines' canaries."`
	Worst    float64 `prom:"canary_worst_difference" help:"Largest difference between a reused and a recomputed segment that a canary has reported since the daemon's start."`
	Off      int     `prom:"profile_switched_off" help:"1 if splicing is switched off for the profile and tenant, otherwise 0; rows labelled other count the profiles that are off. An engine's canary or an operator switches it off, and only an operator switches it on again."`
}

// lossSeries has the counts for one way of splicing (with or without primer, with or without
// refresh).
type lossSeries struct {
	Profile   string `label:"profile"`
	Tenant    string `label:"tenant"`
	Primed    string `label:"primed"`
	Refreshed string `label:"refreshed"`
	Compared  uint64 `prom:"loss_compared_total" help:"Spliced requests that canaries also computed in full to compare the first token, by primed (segments were captured after a primer) and refreshed (the last segments were computed in context)."`
	Changed   uint64 `prom:"loss_changed_total" help:"Spliced requests compared by canaries whose first token differed from that of the full prefill, by primed (segments were captured after a primer) and refreshed (the last segments were computed in context)."`
}

type expectedLossSeries struct {
	Profile   string  `label:"profile"`
	Tenant    string  `label:"tenant"`
	Primed    string  `label:"primed"`
	Refreshed string  `label:"refreshed"`
	Expected  float64 `prom:"expected_loss" help:"Expected share (0 to 1) of spliced requests whose first token differs from that of a full prefill, from canary comparisons and offline measurements. Absent below 50 comparisons."`
}

// jobNames are the jobs whose costs a daemon predicts for its own node.
var jobNames = map[cost.Job]string{
	cost.JobLoadHBM: "load_hbm", cost.JobLoadDRAM: "load_dram", cost.JobLoadDisk: "load_disk",
	cost.JobCompose: "compose", cost.JobRotate: "rotate", cost.JobReplay: "replay", cost.JobPublish: "publish",
}

// eachOfProfiles calls f for each profile that is registered or has reports.
func (v *exporter) eachOfProfiles(f func(any)) {
	told := map[string]bool{metric.Other: true}
	tell := func(of profile.Fingerprint, id *profile.Identity) {
		short := v.labels.profile(of)
		if told[short] || of.IsTrial() {
			return
		}
		told[short] = true
		tp := ""
		if id.TPSize > 0 {
			tp = strconv.Itoa(id.TPSize)
		}
		f(&profileSeries{short, hex.EncodeToString(of[:]), strings.ToValidUTF8(id.Model, "?"), strings.ToValidUTF8(id.Adapter, "?"), tp, 1})
	}
	for _, p := range v.o.Store.Profiles() {
		id := p.Profile.Identity()
		tell(p.Profile.Fingerprint(), &id)
	}
	for _, r := range v.o.Canary.List() {
		tell(r.Fingerprint, &profile.Identity{Model: r.Model})
	}
}

// sourceOf returns the value of the label source.
func sourceOf(measured bool) string {
	if measured {
		return "measured"
	}
	return "guess"
}

// eachOfCosts calls f for the cost series of each profile. Profiles that share the label "other"
// have a sum of samples and no predictions.
func (v *exporter) eachOfCosts(f func(any)) {
	var others uint64
	for _, c := range v.o.Store.Costs() {
		if c.Fingerprint.IsTrial() {
			continue
		}
		name := v.labels.profile(c.Fingerprint)
		if name == metric.Other {
			others += uint64(c.Samples)
			continue
		}
		eachOfCost(name, &c, f)
	}
	if others > 0 {
		f(&costSeries{metric.Other, int(others)})
	}
}

func eachOfCost(name string, c *tiering.ProfileCosts, f func(any)) {
	f(&costSeries{name, c.Samples})
	for _, tokens := range []int{100, 1000, 10_000, 100_000} {
		f(&predictionSeries{name, strconv.Itoa(tokens), sourceOf(c.PrefillMeasured), c.Prefill.Millis(0, tokens) / 1e3})
	}
	for _, tokens := range []int{100, 1000} {
		f(&taskSeries{name, "walk", strconv.Itoa(tokens), sourceOf(c.WalkMeasured), c.Walk.Millis(0, tokens) / 1e3})
		f(&taskSeries{name, "capture", strconv.Itoa(tokens), sourceOf(c.CaptureMeasured), c.Capture.Millis(0, tokens) / 1e3})
	}
	for job, jobName := range jobNames {
		link, source := c.Links[job], sourceOf(c.Measured[job])
		f(&jobSeries{name, jobName, source, link.Fixed / 1e3})
		if link.PerByte > 0 {
			f(&bandwidthSeries{name, jobName, source, 1e3 / link.PerByte})
		}
	}
}

func (v *exporter) eachOfCanary(f func(any)) {
	sums := v.o.Canary.Sums()
	f(&sums)
	for _, s := range v.canarySeries(v.o.Canary.List(), v.o.Canary.Unknown() != "") {
		f(s)
	}
	v.eachOfLosses(f)
}

// eachOfLosses calls f for the losses of each profile and tenant. It leaves out those with the
// label "other", because losses of several profiles cannot be added.
func (v *exporter) eachOfLosses(f func(any)) {
	for _, r := range v.o.Canary.List() {
		name, tenant := v.labels.profile(r.Fingerprint), v.tenantLabel(r.Tenant)
		if name == metric.Other || tenant == metric.Other {
			continue
		}
		for _, l := range r.Losses.Known() {
			primed, refreshed := strconv.FormatBool(l.Primed), strconv.FormatBool(l.Refreshed)
			f(&lossSeries{name, tenant, primed, refreshed, l.Canary.Compared, l.Canary.Changed})
			if loss := l.Expected(); loss >= 0 {
				f(&expectedLossSeries{name, tenant, primed, refreshed, loss})
			}
		}
	}
}

// everyProfile is the label of all profiles while the note of switched-off profiles cannot be read.
const everyProfile = "all"

// canarySeries adds up rows with equal labels. The parameter unknown means that the file of
// switched-off profiles cannot be read, so that all profiles are switched off.
func (v *exporter) canarySeries(rows []canary.Row, unknown bool) (list []*canarySeries) {
	at := map[[2]string]*canarySeries{}
	row := func(name string, of tier.TenantID) *canarySeries {
		tenant := v.tenantLabel(of)
		s := at[[2]string{name, tenant}]
		if s == nil {
			s = &canarySeries{Profile: name, Tenant: tenant}
			at[[2]string{name, tenant}] = s
			list = append(list, s)
		}
		return s
	}
	if unknown {
		for i := range v.o.Tenants {
			row(everyProfile, v.o.Tenants[i].ID).Off = 1
		}
	}
	for i := range rows {
		r := &rows[i]
		s := row(v.labels.profile(r.Fingerprint), r.Tenant)
		s.Compared += r.Compared
		s.Failed += r.Failed
		s.Worst = max(s.Worst, r.Worst)
		s.Off += one(r.Off)
	}
	return list
}
