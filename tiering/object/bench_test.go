package object

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// Reads of one object from the server through the proxy, both on this machine.
func BenchmarkRead(b *testing.B) {
	for _, tokens := range []int{500, 30000} {
		o := tiertest.Segment(tiertest.WideF16, alice, 1, tokens)
		b.Run(fmt.Sprintf("bytes=%d", o.Total()), func(b *testing.B) {
			s := openSite(b, []tiertest.Tenant{alice})
			cfg := s.config()
			cfg.RangeBytes, cfg.AnswerTime, cfg.StallTime = 0, 0, 0
			n := s.node(cfg)
			b.Cleanup(n.stop)
			n.mustKeep(o)
			refs := make([]gpuipc.Ref, len(o.Bytes))
			for i, bytes := range o.Bytes {
				var err error
				if refs[i], err = n.mem.Put(bytes); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(o.Total())
			for b.Loop() {
				rows, err := n.Find(context.Background(), []tier.Want{tiertest.WantOf(o)})
				if err != nil || rows[0] == nil {
					b.Fatal(rows, err)
				}
				if _, err := rows[0].Read(context.Background(), refs); err != nil {
					b.Fatal(err)
				}
				rows[0].Close()
			}
			if err := n.mem.Spend(refs...); err != nil {
				b.Error(err)
			}
		})
	}
}

// A pass over 10,000 objects without the pause between requests.
func BenchmarkList(b *testing.B) {
	s := openSite(b, []tiertest.Tenant{alice})
	cfg := s.config()
	cfg.ListRequests = 1e6
	n := s.node(cfg)
	b.Cleanup(n.stop)
	const objects = 10000
	w := tiertest.WantOf(tiertest.Segment(tiertest.Small, alice, 1, 3))
	for i := range objects {
		w.Key[0], w.Key[1] = byte(i), byte(i>>8)
		of, _ := n.keys.tagOf(&w)
		file := s.file(n.Store, of)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	began, passes := time.Now(), 0
	for b.Loop() {
		if err := n.List(context.Background()); err != nil {
			b.Fatal(err)
		}
		passes++
	}
	b.ReportMetric(float64(objects*passes)/time.Since(began).Seconds(), "objects/s")
	if known := n.index.size(); known != objects {
		b.Errorf("%d objects are known", known)
	}
}
