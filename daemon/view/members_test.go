package view

import (
	"net/netip"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/cluster"
	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/peer"
	"github.com/spliced-kv/spliced/tiering/peer/index"
)

func TestMembersAreToldByTheirNumber(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	own, theirs, x := index.NewOwn(1), index.NewOwn(2), index.New(index.Config{})
	own.Add(1 << 40)
	theirs.Add(1 << 41)
	theirs.Add(1 << 42)
	for more := true; more; {
		var err error
		if more, err = x.Apply(7, theirs.Delta(nil, x.Position(7))); err != nil {
			t.Fatal(err)
		}
	}
	m := Members{Name: "prod", Index: x, Own: own, AsOf: func(n uint16) time.Time {
		if n == 7 {
			return now
		}
		return time.Time{}
	}}
	status := cluster.Status{
		Encrypted: true, Certificate: now, FilesError: "keyring: empty", Join: cluster.JoinStatus{At: now, Tried: 3, Answered: 2, Errors: []string{"x"}},
	}
	list := []cluster.Member{
		{Name: "a", Self: true, Since: now},
		{
			Name: "b", Number: 7, Told: true, Gossip: netip.MustParseAddrPort("10.0.0.2:7946"), Peer: netip.MustParseAddrPort("10.0.0.2:7947"),
			RTT: time.Millisecond, ClockAhead: -2 * time.Second, Protocol: 1,
		},
		{Name: "c", Number: 8, Told: true, State: cluster.Unreachable, Plain: true},
		{Name: "d", State: cluster.Leaving, Unusable: "another secret"},
	}
	c := m.tell(&status, list, []peer.MemberInfo{{Node: 7, BytesPerSecond: 5, QueuedBytes: 6, Reads: 2, Open: true, LeftAlone: now}, {Node: 9}})
	if !c.Enabled || c.Name != "prod" || !c.Encrypted || !c.Certificate.Equal(now) || c.Join.Answered != 2 || c.Own.Names != 1 || c.Own.Version != 1 ||
		c.Index.Complete != 1 || c.Index.Bytes == 0 {
		t.Errorf("cluster %+v", c)
	}
	b := c.Members[1]
	if b.Peer != "10.0.0.2:7947" || *b.RTT != 0.001 || *b.ClockAhead != -2 || !b.TLS || !b.InUse ||
		b.Index.Version != 2 || b.Index.Names != 2 || c.Index.Names != 2 || !b.Index.Complete || b.Index.Reading || !b.Index.AsOf.Equal(now) ||
		b.Fetch.BytesPerSecond != 5 || b.Fetch.QueuedBytes != 6 || b.Fetch.Reads != 2 || !b.Fetch.Open || !b.Fetch.LeftAlone.Equal(now) {
		t.Errorf("b: %+v %+v %+v", b, b.Index, b.Fetch)
	}
	if got := c.Members[2]; got.TLS || got.State != api.MemberUnreachable || got.Index == nil || got.Index.AsOf != nil || got.Index.Complete || got.Fetch != nil || got.RTT != nil {
		t.Errorf("c: %+v", got)
	}
	if a, d := c.Members[0], c.Members[3]; a.Index != nil || !a.Self || a.State != api.MemberAlive || d.Index != nil || d.State != api.MemberLeaving || d.Unusable == "" {
		t.Errorf("a: %+v, d: %+v", a, d)
	}
}

func TestCountersOfGossipHaveTheirOwnNumbers(t *testing.T) {
	g := gossipOf(&cluster.Status{Health: 1, Flaps: 2, Conflicts: 3, Ignored: 4, Reloads: 5, Connections: 6, Handshakes: 7,
		Streams:  cluster.StreamStatus{Open: 14, Bytes: 15, Unauthenticated: 16, Slow: 17, TooLong: 18, NoRoom: 19, Foreign: 20},
		Exchange: cluster.ExchangeCounters{Asked: 8, Failed: 9, Learnt: 10, Answered: 11, Refused: 12, Told: 13}})
	want := map[string]uint64{
		"gossip_health": 1, "flaps": 2, "conflicts": 3, "ignored": 4, "reloads": 5, "connections": 6, "handshakes_failed": 7, "index_asked": 8,
		"index_failed": 9, "index_learnt_bytes": 10, "index_answered": 11, "index_refused": 12, "index_told_bytes": 13,
		"streams": 14, "stream_bytes": 15, "streams_unauthenticated": 16, "streams_slow": 17, "streams_too_long": 18, "streams_no_room": 19,
		"streams_foreign": 20,
	}
	metric.Each(g, func(name string, n uint64) {
		if want[name] != n {
			t.Errorf("%s is %d, want %d", name, n, want[name])
		}
		delete(want, name)
	})
	if len(want) > 0 {
		t.Errorf("not told: %v", want)
	}
}
