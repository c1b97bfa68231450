package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
)

func TestPeersAreCheckedInACluster(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	ends := now.Add(48 * time.Hour)
	rows := []struct {
		name   string
		change func(c *api.Cluster)
		check  string // that is not ok
		text   string
	}{
		{"well", func(*api.Cluster) {}, "", ""},
		{"out of reach", func(c *api.Cluster) { c.Members[1].State, c.Members[1].Since = api.MemberUnreachable, now }, "peers reached", "b: unreachable"},
		{"left alone", func(c *api.Cluster) { c.Members[1].Fetch = &api.MemberFetch{Open: true} }, "peers reached", "b: it failed too often"},
		{"nobody", func(c *api.Cluster) { c.Members = c.Members[:1] }, "peers reached", "no other member"},
		{"another secret", func(c *api.Cluster) { c.Members[1].Unusable = "another secret" }, "peers usable", "b: another secret"},
		{"clock", func(c *api.Cluster) { ahead := 3600.0; c.Members[1].ClockAhead = &ahead }, "peers' clocks", "b: its clock"},
		{"versions", func(c *api.Cluster) { c.Members[1].Version = "v2" }, "peers' versions", "v1, v2"},
		{"plain", func(c *api.Cluster) { c.Encrypted, c.Certificate = false, nil }, "cluster keys", "gossip is not encrypted; the peers' port"},
		{"many", func(c *api.Cluster) {
			for i := range 10 {
				c.Members = append(c.Members, api.Member{Name: fmt.Sprint(i), State: api.MemberAlive, Version: "v1", Unusable: "x"})
			}
		}, "peers usable", "and 6 more"},
	}
	for _, r := range rows {
		c := api.Cluster{Enabled: true, Name: "prod", Encrypted: true, Certificate: &ends, Members: []api.Member{
			{Name: "a", Self: true, State: api.MemberAlive, Version: "v1"}, {Name: "b", State: api.MemberAlive, Version: "v1"},
		}}
		r.change(&c)
		checks := peersOf(&c, now)
		if len(checks) != len(peerChecks) {
			t.Errorf("%s: %d checks", r.name, len(checks))
		}
		for _, got := range checks {
			bad := got.Name == r.check
			if (got.State == OK) == bad || bad && !strings.Contains(got.Detail, r.text) || (got.Remedy != "") != bad {
				t.Errorf("%s: %+v", r.name, got)
			}
		}
	}
	if got := peersOf(&api.Cluster{}, now); got != nil {
		t.Errorf("without a cluster: %+v", got)
	}
}

// Every finding is told by one check.
func TestEveryFindingHasACheck(t *testing.T) {
	told := map[string]int{}
	for _, k := range peerChecks {
		for _, kind := range k.kinds {
			told[kind]++
		}
	}
	for _, kind := range []string{
		api.FoundUnreachable, api.FoundUnusable, api.FoundAlone, api.FoundClock, api.FoundVersion, api.FoundFailing, api.FoundKeys,
	} {
		if told[kind] != 1 {
			t.Errorf("%s is told %d times", kind, told[kind])
		}
	}
}
