package view

import (
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Every struct that is filled in is declared, and says what its series are: newMetrics
// panics where one has no help or other labels than another of its family.
func TestEveryFamilyIsDeclaredOnce(t *testing.T) {
	m := newMetrics(&View{})
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
