package network

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/network/hub"
)

// Of several segments the first is placed while the others are on their way.
func TestTheFirstIsUsedBeforeTheLastHasCome(t *testing.T) {
	t.Parallel()
	b := newBed(t, 2)
	b.start("-read-ahead", "off", "-slots", "32MiB") // what matches see stays where it is; a slot for each document
	from, reader := b.nodes[0], b.nodes[1]
	var documents [4]*document
	for i := range documents {
		documents[i] = from.publish(1000) // 4.4 MB
	}
	for _, d := range documents {
		eventually(t, "n1 sees it", func() bool { return reader.sees(d) })
	}
	b.rule(from, reader, hub.Rule{BytesPerSecond: 4e6})
	began := time.Now()
	var placed, came [len(documents)]time.Duration
	var reading sync.WaitGroup
	for i, d := range documents {
		reading.Go(func() {
			var lease *connector.Lease
			for lease == nil && time.Since(began) < patience {
				rows, err := reader.model.Acquire(context.Background(), []profile.SegmentKey{d.key}, connector.AcquireOptions{Wait: patience / 2})
				if err != nil {
					t.Errorf("document %d: %v", i, err)
					return
				}
				lease = rows[0].Lease
			}
			if lease == nil {
				t.Errorf("document %d has not come within %v", i, patience)
				return
			}
			defer lease.Release()
			came[i] = time.Since(began)
			slot, err := reader.model.Rotate(context.Background(), &connector.RotateQuery{
				Layer: profile.AllLayers,
				Plan:  connector.Plan{End: len(d.tokens), Spans: []connector.Span{{Lease: lease, Count: len(d.tokens)}}},
			})
			if err != nil {
				t.Errorf("document %d is not placed: %v", i, err)
				return
			}
			slot.Release()
			placed[i] = time.Since(began)
		})
	}
	reading.Wait()
	if t.Failed() {
		return
	}
	first, last := placed[0], time.Duration(0)
	for i := range documents {
		first, last = min(first, placed[i]), max(last, came[i])
	}
	if first > last*3/4 {
		t.Errorf("the first of 4 is placed after %v, the last has come after %v", first, last)
	}
	report(t, "4 documents of 4.4 MB over 4 MB/s: the first is placed after %.1f s, the last has come after %.1f s", first.Seconds(), last.Seconds())
}
