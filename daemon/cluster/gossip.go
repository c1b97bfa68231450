package cluster

import (
	"bytes"
	"log"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"
)

// gossip is what memberlist calls. All of it returns at once and keeps nothing that it
// is given: some calls come with memberlist's lock held.
type gossip struct {
	self      string
	roster    *roster
	meta      atomic.Pointer[metadata]
	changed   chan<- struct{} // has room for one
	now       func() time.Time
	log       zerolog.Logger
	conflicts atomic.Uint64 // two nodes of one name
	ignored   atomic.Uint64 // nodes that NotifyAlive refused
}

var (
	_ memberlist.Delegate         = (*gossip)(nil)
	_ memberlist.EventDelegate    = (*gossip)(nil)
	_ memberlist.AliveDelegate    = (*gossip)(nil)
	_ memberlist.ConflictDelegate = (*gossip)(nil)
	_ memberlist.PingDelegate     = (*gossip)(nil)
)

// NodeMeta is what this node says of itself.
func (g *gossip) NodeMeta(limit int) []byte {
	b := g.meta.Load().append(nil)
	if len(b) > limit {
		return nil // cannot be: at most 112 bytes
	}
	return b
}

// Nothing goes by memberlist's messages: they starve in large clusters.

func (g *gossip) NotifyMsg([]byte)                {}
func (g *gossip) GetBroadcasts(_, _ int) [][]byte { return nil }
func (g *gossip) LocalState(bool) []byte          { return nil }
func (g *gossip) MergeRemoteState([]byte, bool)   {}

// NotifyAlive has nodes ignored that say nothing we can read, or find no room.
func (g *gossip) NotifyAlive(n *memberlist.Node) error {
	if n.Name == g.self {
		return nil
	}
	_, err := parseMetadata(n.Meta)
	if err == nil {
		err = g.roster.room(n.Name)
	}
	if err != nil {
		g.ignored.Add(1)
	}
	return err
}

func (g *gossip) NotifyJoin(n *memberlist.Node)   { g.seen(n) }
func (g *gossip) NotifyUpdate(n *memberlist.Node) { g.seen(n) }

func (g *gossip) seen(n *memberlist.Node) {
	meta, err := parseMetadata(n.Meta)
	if err != nil {
		return // NotifyAlive let nobody else in
	}
	addr, _ := netip.AddrFromSlice(n.Addr)
	g.roster.seen(n.Name, netip.AddrPortFrom(addr.Unmap(), n.Port), &meta, g.now())
	g.wake()
}

func (g *gossip) NotifyLeave(n *memberlist.Node) {
	g.roster.lost(n.Name, g.now())
	g.wake()
}

func (g *gossip) wake() {
	select {
	case g.changed <- struct{}{}:
	default: // it will be looked at anyway
	}
}

// NotifyConflict hears of two nodes with one name, of which memberlist keeps the first.
// So it goes for some seconds, too, when a node comes back with another address.
func (g *gossip) NotifyConflict(existing, other *memberlist.Node) {
	g.conflicts.Add(1)
	g.log.Warn().Str("peer", existing.Name).Stringer("address", net.IP(existing.Addr)).Stringer("other", net.IP(other.Addr)).Msg("two nodes have one name")
}

func (g *gossip) AckPayload() []byte { return appendClock(nil, g.now()) }

func (g *gossip) NotifyPingComplete(other *memberlist.Node, rtt time.Duration, payload []byte) {
	clock, _ := parseClock(payload)
	g.roster.pinged(other.Name, rtt, clock, g.now())
}

// logLines bounds what memberlist logs: anybody who can reach the port makes it write a
// line per packet.
const (
	logLines  = 30
	logPeriod = 10 * time.Second
)

// newLogger makes a logger that writes to ours, with the level that a line begins with.
func newLogger(to zerolog.Logger) *log.Logger {
	return log.New(lines{to.Sample(&zerolog.BurstSampler{Burst: logLines, Period: logPeriod})}, "", 0)
}

type lines struct{ log zerolog.Logger }

// Write takes a line such as "[WARN] memberlist: Was able to connect ...".
func (l lines) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	level := zerolog.InfoLevel
	if name, rest, ok := strings.Cut(text, "] "); ok && strings.HasPrefix(name, "[") {
		text = strings.TrimPrefix(rest, "memberlist: ")
		switch name {
		case "[DEBUG":
			level = zerolog.DebugLevel
		case "[WARN":
			level = zerolog.WarnLevel
		case "[ERR", "[ERROR":
			// What the network brings is no failure of this node.
			level = zerolog.WarnLevel
		}
	}
	l.log.WithLevel(level).Msg(text)
	return len(line), nil
}
