package api

import (
	"slices"
	"testing"
	"time"
)

func TestClusterIsAskedFor(t *testing.T) {
	s := serve(t, newFake(1), nil)
	c, err := s.client(t, "unix:"+s.unix, "").Cluster(t.Context())
	must(t, err)
	if len(c.Members) != 4 || c.Members[2].State != MemberFailed || len(c.Rejected) != 1 || *c.Members[1].ClockAhead != -0.25 || c.Members[0].Index != nil || c.Fetched != 1<<40 {
		t.Errorf("answer %+v", c)
	}
	if lag, ok := c.Lag(longAgo.Add(3 * time.Second)); !ok || lag != 3*time.Second {
		t.Errorf("lag %v, %v", lag, ok)
	}
}

// healthy is a cluster of which nothing is to be said.
func healthy(now time.Time) *Cluster {
	ends := now.Add(30 * 24 * time.Hour)
	ahead := 0.9
	return &Cluster{Enabled: true, Encrypted: true, Certificate: &ends, Members: []Member{
		{Name: "a", Self: true, State: MemberAlive, Version: "v1"},
		{Name: "b", State: MemberAlive, Version: "v1", InUse: true, ClockAhead: &ahead, Fetch: &MemberFetch{}},
	}}
}

func TestFindingsSayWhatIsWrongWithWhom(t *testing.T) {
	now := longAgo
	rows := []struct {
		name   string
		change func(c *Cluster)
		want   []Finding
	}{
		{"well", func(*Cluster) {}, nil},
		{"no cluster", func(c *Cluster) { *c = Cluster{} }, nil},
		{"leaving", func(c *Cluster) {
			c.Members = append(c.Members, Member{Name: "c", State: MemberLeaving, Unusable: "it leaves"})
		}, nil},
		{"out of reach", func(c *Cluster) {
			c.Members = append(c.Members, Member{Name: "c", State: MemberUnreachable, Since: now.Add(-4 * time.Second)})
		}, []Finding{{FoundUnreachable, "c", "unreachable for 4s"}}},
		{"another key", func(c *Cluster) { c.Members[1].Unusable = "other secret" }, []Finding{{FoundUnusable, "b", "other secret"}}},
		{"ahead", func(c *Cluster) { *c.Members[1].ClockAhead = 3600 }, []Finding{{FoundClock, "b", "its clock is 1h0m0s ahead"}}},
		{"behind", func(c *Cluster) { *c.Members[1].ClockAhead = -1.5 }, []Finding{{FoundClock, "b", "its clock is 1.5s behind"}}},
		{"breaker", func(c *Cluster) { c.Members[1].Fetch.Open = true }, []Finding{{FoundFailing, "b", "it failed too often and is skipped for a while"}}},
		{"alone", func(c *Cluster) {
			c.Members, c.Join.Errors = c.Members[:1], []string{"seed: refused"}
		}, []Finding{{FoundAlone, "", "no other members: seed: refused"}}},
		{"two versions", func(c *Cluster) { c.Members[1].Version = "v2" }, []Finding{{FoundVersion, "", "members run 2 versions: v1, v2"}}},
		{"plain", func(c *Cluster) { c.Encrypted, c.Certificate = false, nil }, []Finding{
			{FoundKeys, "", "gossip is not encrypted"}, {FoundKeys, "", "the peers' port has no TLS"},
		}},
		{"ending", func(c *Cluster) { *c.Certificate = now.Add(time.Hour) }, []Finding{{FoundKeys, "", "the certificate expires in 1h0m0s"}}},
		{"ended", func(c *Cluster) { *c.Certificate = now }, []Finding{{FoundKeys, "", "the certificate expired at 2026-05-01T12:00:00Z"}}},
		{"bad file", func(c *Cluster) { c.FilesError = "keyring: empty" }, []Finding{{FoundKeys, "", "a changed file cannot be used: keyring: empty"}}},
	}
	for _, r := range rows {
		c := healthy(now)
		r.change(c)
		if got := c.Findings(now); !slices.Equal(got, r.want) {
			t.Errorf("%s: %v, want %v", r.name, got, r.want)
		}
	}
}
