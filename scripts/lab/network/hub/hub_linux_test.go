package hub

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const patience = 20 * time.Second

// host is a socket in a namespace on a hub.
type host struct {
	ns   *Namespace
	conn *net.UDPConn
	addr netip.AddrPort
}

// lan makes a hub with hosts, or skips.
func lan(t *testing.T, hosts int) (*Hub, []host) {
	t.Helper()
	if err := Available(); err != nil {
		t.Skipf("SKIP: no network namespaces with interfaces of ours: %v", err)
	}
	h := New(1)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	list := make([]host, hosts)
	for i := range list {
		ns, err := NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ns.Close)
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		if n, err := h.Attach(ns, netip.PrefixFrom(addr, 24)); err != nil || int(n) != i {
			t.Fatalf("port %d: %v", n, err)
		}
		err = ns.Do(func() (err error) {
			list[i].conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { list[i].conn.Close() })
		list[i].ns, list[i].addr = ns, list[i].conn.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	return h, list
}

// deliver sends texts and reads the first that arrives, asking again until it does.
func deliver(t *testing.T, from, to *host, text string) time.Duration {
	t.Helper()
	b := make([]byte, 100)
	for began := time.Now(); time.Since(began) < patience; {
		sent := time.Now()
		if _, err := from.conn.WriteToUDPAddrPort([]byte(text), to.addr); err != nil {
			t.Fatal(err)
		}
		if err := to.conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := to.conn.Read(b)
			if err != nil {
				break
			}
			if string(b[:n]) == text {
				return time.Since(sent)
			}
		}
	}
	t.Fatalf("%q does not arrive", text)
	return 0
}

func TestHostsOfAHubReachEachOtherAsItsLinksSay(t *testing.T) {
	h, hosts := lan(t, 3)
	a, b, c := &hosts[0], &hosts[1], &hosts[2]
	deliver(t, a, b, "ab")
	deliver(t, b, a, "ba")
	deliver(t, a, c, "ac")

	rule := func(from, to Port, r Rule) {
		if err := h.Set(from, to, r); err != nil {
			t.Fatal(err)
		}
	}
	rule(0, 1, Rule{Delay: 50 * time.Millisecond})
	if d := deliver(t, a, b, "late"); d < 50*time.Millisecond {
		t.Errorf("a frame took %v on a link with a delay of 50 ms", d)
	}

	rule(0, 1, Rule{Cut: true})
	for i := range 10 {
		if _, err := a.conn.WriteToUDPAddrPort(fmt.Appendf(nil, "cut %d", i), b.addr); err != nil {
			t.Fatal(err)
		}
	}
	deliver(t, b, a, "against the cut")
	deliver(t, a, c, "beside the cut")
	if n := h.Counters(0, 1).Cut; n < 10 {
		t.Errorf("%d frames were cut off", n)
	}
	rule(0, 1, Rule{})
	if deliver(t, a, b, "mended"); h.Counters(0, 1).Passed == 0 {
		t.Error("nothing was counted")
	}
	if h.Set(0, 9, Rule{}) == nil || h.SetAll(Rule{Loss: 2}) == nil || h.Set(0, 0, Rule{}) == nil {
		t.Error("a link that is not there, or a rule that makes no sense, is accepted")
	}
}

func TestACommandRunsInItsNamespace(t *testing.T) {
	_, hosts := lan(t, 1)
	var out strings.Builder
	command := exec.Command("/proc/self/exe", "-test.run=TestInterfacesOfAChild$", "-test.v")
	command.Stdout = &out
	if err := hosts[0].ns.Start(command); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil || !strings.Contains(out.String(), "10.0.0.1/24") || !strings.Contains(out.String(), "127.0.0.1/8") {
		t.Errorf("%v: the child has %s", err, &out)
	}
}

func TestInterfacesOfAChild(t *testing.T) {
	addrs, err := net.InterfaceAddrs()
	t.Log(addrs, err) // what its parent looks for
}
