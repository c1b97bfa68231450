package network

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/network/hub"
)

// lyingBed has an honest node n0, a reader n1 that the lies are told to, and a machine
// for liars. An acquire waits for the fetch itself, so that what bounds it is that.
func lyingBed(t *testing.T) (b *bed, honest, reader, place *node) {
	t.Helper()
	b = newBed(t, 3)
	honest, reader, place = b.nodes[0], b.nodes[1], b.nodes[2]
	for _, n := range b.nodes[:2] {
		n.launch("-promote-timeout=30s")
		n.open()
	}
	eventually(t, "the two honest nodes are a cluster", func() bool { return honest.using() == 1 && reader.using() == 1 })
	return b, honest, reader, place
}

// tell starts a liar in its place, until the test ends, and waits until the reader works
// with it.
func (n *node) tell(t *testing.T, name string, reader *node) {
	t.Helper()
	n.name, n.t = name, t
	n.launchAs(asRole(liar), []string{n.gossip().String(), n.nodes[0].gossip().String(), n.keyring, name})
	t.Cleanup(func() {
		n.end(syscall.SIGTERM)
		eventually(t, "the liar is gone", func() bool { m := reader.member(name); return m == nil || !m.InUse })
	})
	eventually(t, "the liar is a member", func() bool {
		n.mustRun()
		m := reader.member(name)
		return m != nil && m.InUse
	})
}

// fetchBound is what a fetch may last whatever a member does: two connections and
// questions, and the ranges of 0.9 MB, by the defaults of tiering/peer.
const fetchBound = 15 * time.Second

// hear has the reader fetch what only the liar says to have: nothing may come of it, and
// soon.
func hear(t *testing.T, honest, reader, place *node) *document {
	t.Helper()
	wrong := func() uint64 { return reader.counter("peer_corrupt") + reader.counter("peer_failures") }
	before := wrong()
	d := honest.publish(200)
	eventually(t, "the reader believes that it is there", func() bool { return reader.sees(d) })
	began := time.Now()
	err := reader.fetch(d, fetchBound)
	took := time.Since(began)
	if err == nil {
		t.Error("a lie has been leased")
	}
	// A match has it fetched already, so that the miss may be here before the liar's log.
	eventually(t, "something false is told", func() bool { return place.log.count("LIED") > 0 })
	if !lies[place.name].incorrigible {
		eventually(t, "the reader counts a wrong object or a failure", func() bool { return wrong() > before })
	}
	reader.mustRun()
	report(t, "a miss after %v: %v", took.Round(time.Millisecond), err)
	return d
}

// tellAll tells each lie while the honest node is out of the reader's reach, and then has
// the reader fetch all of it from the honest one.
func tellAll(t *testing.T, names ...string) {
	b, honest, reader, place := lyingBed(t)
	var docs []*document
	for _, name := range some(names) {
		t.Run(name, func(t *testing.T) {
			defer b.all(hub.Rule{})
			place.tell(t, name, reader)
			b.cut(honest, reader, true)
			docs = append(docs, hear(t, honest, reader, place))
		})
	}
	at := time.Now()
	took := b.healed(at, honest, reader)
	for _, d := range docs {
		reader.mustFetch(d)
	}
	report(t, "%d lies; new segments are seen %.1f s after the last, and all %d documents come right from the honest node; longest call %v",
		len(docs), took.Seconds(), len(docs), b.longest())
}

// some is all, or every fourth where tests are to be short.
func some(names []string) (list []string) {
	for i, name := range names {
		if !testing.Short() || i%4 == 0 {
			list = append(list, name)
		}
	}
	return list
}

func TestALieAboutAnObjectIsAMiss(t *testing.T) {
	t.Parallel()
	tellAll(t, "digests", "key", "kind", "tokens", "shape", "more-tokens", "ranks", "no-rank", "size", "small", "ids", "digest-count",
		"publisher", "length", "rows", "status", "tail", "cut-short", "nothing", "garbage", "not-here", "later-forever", "gibibyte",
		"busy-forever", "silence")
}

func TestALieInBytesIsAMiss(t *testing.T) {
	t.Parallel()
	tellAll(t, "bytes", "last-byte", "zeros", "fewer-bytes", "more-bytes", "no-bytes", "half-then-end", "half-then-still", "drip",
		"chunked", "headers", "redirect")
}

// Whoever lies about what it holds, or where, lies for itself: what an honest node holds
// is seen and fetched all the same.
func TestALieAboutWhatIsHeldConcernsTheLiarOnly(t *testing.T) {
	t.Parallel()
	b, honest, reader, place := lyingBed(t)
	for _, name := range some([]string{
		"index-more", "index-garbage", "index-long", "index-short", "index-anew", "index-gap", "index-endless", "index-false", "address",
	}) {
		t.Run(name, func(t *testing.T) {
			asked, failed := reader.counter("cluster_index_asked"), reader.counter("cluster_index_failed")
			began := time.Now()
			place.tell(t, name, reader)
			var seen []time.Duration
			for range 5 {
				d := honest.publish(50)
				seen = append(seen, within(t, patience, "the reader sees what the honest node holds", func() bool { return reader.sees(d) }))
				reader.mustFetch(d)
			}
			if lies[name].index != nil {
				eventually(t, "the lie is told", func() bool { return place.log.count("LIED") > 0 })
			} else if lies[name].address {
				eventually(t, "who answers there is not who was asked for", func() bool { return reader.counter("cluster_index_failed") > failed })
			}
			asked = reader.counter("cluster_index_asked") - asked
			rate := float64(asked) / time.Since(began).Seconds()
			if rate > 250 {
				t.Errorf("the reader asks %.0f times a second", rate)
			}
			// Where the liar alone was believed to have it, its answer that it has not holds
			// for 5 s (answerTTL in tiering).
			if p := quantile(seen, 100); p > 7*time.Second || lies[name].index != nil && p > 2*time.Second {
				t.Errorf("what the honest node holds is seen after %v", p)
			}
			reader.mustRun()
			report(t, "the honest node's segments are seen after %v, at most %v; the reader asks %.0f times a second",
				median(seen), slices.Max(seen).Round(time.Millisecond), rate)
		})
	}
	took := b.healed(time.Now(), honest, reader)
	report(t, "new segments are seen %.1f s after the last; longest call %v", took.Seconds(), b.longest())
}
