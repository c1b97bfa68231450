package network

import (
	"testing"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/network/hub"
)

// givenUp waits until a node has forgotten others, and what they hold.
func (n *node) givenUp(others ...*node) {
	n.t.Helper()
	for _, x := range others {
		eventually(n.t, n.name+" has given up "+x.name, func() bool { m := n.member(x.name); return m == nil || !m.InUse })
	}
}

func TestPartsOfACutClusterGoOnAndFindEachOther(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	b.start()
	alone, left, right := b.nodes[0], b.nodes[1], b.nodes[2]
	before := alone.publish(200)
	left.mustFetch(before)
	unread := alone.publish(200)
	eventually(t, "n1 knows what n0 holds", func() bool { return right.sees(before) })

	b.cut(alone, left, true)
	b.cut(alone, right, true)
	began := time.Now()
	if err := left.fetch(unread, 2*time.Second); err == nil && b.hub.Counters(alone.port, left.port).Cut == 0 {
		t.Error("something crossed the cut")
	}
	alone.givenUp(left, right)
	left.givenUp(alone)
	right.givenUp(alone)
	noticed := time.Since(began)
	there, here := alone.publish(200), left.publish(200)
	right.mustFetch(here)
	right.mustFetch(before) // of the copy that n1 has
	for _, try := range []struct {
		by  *node
		doc *document
	}{{left, there}, {alone, here}} {
		if err := try.by.fetch(try.doc, 2*time.Second); err == nil {
			t.Errorf("%s has what is beyond the cut", try.by.name)
		}
	}

	b.all(hub.Rule{})
	at := time.Now()
	took := b.healed(at, b.nodes...)
	left.mustFetch(there)
	alone.mustFetch(here)
	report(t, "parted for %.1f s, noticed after %.1f s, healed %.1f s after the network; longest call %v",
		at.Sub(began).Seconds(), noticed.Seconds(), took.Seconds(), b.longest())
}

// longest is of the calls of all engines.
func (b *bed) longest() (d time.Duration) {
	for _, n := range b.nodes {
		n.mu.Lock()
		d = max(d, n.longest)
		n.mu.Unlock()
	}
	return d.Round(time.Millisecond)
}

func TestOneWayCutCostsNoMoreThanTheLink(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	b.start()
	mute, deaf, third := b.nodes[0], b.nodes[1], b.nodes[2]
	shared := mute.publish(200)
	third.mustFetch(shared)
	lone := mute.publish(200)
	eventually(t, "n1 knows both", func() bool { return deaf.known(mute) && deaf.known(third) })

	b.rule(mute, deaf, hub.Rule{Cut: true})
	began := time.Now()
	if err := deaf.fetch(lone, 2*time.Second); err == nil {
		t.Error("n1 has what n0 cannot send it")
	}
	failed := time.Since(began)
	// Who has the same digests goes on, or answers in the first place.
	deaf.mustFetch(shared)
	other := deaf.publish(200)
	third.mustFetch(other)
	// n0 and n2 work with each other all the time.
	more := mute.publish(200)
	eventually(t, "n2 sees what n0 has made since", func() bool { return third.sees(more) })
	third.mustFetch(more)

	b.all(hub.Rule{})
	at := time.Now()
	took := b.healed(at, b.nodes...)
	deaf.mustFetch(lone)
	report(t, "a fetch over the link is a miss after %.1f s; healed %.1f s after the network; longest call %v",
		failed.Seconds(), took.Seconds(), b.longest())
}

// known reports whether the node knows all that another one holds.
func (n *node) known(other *node) bool {
	m := n.member(other.name)
	return m != nil && m.Index != nil && m.Index.Version == other.cluster().Own.Version
}
