package network

import (
	"syscall"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/network/hub"
)

// A node that dies while it sends costs no more than the wait until that is noticed: what
// has come stays, and another node with the same bytes sends the rest.
func TestAFetchGoesOnFromAnotherNode(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	b.start("-promote-timeout=60s")
	dying, reader, other := b.nodes[0], b.nodes[1], b.nodes[2]
	d := dying.publish(2000) // 8.7 MB
	other.mustFetch(d)
	eventually(t, "the reader knows that both have it", func() bool { return reader.known(dying) && reader.known(other) })
	// The reader gets it from the one that is going to die, slowly.
	b.rule(other, reader, hub.Rule{Cut: true})
	b.rule(dying, reader, hub.Rule{BytesPerSecond: 1e6})
	before := b.hub.Counters(dying.port, reader.port).Bytes
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- reader.fetch(d, patience) }()
	eventually(t, "a part has come", func() bool { return b.hub.Counters(dying.port, reader.port).Bytes > before+1e6 })
	b.rule(other, reader, hub.Rule{})
	// While it was cut off it fell silent, and is asked again once a probe is answered.
	eventually(t, "the other one is asked again", func() bool {
		m := reader.member(other.name)
		return m != nil && m.Fetch != nil && !m.Fetch.Open
	})
	dying.end(syscall.SIGKILL)
	died := time.Now()
	if err := <-done; err != nil {
		t.Fatalf("%v\n%s", err, reader.log)
	}
	if n := reader.counter("peer_failovers"); n == 0 {
		t.Error("nothing was counted as gone on with")
	}
	took := time.Since(died)
	if took > healBound {
		t.Errorf("it is there %v after the death", took)
	}
	report(t, "8.7 MB from a node that is killed %.1f s after their beginning are there %.1f s after its death",
		died.Sub(began).Seconds(), took.Seconds())
}
