package view

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/cluster"
	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/peer"
	"github.com/spliced-kv/spliced/tiering/peer/index"
)

// Members are the components for a node's work with other nodes. All of them use the same member
// numbers.
type Members struct {
	Name    string // name of the cluster
	Cluster *cluster.Cluster
	Peers   *peer.Peers
	Server  *peer.Server
	Index   *index.Index
	Own     *index.Own
	Push    *peer.Neighbours // sends last copies; nil = off
	Taker   *peer.Taker      // receives last copies; nil = off
	// AsOf returns when a member last had nothing more to report; zero = not yet.
	AsOf func(number uint16) time.Time
	// Names computes the tags for lookups in Index.
	Names *peer.Names

	recent  atomic.Pointer[roster]
	listing sync.Mutex // held while the next roster is built
}

// gossipSeries are counters since the start of the daemon, and current values.
type gossipSeries struct {
	Health    int    `count:"gossip_health" prom:"cluster_gossip_health" help:"Health score of this node's gossip: 0 is good, 8 is worst."`
	Flaps     uint64 `count:"flaps" prom:"cluster_flaps_total" help:"Times that a cluster member became unreachable and returned before its place was given up."`
	Conflicts uint64 `count:"conflicts" prom:"cluster_conflicts_total" help:"Times that two nodes were found with the same name. A node that returns with another address is also counted."`
	Ignored   uint64 `count:"ignored" prom:"cluster_ignored_total" help:"Refusals of nodes as cluster members, because their metadata was unreadable, their name invalid or the cluster full."`
	Reloads   uint64 `count:"reloads" prom:"cluster_files_loaded_total" help:"Times that changed keyring or certificate files were loaded and put into use."`

	Connections int    `count:"connections" prom:"cluster_connections" help:"Open connections of cluster members to this node's peers' port."`
	Handshakes  uint64 `count:"handshakes_failed" prom:"cluster_handshakes_failed_total" help:"Connections to this node's peers' port whose TLS handshake failed: another key or cluster, or not a member."`

	Streams         int    `count:"streams" prom:"cluster_streams" help:"Open streams to the gossip port that are not authenticated yet."`
	StreamBytes     int    `count:"stream_bytes" prom:"cluster_stream_bytes" help:"Bytes read from open streams to the gossip port that are not authenticated yet."`
	Unauthenticated uint64 `count:"streams_unauthenticated" prom:"cluster_streams_refused_total,reason=unauthenticated" help:"Streams and packets that the gossip port refused, by reason: unauthenticated (another key or cluster, or no key), slow (no complete message in time), too_long, no_room (too many streams or bytes at once), foreign (another protocol)."`
	Slow            uint64 `count:"streams_slow" prom:"cluster_streams_refused_total,reason=slow"`
	TooLong         uint64 `count:"streams_too_long" prom:"cluster_streams_refused_total,reason=too_long"`
	NoRoom          uint64 `count:"streams_no_room" prom:"cluster_streams_refused_total,reason=no_room"`
	Foreign         uint64 `count:"streams_foreign" prom:"cluster_streams_refused_total,reason=foreign"`

	Asked    uint64 `count:"index_asked" prom:"cluster_index_questions_total,result=asked" help:"Queries for lists of objects between cluster members: asked (sent by this node), failed (of these, without a valid answer), answered (received and answered by this node), refused (received and refused)."`
	Failed   uint64 `count:"index_failed" prom:"cluster_index_questions_total,result=failed"`
	Answered uint64 `count:"index_answered" prom:"cluster_index_questions_total,result=answered"`
	Refused  uint64 `count:"index_refused" prom:"cluster_index_questions_total,result=refused"`
	Learnt   uint64 `count:"index_learnt_bytes" prom:"cluster_index_learnt_bytes_total" help:"Bytes of answers received to queries for other members' lists of objects."`
	Told     uint64 `count:"index_told_bytes" prom:"cluster_index_told_bytes_total" help:"Bytes of answers sent to queries for this node's list of objects."`
}

func gossipOf(s *cluster.Status) *gossipSeries {
	x, y := &s.Exchange, &s.Streams
	return &gossipSeries{
		s.Health, s.Flaps, s.Conflicts, s.Ignored, s.Reloads, s.Connections, s.Handshakes,
		y.Open, y.Bytes, y.Unauthenticated, y.Slow, y.TooLong, y.NoRoom, y.Foreign,
		x.Asked, x.Failed, x.Answered, x.Refused, x.Learnt, x.Told,
	}
}

// Remotes returns the entries for Options.Remotes of a node in a cluster.
func (m *Members) Remotes() []Remote {
	return []Remote{
		{Name: "peer", Durations: m.Peers.Durations(), Counters: func() []any {
			fetched, served := m.Peers.Counters(), m.Server.Counters()
			return append([]any{&fetched, &served}, m.copied()...)
		}},
		{Name: "cluster", Counters: func() []any {
			s := m.Cluster.Status()
			return []any{gossipOf(&s)}
		}},
	}
}

// copied returns the counters of last copies sent and received.
func (m *Members) copied() (list []any) {
	if m.Push != nil {
		c := m.Push.Counters()
		list = append(list, &c)
	}
	if m.Taker != nil {
		c := m.Taker.Counters()
		list = append(list, &c)
	}
	return list
}

// Tell implements Options.Cluster.
func (m *Members) Tell() api.Cluster {
	s, fetched, served := m.Cluster.Status(), m.Peers.Counters(), m.Server.Counters()
	c := m.tell(&s, m.Cluster.Members(), m.Peers.Members())
	c.Fetched, c.Sent = fetched.ReadBytes, served.SentBytes
	add := func(prefix string, counters any) {
		metric.Each(counters, func(name string, n uint64) {
			c.Counters = append(c.Counters, api.Counter{Name: prefix + name, Value: float64(n)})
		})
	}
	add("cluster_", gossipOf(&s))
	add("peer_", &fetched)
	add("peer_", &served)
	for _, counters := range m.copied() {
		add("peer_", counters)
	}
	return c
}

func (m *Members) tell(s *cluster.Status, members []cluster.Member, fetched []peer.MemberInfo) api.Cluster {
	x := m.Index.Stats()
	c := api.Cluster{
		Enabled: true, Name: m.Name, Encrypted: s.Encrypted, Certificate: timeOf(s.Certificate), FilesError: s.FilesError, Health: s.Health,
		Join:  api.Join{At: timeOf(s.Join.At), Tried: s.Join.Tried, Answered: s.Join.Answered, Errors: s.Join.Errors},
		Index: api.PeerIndex{Names: x.Keys, Complete: x.Complete, Bytes: x.Bytes, Refused: int64(x.Refused)},
		Own:   api.OwnIndex{Names: int64(m.Own.Len()), Version: m.Own.Version(), Bytes: m.Own.Bytes(), Refused: int64(m.Own.Refused())},
	}
	byNode := make(map[peer.Node]*peer.MemberInfo, len(fetched))
	for i := range fetched {
		byNode[fetched[i].Node] = &fetched[i]
	}
	c.Rejected = []api.Rejected{}
	for _, r := range s.Streams.Rejected {
		c.Rejected = append(c.Rejected, api.Rejected{Address: r.Address.String(), Since: r.Since, Seen: r.Last, Times: r.Times, Why: r.Why})
	}
	for i := range members {
		c.Members = append(c.Members, m.member(&members[i], byNode))
	}
	return c
}

func (m *Members) member(of *cluster.Member, fetched map[peer.Node]*peer.MemberInfo) api.Member {
	a := api.Member{
		Name: of.Name, Self: of.Self, State: of.State.String(), Since: of.Since, Gossip: of.Gossip.String(), Peer: of.Peer.String(), TLS: !of.Plain,
		Version: of.Version, Protocol: int(of.Protocol), Started: of.Started, InUse: of.Told, Unusable: of.Unusable,
	}
	a.Seen = timeOf(of.Seen)
	if of.RTT > 0 {
		a.RTT, a.ClockAhead = new(of.RTT.Seconds()), new(of.ClockAhead.Seconds())
	}
	if of.Self || !of.Told {
		return a
	}
	at := m.Index.Position(index.Node(of.Number))
	a.Index = &api.MemberIndex{
		Names: m.Index.Names(index.Node(of.Number)), Version: at.Version, Complete: m.Index.Complete(index.Node(of.Number)), Reading: at.Cursor != 0, AsOf: timeOf(m.AsOf(of.Number)),
	}
	if f := fetched[peer.Node(of.Number)]; f != nil {
		a.Fetch = &api.MemberFetch{
			RoundTrip: f.RoundTrip.Seconds(), BytesPerSecond: f.BytesPerSecond, QueuedBytes: f.QueuedBytes, Reads: f.Reads,
			Open: f.Open, LeftAlone: timeOf(f.LeftAlone),
		}
	}
	return a
}

// timeOf returns nil for the zero time.
func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
