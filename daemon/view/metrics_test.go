package view

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Every struct that is filled in is declared, and says what its series are: newMetrics
// panics where one has no help or other labels than another of its family.
func TestEveryFamilyIsDeclaredOnce(t *testing.T) {
	m := newMetrics(&exporter{base: &base{}})
	if len(m.families) < 100 {
		t.Errorf("%d families", len(m.families))
	}
	for name := range m.families {
		if strings.ToLower(name) != name {
			t.Errorf("family %s", name)
		}
	}
}

// Tags name what String names elsewhere.
func TestReasonsAreNamedAlike(t *testing.T) {
	var c stats.Counters
	for i := range c.PrefixMisses {
		c.PrefixMisses[i] = uint64(100 + i)
	}
	metric.Each(&c, func(name string, n uint64) {
		why, ok := strings.CutPrefix(name, "prefix_misses_")
		if ok && (n < 100 || why != tier.Reason(n-100).String()) {
			t.Errorf("%s counts reason %d, %v", name, n-100, tier.Reason(n-100))
		}
	})
	var levels []string
	c = stats.Counters{}
	for i := range c.Acknowledged {
		c.Acknowledged[i] = uint64(100 + i)
	}
	metric.Each(&c, func(name string, n uint64) {
		if level, ok := strings.CutPrefix(name, "acknowledged_"); ok {
			levels = append(levels, level)
			if level != tier.Level(n-100).String() {
				t.Errorf("%s counts level %d, %v", name, n-100, tier.Level(n-100))
			}
		}
	})
	if !slices.Equal(levels, []string{"memory", "logged", "synced"}) {
		t.Errorf("levels %v", levels)
	}
}

// One label that is not UTF-8 would cost all series of its family.
func TestSeriesWithAnyLabelAreTold(t *testing.T) {
	d := prometheus.NewDesc("spliced_x", "X.", []string{"model"}, nil)
	var m dto.Metric
	if err := sampleOf(d, prometheus.GaugeValue, 1, []string{"a\xffb"}).Write(&m); err != nil || m.Label[0].GetValue() != "a\uFFFDb" {
		t.Errorf("told as %v, %v", m.Label, err)
	}
	if err := sampleOf(d, prometheus.GaugeValue, 1, nil).Write(&m); err == nil {
		t.Error("a series without its label was told")
	}
}
