package network

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// tried waits until a node has tried to join twice.
func (n *node) tried() {
	n.t.Helper()
	var first *time.Time
	eventually(n.t, n.name+" tries to join", func() bool {
		n.mustRun()
		j := n.cluster().Join
		if first == nil {
			first = j.At
		}
		return j.At != nil && j.Tried > 0 && j.At.After(*first)
	})
}

// Nodes that are of another cluster are no members, and nothing of theirs is believed.
func TestStrangersAreNoMembers(t *testing.T) {
	t.Parallel()
	b := newBed(t, 5)
	pair, strangers := b.nodes[:2], b.nodes[2:]
	for _, n := range pair {
		n.launch()
	}
	other := b.ring("other-keyring", 2)
	strangers[0].launch("-cluster-keyring=" + other)
	strangers[1].launch("-cluster-name=other")
	strangers[2].launch("-cluster-keyring=", "-cluster-insecure=on")
	for _, n := range b.nodes {
		n.open()
	}
	eventually(t, "the pair is a cluster", func() bool { return pair[0].using() == 1 && pair[1].using() == 1 })
	d := pair[0].publish(100)
	eventually(t, "the other one sees it", func() bool { return pair[1].sees(d) })
	for _, n := range strangers {
		n.tried()
		if n.using() != 0 || n.sees(d) {
			t.Errorf("%s works with %d nodes, and sees what the others hold: %v", n.name, n.using(), n.sees(d))
		}
		theirs := n.publish(100)
		if pair[0].sees(theirs) {
			t.Errorf("what %s holds is seen in the cluster", n.name)
		}
	}
	for _, n := range pair {
		if m := n.cluster().Members; len(m) != 2 {
			t.Errorf("%s has %d members: %+v", n.name, len(m), m)
		}
	}
	took := b.healed(time.Now(), pair...)
	report(t, "another key, another name, no key: no members; what a stranger is told: %.60s | %.60s | %.60s; the two others see new segments after %.1f s",
		strangers[0].cluster().Join.Errors[0], strangers[1].cluster().Join.Errors[0], strangers[2].cluster().Join.Errors[0], took.Seconds())
}

// foreigner is a node of another release: it has the cluster's key and name, and
// metadata that args name. It prints nothing.
var foreigner = role("foreigner", func(args []string) error {
	bind, join, kind := netip.MustParseAddrPort(args[0]), args[1], args[2]
	c := memberlist.DefaultLANConfig()
	c.Name, c.Label, c.SecretKey = "foreigner-"+kind, "bed", []byte(args[3])
	c.BindAddr, c.BindPort, c.AdvertisePort = bind.Addr().String(), int(bind.Port()), int(bind.Port())
	c.Delegate, c.LogOutput = foreignMetadata(kind, bind), io.Discard
	list, err := memberlist.Create(c)
	if err != nil {
		return err
	}
	// The first node of a bed may still be starting.
	for try := 0; ; try++ {
		if _, err = list.Join([]string{join}); err == nil {
			break
		}
		if try == 50 {
			return err
		}
		<-time.After(100 * time.Millisecond)
	}
	return untilTerm()
})

// untilTerm waits for the signal that ends a node.
func untilTerm() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	return nil
}

// foreignDelegate says what it is made of.
type foreignDelegate []byte

func (d foreignDelegate) NodeMeta(int) []byte           { return d }
func (foreignDelegate) NotifyMsg([]byte)                {}
func (foreignDelegate) GetBroadcasts(_, _ int) [][]byte { return nil }
func (foreignDelegate) LocalState(bool) []byte          { return nil }
func (foreignDelegate) MergeRemoteState([]byte, bool)   {}

// foreignMetadata follows the layout in daemon/cluster/metadata.go, but for what kind says.
func foreignMetadata(kind string, self netip.AddrPort) foreignDelegate {
	b := make([]byte, 28, 100)
	b[0], b[2] = 1, 1 // format, protocol
	binary.LittleEndian.PutUint64(b[4:], 7)
	binary.LittleEndian.PutUint64(b[12:], uint64(time.Now().UnixMilli()))
	b = binary.LittleEndian.AppendUint16(b, self.Port()+1)
	b = append(append(b, 4), self.Addr().AsSlice()...)
	b = append(append(b, 3), "9.9"...)
	switch kind {
	case "protocol":
		b[2] = 2
	case "format":
		b[0] = 2
	case "garbage":
		b = []byte("\x01\xff\xff")
	case "secret": // the check bytes are zeros as they are
	}
	return b
}

// Nodes with the key that speak otherwise do no harm, and are listed with the reason
// where they can be read.
func TestOtherReleasesAreNotWorkedWith(t *testing.T) {
	t.Parallel()
	b := newBed(t, 6)
	pair := b.nodes[:2]
	for _, n := range pair {
		n.launch()
	}
	for _, n := range pair {
		n.open()
	}
	kinds := []string{"protocol", "format", "garbage", "secret"}
	for i, kind := range kinds {
		n := b.nodes[2+i]
		n.name = kind
		n.launchAs(asRole(foreigner), []string{n.gossip().String(), pair[0].gossip().String(), kind, strings.Repeat("\x01", 32)})
	}
	eventually(t, "the pair is a cluster", func() bool { return pair[0].using() == 1 && pair[1].using() == 1 })
	reasons := map[string]string{}
	for _, n := range pair {
		eventually(t, "both see who can be read, and count who cannot", func() bool {
			for _, x := range b.nodes[2:] {
				x.mustRun()
			}
			return n.member("foreigner-protocol") != nil && n.member("foreigner-secret") != nil && n.counter("cluster_ignored") > 0
		})
		for _, kind := range kinds {
			m := n.member("foreigner-" + kind)
			if readable := kind == "protocol" || kind == "secret"; readable != (m != nil) {
				t.Errorf("%s lists a node with another %s: %v", n.name, kind, m != nil)
			} else if m != nil {
				if reasons[kind] = m.Unusable; m.InUse || m.Unusable == "" {
					t.Errorf("%s: a node with another %s: %+v", n.name, kind, m)
				}
			}
		}
	}
	took := b.healed(time.Now(), pair...)
	report(t, "another protocol: %q; another secret: %q; unreadable: ignored; the two others see new segments after %.1f s",
		reasons["protocol"], reasons["secret"], took.Seconds())
}

// misdated is the daemon in this binary, whose clock is off by the first argument.
var misdated = role("misdated", func(args []string) error {
	off, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	from := settings.ProcessSources()
	from.Args = args[1:]
	config, _, err := settings.Load(from)
	if err != nil {
		return err
	}
	d, err := daemon.New(config, daemon.Parts{
		Now: func() time.Time { return time.Now().Add(off) }, Build: daemon.Build{Version: "misdated"},
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return d.Run(ctx)
})

func TestClocksThatAreAnHourApartAreToldAndHarmless(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(fmt.Sprint(off), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, 3)
			odd := b.nodes[2]
			for _, n := range b.nodes[:2] {
				n.launch()
			}
			odd.launchAs(asRole(misdated), append([]string{off.String()}, odd.arguments()...))
			for _, n := range b.nodes {
				n.open()
			}
			b.joined()
			took := b.healed(time.Now(), b.nodes...)
			ahead := 0.0
			eventually(t, "the clock is told", func() bool {
				m := b.nodes[0].member(odd.name)
				if m == nil || m.ClockAhead == nil {
					return false
				}
				ahead = *m.ClockAhead
				return true
			})
			if apart := time.Duration(ahead * float64(time.Second)); (apart - off).Abs() > slack {
				t.Errorf("a clock that is %v ahead is told as %v", off, apart)
			}
			c, found := b.nodes[0].cluster(), false
			for _, f := range c.Findings(time.Now()) {
				found = found || f.Kind == api.FoundClock
			}
			if !found {
				t.Errorf("nobody is told: %+v", c.Findings(time.Now()))
			}
			// Misses and leases as well: what a node holds is leased, released and published again.
			for range 5 {
				d := odd.publish(100)
				b.nodes[0].mustFetch(d)
				d = b.nodes[1].publish(100)
				odd.mustFetch(d)
			}
			report(t, "told as %.1f s ahead; new segments are seen everywhere after %.1f s; longest call %v", ahead, took.Seconds(), b.longest())
		})
	}
}
