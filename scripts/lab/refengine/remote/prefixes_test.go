package remote_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// A public segment is a function of its key. Two clients, each behind a prefix of
// its own, publish the same segment; between them it is removed, so that both
// really compute and store it.
func TestTwoClientsBehindTwoPrefixesPublishTheSameBytes(t *testing.T) {
	socket, _ := started(t)
	admin, err := api.NewClient("unix:"+filepath.Join(filepath.Dir(socket), "a"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	clients := []*connector.Client{attached(t, socket), attached(t, socket)}
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, profile.BF16)
			segment := text(50, 61)
			spec, _ := m.Profile().MidSpec(len(segment), 8)
			private := refengine.Request{Prefix: text(2, 77), From: m.NewState(), Mid: [][]uint32{segment}, Query: text(4, 9), Seam: 8}
			if _, err := m.Prefill(private.From, private.Prefix); err != nil {
				t.Fatal(err)
			}
			var published [][]byte
			for i, r := range []refengine.Request{
				{First: text(1, 30), Mid: [][]uint32{text(3, 40), segment}, Query: text(4, 9), Seam: 8},
				private,
			} {
				out := serve(t, m, stored(t, clients[i], m), r)
				if out.Missed != len(r.Mid)+min(len(r.First), 1) {
					t.Errorf("client %d: %d segments were missing", i, out.Missed)
				}
				b, key := leased(t, clients[i], m, spec, segment)
				published = append(published, b)
				if _, err := admin.Remove(t.Context(), api.Digest(key), false); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(published[0], published[1]) {
				t.Error("published bytes depend on what stood before")
			}
		})
	}
}

// leased reads a segment's parts as the daemon holds them, checked with its
// digests, and gives the lease back.
func leased(t *testing.T, c *connector.Client, m *refengine.Model[float32], spec profile.SegmentSpec, tokens []uint32) ([]byte, profile.SegmentKey) {
	t.Helper()
	r, err := c.Register(m.Profile(), connector.Binding{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	key, _ := r.SegmentKey(spec, tokens)
	rows, err := r.Acquire(t.Context(), []profile.SegmentKey{key}, connector.AcquireOptions{Digests: true})
	if err != nil || rows[0].Err != nil {
		t.Fatal(err, rows)
	}
	l := rows[0].Lease
	defer l.Release()
	if err := l.Verify(); err != nil {
		t.Error(err)
	}
	out := make([]byte, l.Layout().Bytes)
	for i, p := range l.Layout().Parts {
		if err := l.Read(i, out[p.Off:][:p.Len]); err != nil {
			t.Fatal(err)
		}
	}
	return out, key
}
