package object

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// described is block and extent header of an object without its payload.
func described(t testing.TB, k *keys, o *tiertest.Object) (tag, []byte) {
	t.Helper()
	w := tiertest.WantOf(o)
	of, _ := k.tagOf(&w)
	m := &extent.Manifest{
		Fingerprint: w.Fingerprint, Tenant: k.tenants[w.Tenant].label, Spec: o.Spec, Begin: o.Begin, End: o.End, Tokens: o.Tokens,
		RankBytes: int64(len(o.Bytes[0])), Digests: o.Digests,
	}
	manifest, err := m.Encode(nil)
	must(t, err)
	x := extent.Header{Name: extentName(o.Name), Generation: 1, PayloadBytes: m.PayloadBytes()}
	b, err := k.putHead(of, &x, manifest, nil)
	must(t, err)
	return of, b
}

func testKeys() *keys { return newKeys(clusterSecret, []Tenant{{alice.ID, alice.Name, alice.Salt}}) }

// Whatever bit is changed, in a description nothing is believed.
func TestEveryBitOfADescriptionCounts(t *testing.T) {
	k := testKeys()
	o := tiertest.Segment(tiertest.Small, alice, 3, 20)
	of, good := described(t, k, o)
	w := tiertest.WantOf(o)
	total := int64(len(good)) + extent.PayloadBytes(len(o.Bytes), int64(len(o.Bytes[0])))
	parse := func(b []byte) error {
		h, err := parseBlock(b, of, total)
		if err == nil && h.bytes() != int64(len(b)) {
			err = tier.ErrCorrupt
		}
		if err == nil {
			_, err = k.parseHead(b, h, of, &w, tiertest.Small)
		}
		return err
	}
	must(t, parse(good))
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		if err := parse(bad); !errors.Is(err, tier.ErrCorrupt) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
}

func FuzzDescription(f *testing.F) {
	k := testKeys()
	o := tiertest.Segment(tiertest.Small, alice, 3, 20)
	of, good := described(f, k, o)
	w := tiertest.WantOf(o)
	total := int64(len(good)) + extent.PayloadBytes(len(o.Bytes), int64(len(o.Bytes[0])))
	f.Add(good, false)
	f.Add(good, true)
	f.Fuzz(func(t *testing.T, b []byte, sign bool) {
		if sign && len(b) >= 2*blockBytes && len(b)%blockBytes == 0 { // as a member that lies
			b = bytes.Clone(b)
			clear(b[:blockBytes])
			k.sign(of, b, total)
		}
		h, err := parseBlock(b, of, total)
		if err == nil && h.bytes() <= int64(len(b)) {
			_, err = k.parseHead(b, h, of, &w, tiertest.Small)
		}
		if err != nil && !errors.Is(err, tier.ErrCorrupt) {
			t.Error(err)
		}
	})
}

func TestNamesAreTags(t *testing.T) {
	k, other := testKeys(), newKeys([]byte("another secret of a cluster"), []Tenant{{alice.ID, alice.Name, alice.Salt}})
	seen := map[tag]bool{}
	for i := range 50 {
		w := tiertest.WantOf(tiertest.Segment(tiertest.Small, alice, uint64(i), 3))
		for _, k := range []*keys{k, other} {
			for _, kind := range []tier.CheckpointKind{0, tier.Exact, tier.Spliced} {
				w.Kind = kind
				of, ok := k.tagOf(&w)
				if got, parsed := parseName(of.name()); !ok || !parsed || got != of || seen[of] {
					t.Fatalf("%v: %x is named %s", w.Name, of, of.name())
				}
				seen[of] = true
			}
		}
	}
	for _, bad := range []string{"", "v1/", "v1/ab", "v1/ab/cd", "v2/ab/00112233445566778899aabbccddee", "v1/AB/00112233445566778899aabbccddee",
		"v1/abc00112233445566778899aabbccddee", "v1/ab/00112233445566778899aabbccddeg", "v1/ab/00112233445566778899aabbccddeeff"} {
		if _, ok := parseName(bad); ok {
			t.Errorf("%q is a name", bad)
		}
	}
}

func TestIndexIsBoundedAndSaysSo(t *testing.T) {
	x := newIndex(8 * shards * 4)
	now := time.Unix(1000, 0)
	at := func(i byte) (of tag) { of[0], of[1] = 9, i; return of }
	if x.look(at(0), now) != unknown {
		t.Error("something is known before a listing")
	}
	var list []uint64
	for i := range byte(6) {
		list = append(list, at(i).short())
	}
	x.begin(9)
	x.settle(9, list, now)
	x.listed.Store(true)
	for i := range byte(8) {
		if got, want := x.look(at(i), now), []what{present, unknown}[min(i/4, 1)]; got != want {
			t.Errorf("entry %d of 4: %v", i, got)
		}
	}
	if x.look(tag{8}, now) != absent {
		t.Error("another shard is not known")
	}
	x.note(at(0), wrong, now.Add(time.Minute), now)
	x.note(at(7), present, time.Time{}, now)
	for pass := range 3 {
		if got, want := x.look(at(7), now), []what{present, present, unknown}[pass]; got != want {
			t.Errorf("own write after %d listings: %v", pass, got)
		}
		x.begin(9)
		x.settle(9, list, now)
	}
	if x.look(at(0), now) != wrong || x.look(at(0), now.Add(time.Minute)) != present {
		t.Error("what was wrong is not so until its time")
	}
	for i := range 3 * maxNotes {
		x.note(tag{9, 1, byte(i >> 8), byte(i)}, present, time.Time{}, now)
	}
	if n := len(x.shards[9].notes); n > maxNotes {
		t.Errorf("%d notes", n)
	}
}
