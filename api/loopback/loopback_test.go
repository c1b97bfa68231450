package loopback

import (
	"net"
	"net/netip"
	"testing"
)

func reserved(t *testing.T, n int) ([]string, func()) {
	t.Helper()
	list, release, err := Reserve(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return list, release
}

func TestReservedPortsDifferAndMayBeListenedAt(t *testing.T) {
	seen := map[string]bool{}
	first, _ := reserved(t, 32)
	second, _ := reserved(t, 32)
	for _, at := range append(first, second...) {
		if seen[at] {
			t.Fatalf("%s twice", at)
		}
		seen[at] = true
		if p := netip.MustParseAddrPort(at).Port(); int(p) >= ephemeral() || p < lowest {
			t.Errorf("%s: not of %d to %d", at, lowest, ephemeral())
		}
		for range 2 {
			l, err := net.Listen("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
		}
	}
}

func TestOnesInUseAreNotReserved(t *testing.T) {
	list, release := reserved(t, 1)
	at := list[0]
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := free(at); err == nil {
		t.Errorf("%s counts as free and is listened at", at)
	}
	release()
	p, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	l.Close()
	if err := free(at); err == nil {
		t.Errorf("%s counts as free and is read from by UDP", at)
	}
}
