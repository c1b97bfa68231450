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

// gossip has the callbacks of memberlist. All return at once, since some are called with
// memberlist's lock held, and none keeps an argument.
type gossip struct {
	self      string
	roster    *roster
	meta      atomic.Pointer[metadata]
	changed   chan<- struct{} // wakes Cluster.follow; capacity 1
	now       func() time.Time
	log       zerolog.Logger
	conflicts atomic.Uint64 // pairs of nodes with the same name
	ignored   atomic.Uint64 // nodes that NotifyAlive refused
}

var (
	_ memberlist.Delegate         = (*gossip)(nil)
	_ memberlist.EventDelegate    = (*gossip)(nil)
	_ memberlist.AliveDelegate    = (*gossip)(nil)
	_ memberlist.ConflictDelegate = (*gossip)(nil)
	_ memberlist.PingDelegate     = (*gossip)(nil)
)

// NodeMeta returns this node's metadata.
func (g *gossip) NodeMeta(limit int) []byte {
	b := g.meta.Load().append(nil)
	if len(b) > limit {
		return nil // impossible: the metadata has at most 112 bytes
	}
	return b
}

// The callbacks for memberlist's user messages do nothing: such messages starve in large clusters.

func (g *gossip) NotifyMsg([]byte)                {}
func (g *gossip) GetBroadcasts(_, _ int) [][]byte { return nil }
func (g *gossip) LocalState(bool) []byte          { return nil }
func (g *gossip) MergeRemoteState([]byte, bool)   {}

// NotifyAlive rejects a node that has unreadable metadata, or for which there is no room.
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
		return // NotifyAlive has rejected such a node
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
	default: // a check is pending already
	}
}

// NotifyConflict counts pairs of nodes with the same name. memberlist keeps the first node of a
// pair. A conflict also appears for some seconds when a node returns with another address.
func (g *gossip) NotifyConflict(existing, other *memberlist.Node) {
	g.conflicts.Add(1)
	g.log.Warn().Str("peer", existing.Name).Stringer("address", net.IP(existing.Addr)).Stringer("other", net.IP(other.Addr)).Msg("two nodes have the same name")
}

func (g *gossip) AckPayload() []byte { return appendClock(nil, g.now()) }

func (g *gossip) NotifyPingComplete(other *memberlist.Node, rtt time.Duration, payload []byte) {
	clock, _ := parseClock(payload)
	g.roster.pinged(other.Name, rtt, clock, g.now())
}

// logLines and logPeriod limit memberlist's log to 30 lines in 10 s. Without a limit, any host that
// reaches the port could make memberlist write a line per packet.
const (
	logLines  = 30
	logPeriod = 10 * time.Second
)

// newLogger creates a logger for memberlist that writes to the daemon's log. The level of a line is
// the one that the line's text begins with.
func newLogger(to zerolog.Logger) *log.Logger {
	return log.New(lines{to.Sample(&zerolog.BurstSampler{Burst: logLines, Period: logPeriod})}, "", 0)
}

type lines struct{ log zerolog.Logger }

// Write logs one line, such as "[WARN] memberlist: Was able to connect ...".
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
			// Errors are logged as warnings: bad input from the network is not a failure of this node.
			level = zerolog.WarnLevel
		}
	}
	l.log.WithLevel(level).Msg(text)
	return len(line), nil
}
