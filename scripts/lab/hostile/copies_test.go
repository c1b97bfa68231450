package hostile

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// clusterFlags are those of some nodes of one cluster, for which everything is worth its
// bytes.
func clusterFlags(t testing.TB, names ...string) (flags [][]string) {
	t.Helper()
	ring := filepath.Join(t.TempDir(), "keyring")
	if err := os.WriteFile(ring, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	var binds []string
	for range names {
		binds = append(binds, address(t))
	}
	for i, name := range names {
		flags = append(flags, []string{
			"-cluster-node=" + name, "-cluster-keyring=" + ring, "-cluster-seeds=" + strings.Join(binds, ","), "-cluster-bind=" + binds[i], "-cluster-peer-bind=127.0.0.1:0", "-prefill-speed=1",
		})
	}
	return flags
}

// What is about to leave a node's memory outlives the node, at another one that had room.
func TestHostileLastCopiesOutliveTheirNode(t *testing.T) {
	flags := clusterFlags(t, "a", "b")
	a := start(t, bounds{}, append(flags[0], "-arena=2MiB")...)
	b := start(t, bounds{}, append(flags[1], "-arena=32MiB", "-read-ahead=off")...)
	met := func(v *victim) bool { n, _ := v.metric(`spliced_cluster_members{state="alive"}`); return n == 1 }
	eventually(t, "the nodes see each other", func() bool { return met(a) && met(b) })
	ma := writer(t, a)
	mb := writer(t, b)
	var list []stored
	for range 40 {
		list = append(list, publish(t, ma, 1)...)
		eventually(t, "b knows of it", func() bool { return believed(t, mb, list[len(list)-1]) })
		eventually(t, "copies are sent", func() bool { return a.series("spliced_offloads_in_flight") == 0 })
	}
	left := a.series(`spliced_evictions_total{reason="room",tier="dram"}`)
	took := b.series(`spliced_peer_copies_total{result="taken"}`)
	a.kill()
	y := ask(t, mb, list, patience/10)
	if y.wrong != 0 || left == 0 || took < left || float64(y.right) < took {
		t.Errorf("%v; %v had left a, %v were taken by b", y, left, took)
	}
	report(t, fmt.Sprintf("kill -9 of a node whose memory %v of 40 segments had left", left), "nothing",
		fmt.Sprintf("the other node took %v copies before: %v", took, y))
}

// believed tells whether a match answers a hit.
func believed(t testing.TB, m *connector.Model, s stored) bool {
	t.Helper()
	var f connector.Found
	if err := m.Match(t.Context(), &connector.MatchQuery{Keys: []profile.SegmentKey{s.key}}, &f); err != nil {
		t.Fatal(err)
	}
	return f.Segments[0].Hit()
}

// An owner that is stopped keeps its connections open: whoever asks it first waits, and
// then nobody until it answers again.
func TestHostileStoppedOwnerIsSkipped(t *testing.T) {
	flags := clusterFlags(t, "a", "b")
	a := start(t, bounds{}, flags[0]...)
	b := start(t, bounds{}, append(flags[1], "-read-ahead=off")...)
	ma, mb := writer(t, a), writer(t, b)
	list := publish(t, ma, 8)
	eventually(t, "b knows what a holds", func() bool {
		for _, s := range list {
			if !believed(t, mb, s) {
				return false
			}
		}
		return true
	})
	silences := b.series("spliced_peer_silences_total")
	a.pause()
	defer a.resume()
	y := ask(t, mb, list[:1], patience/10)
	if y.right != 0 || y.wrong != 0 {
		t.Fatalf("of a node that is stopped came %v", y)
	}
	eventually(t, "b suspects a", func() bool { return b.series("spliced_peer_silences_total") > silences })
	for _, s := range list {
		if believed(t, mb, s) {
			t.Error("a match counts on a node that does not answer")
		}
	}
	a.resume()
	eventually(t, "a is asked again", func() bool { return ask(t, mb, list, patience/10).right == len(list) })
	report(t, "SIGSTOP of the node that holds what another one's engine asks for", "the wait of one acquire", "misses until it went on")
}
