package network

import (
	"fmt"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/network/hub"
)

func TestLostFramesCostTimeOnly(t *testing.T) {
	t.Parallel()
	for _, percent := range []int{1, 5, 20} {
		t.Run(fmt.Sprintf("%d%%", percent), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, 3)
			b.start()
			b.all(hub.Rule{Loss: float64(percent) / 100})
			const rounds, wait = 12, 3 * time.Second
			var came, seen int
			for i := range rounds {
				from, to := b.nodes[i%3], b.nodes[(i+1+i/3%2)%3]
				d := from.publish(200)
				for end := time.Now().Add(wait); time.Now().Before(end); <-time.After(poll) {
					if to.sees(d) {
						seen++
						break
					}
				}
				if to.fetch(d, wait) == nil {
					came++
				}
			}
			if percent <= 5 && (seen < rounds/2 || came < rounds/2) {
				t.Errorf("of %d documents %d were seen and %d fetched within %v", rounds, seen, came, wait)
			}
			b.all(hub.Rule{})
			at := time.Now()
			took := b.healed(at, b.nodes...)
			lost := uint64(0)
			for _, x := range b.nodes {
				for _, z := range b.nodes {
					lost += b.hub.Counters(x.port, z.port).Lost
				}
			}
			if lost == 0 {
				t.Error("no frame was lost")
			}
			report(t, "%d frames lost; of %d documents of 0.9 MB %d were seen and %d fetched within 3 s; healed %.1f s after the network; longest call %v",
				lost, rounds, seen, came, took.Seconds(), b.longest())
		})
	}
}

func TestADistantPeerIsUsedAsOthers(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	far := b.nodes[2]
	for _, near := range b.nodes[:2] {
		b.rule(far, near, hub.Rule{Delay: 25 * time.Millisecond, Jitter: 2 * time.Millisecond})
		b.rule(near, far, hub.Rule{Delay: 25 * time.Millisecond, Jitter: 2 * time.Millisecond})
	}
	b.start()
	var visible, fetched []time.Duration
	for range 10 {
		d := far.publish(250)
		visible = append(visible, within(t, patience, "a distant node's segment is seen", func() bool { return b.nodes[0].sees(d) }))
		began := time.Now()
		b.nodes[0].mustFetch(d)
		fetched = append(fetched, time.Since(began))
	}
	at := time.Now()
	took := b.healed(at, b.nodes...)
	rtt := 0.0
	eventually(t, "the round trip is measured", func() bool {
		m := b.nodes[0].member(far.name)
		if m != nil && m.Fetch != nil {
			rtt = m.Fetch.RoundTrip
		}
		return rtt > 0
	})
	if rtt < .046 {
		t.Errorf("a round trip of 50 ms is measured as %v", rtt)
	}
	report(t, "25 ms each way: a segment is seen after %v, 1.1 MB fetched in %v more (medians); everywhere after %.1f s; a round trip is told as %.0f ms",
		median(visible), median(fetched), took.Seconds(), rtt*1e3)
}

func TestASlowPeerHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	b.start()
	slow, reader, quick := b.nodes[0], b.nodes[1], b.nodes[2]
	b.rule(slow, reader, hub.Rule{BytesPerSecond: 1e6})
	b.rule(slow, quick, hub.Rule{BytesPerSecond: 1e6})
	large := slow.publish(2000) // 8.7 MB
	eventually(t, "n1 sees it", func() bool { return reader.sees(large) })
	began := time.Now()
	if reader.fetch(large, time.Second) == nil {
		t.Error("8.7 MB came at 1 MB/s within a second")
	}
	missed := time.Since(began)
	var others []time.Duration
	for range 10 {
		d := quick.publish(250)
		eventually(t, "n1 sees a quick node's", func() bool { return reader.sees(d) })
		between := time.Now()
		reader.mustFetch(d)
		others = append(others, time.Since(between))
	}
	reader.mustFetch(large)
	came := time.Since(began)
	if came < 7*time.Second {
		t.Errorf("8.7 MB came in %v over a link of 1 MB/s", came)
	}
	b.all(hub.Rule{})
	at := time.Now()
	took := b.healed(at, b.nodes...)
	report(t, "1 MB/s: 8.7 MB are a miss after %.1f s and there after %.1f s; 1.1 MB of another node took %v meanwhile (median); healed %.1f s after the network",
		missed.Seconds(), came.Seconds(), median(others), took.Seconds())
}
