package view

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A tenant that registers one identity after another makes no series without end, and no
// report is lost for it.
func TestReportsBeyondTheBoundOfLabelsShareARow(t *testing.T) {
	v := New(Options{Tenants: []tiering.Tenant{{ID: 1, Name: "a"}}})
	var rows []canary.Row
	for i := range maxProfileLabels + 10 {
		var of profile.Fingerprint
		of[0], of[5], of[31] = byte(i), 0xff, byte(i)
		rows = append(rows, canary.Row{
			Key:     canary.Key{Tenant: tier.TenantID(1 + i%2), Fingerprint: of},
			Reports: canary.Reports{Compared: 2, Failed: 1, Worst: float64(i), Off: true},
		})
	}
	var compared, failed uint64
	names := map[string]bool{}
	var rest []*canarySeries
	for range 2 { // a second scrape tells the same names
		compared, failed, rest = 0, 0, nil
		for _, s := range v.canarySeries(rows, false) {
			names[s.Profile] = true
			compared, failed = compared+s.Compared, failed+s.Failed
			if s.Profile == metric.Other {
				rest = append(rest, s)
			}
			if s.Tenant != "a" && s.Tenant != "tenant 2" {
				t.Errorf("tenant %q", s.Tenant)
			}
		}
	}
	if len(names) != maxProfileLabels+1 || !names["0000000000ff"] {
		t.Errorf("%d names of profiles, %v", len(names), names)
	}
	if n := uint64(len(rows)); compared != 2*n || failed != n {
		t.Errorf("compared %d, failed %d of %d rows", compared, failed, n)
	}
	if len(rest) != 2 || rest[0].Off+rest[1].Off != 10 || max(rest[0].Worst, rest[1].Worst) != float64(len(rows)-1) {
		t.Errorf("rows of the others: %+v", rest)
	}
}

// What the settings say is not told as learnt.
func TestCostsSayWhetherTheyWereMeasured(t *testing.T) {
	c := tiering.ProfileCosts{}
	c.Links[cost.JobLoadDRAM], c.Links[cost.JobPublish] = cost.Bandwidth(1, 1e9), cost.Bandwidth(2, 1e9)
	c.Measured[cost.JobPublish], c.WalkMeasured = true, true
	got := map[string]string{}
	eachOfCost("0123456789ab", &c, func(s any) {
		metric.EachSeries(s, func(string) bool { return true }, func(family string, values []string, _ float64) {
			if len(values) < 2 {
				return
			}
			got[fmt.Sprint(family, " ", strings.Join(values[1:len(values)-1], " "))] = values[len(values)-1]
		})
	})
	for series, want := range map[string]string{
		"cost_bytes_per_second load_dram": "guess", "cost_bytes_per_second publish": "measured",
		"cost_fixed_seconds compose": "guess", "prefill_predicted_seconds 1000": "guess",
		"splice_predicted_seconds walk 1000": "measured", "splice_predicted_seconds capture 100": "guess",
	} {
		if got[series] != want {
			t.Errorf("%s is a %q, want %q", series, got[series], want)
		}
	}
}
