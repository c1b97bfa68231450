package network

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

func median(d []time.Duration) time.Duration { return quantile(d, 50) }

// quantile is the nearest one in percent.
func quantile(d []time.Duration, percent int) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[(len(d)*percent-1)/100].Round(time.Millisecond / 10)
}

// sighting is a document and since when a node looks for it.
type sighting struct {
	doc *document
	at  time.Time
}

// Not in parallel: this is about time.
func TestANewSegmentIsVisibleWithinASecond(t *testing.T) {
	b := newBed(t, 3)
	b.start()
	const each = 100
	var looking sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	watches := make([]chan sighting, len(b.nodes))
	for i, n := range b.nodes {
		watches[i] = make(chan sighting, len(b.nodes)*each)
		looking.Go(func() {
			found := n.watch(watches[i])
			mu.Lock()
			defer mu.Unlock()
			took = append(took, found...)
		})
	}
	for i := range len(b.nodes) * each {
		by := i % len(b.nodes)
		d := b.nodes[by].publish(8)
		for other := range b.nodes {
			if other != by {
				watches[other] <- sighting{d, time.Now()}
			}
		}
		<-time.After(10 * time.Millisecond) // new ones come at any time of an interval
	}
	for _, w := range watches {
		close(w)
	}
	looking.Wait()
	if want := each * len(b.nodes) * (len(b.nodes) - 1); len(took) != want {
		t.Fatalf("%d of %d were seen", len(took), want)
	}
	if p99 := quantile(took, 99); p99 > time.Second {
		t.Errorf("a new segment is visible after %v, p99", p99)
	}
	report(t, "3 nodes, %d sightings: a new segment is visible on another node after p50 %v, p99 %v, at most %v",
		len(took), median(took), quantile(took, 99), quantile(took, 100))
}

// watch looks for documents until there are no more, and returns how long each took.
func (n *node) watch(next <-chan sighting) (took []time.Duration) {
	var open []sighting
	var found connector.Found
	for began := time.Now(); time.Since(began) < patience; <-time.After(poll) {
		more := true
		for more {
			select {
			case s, ok := <-next:
				if more = ok; ok {
					open = append(open, s)
				} else if next = nil; len(open) == 0 {
					return took
				}
			default:
				more = false
			}
		}
		if len(open) == 0 {
			continue
		}
		q := &connector.MatchQuery{}
		for _, s := range open {
			q.Keys = append(q.Keys, profile.SegmentKey(s.doc.key))
		}
		n.timed("match", 0, func() {
			if err := n.model.Match(context.Background(), q, &found); err != nil {
				n.t.Errorf("%s: match: %v", n.name, err)
			}
		})
		now, rest := time.Now(), open[:0]
		for i, s := range open {
			if found.Segments[i].Hit() {
				took = append(took, now.Sub(s.at))
			} else {
				rest = append(rest, s)
			}
		}
		if open = rest; next == nil && len(open) == 0 {
			return took
		}
	}
	return took
}
