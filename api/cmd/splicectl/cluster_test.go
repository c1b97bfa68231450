package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
)

// twoNodes is a cluster in which all is well.
func twoNodes() api.Cluster {
	now := time.Now()
	ends, rtt, ahead := now.Add(48*time.Hour), 0.0004, -0.002
	return api.Cluster{
		Enabled: true, Name: "prod", Encrypted: true, Certificate: &ends, Fetched: 3 << 20, Sent: 1 << 20,
		Index: api.PeerIndex{Names: 1000, Complete: 1, Bytes: 1 << 20}, Own: api.OwnIndex{Names: 7, Version: 9}, Rejected: []api.Rejected{},
		Members: []api.Member{
			{Name: "a", Self: true, State: api.MemberAlive, Since: now, Version: "v1", Peer: "10.0.0.1:7947"},
			{
				Name: "b", State: api.MemberAlive, Since: now, Version: "v1", Peer: "10.0.0.2:7947", InUse: true, RTT: &rtt, ClockAhead: &ahead,
				Index: &api.MemberIndex{Version: 9999, Names: 1234, Complete: true, AsOf: &now}, Fetch: &api.MemberFetch{BytesPerSecond: 1 << 30, QueuedBytes: 4096},
			},
		},
	}
}

func TestClusterIsShownWithWhatIsWrong(t *testing.T) {
	rows := []struct {
		name   string
		change func(c *api.Cluster)
		exit   int
		want   []string
	}{
		{"well", func(*api.Cluster) {}, cli.ExitOK, []string{"a (asked)", " 1234 ", " 7 ", "400 µs", "-2 ms", "1 GiB/s", "Cluster prod: 2 alive, 1000 names of others in 1 MiB, 7 own; 3 MiB fetched, 1 MiB sent."}},
		{"no cluster", func(c *api.Cluster) { *c = api.Cluster{} }, cli.ExitFailed, []string{"not in a cluster"}},
		{"unusable", func(c *api.Cluster) {
			c.Members[1].Unusable, c.Members[1].Index = "speaks protocol 2, this node 1", nil
		}, cli.ExitFailed,
			[]string{"unusable: b: speaks protocol 2"}},
		{"out of reach", func(c *api.Cluster) { c.Members[1].State = api.MemberUnreachable }, cli.ExitFailed, []string{"1 alive, 1 unreachable", "unreachable: b: unreachable"}},
		{"leaving", func(c *api.Cluster) { c.Members[1].State = api.MemberLeaving }, cli.ExitOK, []string{"1 leaving"}},
		{"failed", func(c *api.Cluster) {
			seen := time.Now().Add(-90 * time.Minute)
			c.Members[1].State, c.Members[1].Seen, c.Members[1].Index, c.Members[1].InUse = api.MemberFailed, &seen, nil, false
		}, cli.ExitOK, []string{"1 alive, 1 failed", " failed ", "failed: b: it failed: last seen 1h30m", "s ago"}},
		{"left", func(c *api.Cluster) { c.Members[1].State = api.MemberLeft }, cli.ExitOK, []string{"1 alive, 1 left"}},
		{"another key", func(c *api.Cluster) {
			c.Rejected = []api.Rejected{{Address: "10.0.0.9", Seen: time.Now(), Times: 3, Why: "its key is not in this node's keyring"}}
		}, cli.ExitFailed, []string{"unusable: 10.0.0.9 cannot be authenticated: its key is not in this node's keyring (3 attempts"}},
		{"clock", func(c *api.Cluster) { *c.Members[1].ClockAhead = 3600 }, cli.ExitOK, []string{"clock: b: its clock is 1h0m0s ahead"}},
		{"plain", func(c *api.Cluster) { c.Encrypted = false }, cli.ExitOK, []string{"keys: gossip is not encrypted"}},
		{"a hostile name", func(c *api.Cluster) { c.Members[1].Version = "v\x1b[2J" }, cli.ExitOK, nil},
	}
	n := newNode(t)
	for _, r := range rows {
		c := twoNodes()
		r.change(&c)
		n.docs["GET /api/v1/cluster"] = c
		code, out, errs := ctl(t, "cluster", "-admin", n.url)
		if code != r.exit || errs != "" || strings.Contains(out, "\x1b") {
			t.Errorf("%s: exit %d, %s\n%s", r.name, code, errs, out)
		}
		for _, want := range r.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", r.name, want, out)
			}
		}
	}
}

func TestClocksAreShownWithoutExponents(t *testing.T) {
	for s, want := range map[float64]string{0.000075: "+75 µs", -0.0000025: "-2.5 µs", 0: "+0 µs", 0.25: "+250 ms", -1.5: "-1.5 s", 3600: "+3600 s", 86400000: "+86400000 s"} {
		if got := clockText(s); got != want {
			t.Errorf("%v is shown as %q, want %q", s, got, want)
		}
	}
}

func TestClusterAsJSON(t *testing.T) {
	c := twoNodes()
	c.Members[1].Unusable = "hashes names with another secret"
	n := newNode(t)
	n.docs["GET /api/v1/cluster"] = c
	code, out, _ := ctl(t, "cluster", "--json", "-admin", n.url)
	var got clusterShown
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != cli.ExitFailed {
		t.Fatalf("exit %d, %v:\n%s", code, err, out)
	}
	if len(got.Members) != 2 || len(got.Findings) != 1 || got.Findings[0] != (api.Finding{Kind: api.FoundUnusable, Member: "b", Text: c.Members[1].Unusable}) {
		t.Errorf("told %+v", got)
	}
}
