package cluster

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func fullMetadata() metadata {
	return metadata{
		Protocol: 7, Leaving: true, Plain: true, Incarnation: 1 << 63, Started: time.UnixMilli(1767323045678), Check: [8]byte{1, 2, 3, 4, 5, 6, 7, 8},
		Peer: netip.MustParseAddrPort("[2001:db8::1]:7947"), Version: strings.Repeat("v", maxVersion),
	}
}

func TestMetadataComesBackAsItWas(t *testing.T) {
	plain := metadata{Peer: netip.MustParseAddrPort("10.0.0.1:1"), Started: time.UnixMilli(0)}
	for _, want := range []metadata{fullMetadata(), plain} {
		b := want.append(nil)
		if len(b) > 112 {
			t.Errorf("%d bytes", len(b))
		}
		got, err := parseMetadata(append(b, "of a later release"...))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	long := fullMetadata()
	long.Version += "beyond"
	if got, err := parseMetadata(long.append(nil)); err != nil || got.Version != fullMetadata().Version {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestMetadataThatIsCutIsRefused(t *testing.T) {
	m := fullMetadata()
	b := m.append(nil)
	for n := range b {
		if got, err := parseMetadata(b[:n]); err == nil {
			t.Errorf("%d of %d bytes: %+v", n, len(b), got)
		}
	}
	for name, change := range map[string]func([]byte){
		"another format":       func(b []byte) { b[0] = 2 },
		"no port":              func(b []byte) { b[28], b[29] = 0, 0 },
		"an address of 5":      func(b []byte) { b[30] = 5 },
		"no address at all":    func(b []byte) { clear(b[31:47]) },
		"a version with lines": func(b []byte) { b[len(b)-1] = '\n' },
	} {
		bad := append([]byte(nil), b...)
		change(bad)
		if got, err := parseMetadata(bad); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func FuzzMetadata(f *testing.F) {
	m := fullMetadata()
	f.Add(m.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMetadata(b)
		if err != nil {
			return
		}
		again, err := parseMetadata(m.append(nil))
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v, then %+v, %v", m, again, err)
		}
	})
}
