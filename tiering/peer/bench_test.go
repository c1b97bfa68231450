package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

var loneTenant = []tiertest.Tenant{{ID: 1, Name: "alice", Salt: []byte("a")}}

// largeSegment makes a segment of at least so many bytes.
func largeSegment(bytes int64) *tiertest.Object {
	p := tiertest.WideF32
	tokens := 1
	for p.SegmentLayout(tokens).Bytes < bytes {
		tokens *= 2
	}
	for step := tokens / 4; step > 0; step /= 2 {
		if p.SegmentLayout(tokens-step).Bytes >= bytes {
			tokens -= step
		}
	}
	return tiertest.Segment(p, loneTenant[0], 1, tokens)
}

// arena is memory as a store has it: in whole pages of 64 KiB, somewhere.
func arena(b *testing.B, dev gpuipc.Device, bytes int64) gpuipc.Ref {
	region, err := dev.NewRegion(gpuipc.RegionSpec{Name: "bench", Bytes: bytes, Access: gpuipc.ClientReads})
	noError(b, err)
	b.Cleanup(func() { noError(b, region.Close()) })
	return gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Len: bytes}}}
}

// BenchmarkFetch reads an object of 64 MiB, found before, from a daemon over loopback, in
// turns with a copy of as many bytes over as many connections that does nothing else: what
// TCP, or TLS with the same cipher, leaves of this machine. Both ends are of this process.
// floor-MB/s is of the copies, and ratio that of the medians.
func BenchmarkFetch(b *testing.B) {
	for _, secure := range []bool{false, true} {
		for _, streams := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("tls=%v/streams=%d", secure, streams), func(b *testing.B) {
				s := open(b, loneTenant, options{
					secure: secure, cfg: Config{Streams: streams, RangeBytes: 4 << 20, StallTime: 20 * time.Second},
					store: tiering.Config{PublicBytes: 160 << 20, PrivateBytes: 1 << 20, PageBytes: 64 << 10}, memory: 160 << 20,
				})
				defer func() {
					if err := s.Close(); err != nil {
						b.Error(err)
					}
				}()
				o := largeSegment(64 << 20)
				noError(b, s.Put(context.Background(), 0, o))
				rows, err := s.Find(context.Background(), []tier.Want{tiertest.WantOf(o)})
				if err != nil || rows[0] == nil {
					b.Fatal(rows, err)
				}
				dst := []gpuipc.Ref{arena(b, s.cfg.Device, int64(len(o.Bytes[0])))}
				f := newFloor(b, secure, streams, dst[0].Len())
				var fetches, floors []time.Duration
				b.ReportAllocs()
				for b.Loop() {
					began := time.Now()
					if _, err := rows[0].Read(context.Background(), dst); err != nil {
						b.Fatal(err)
					}
					between := time.Now()
					f.copy()
					fetches, floors = append(fetches, between.Sub(began)), append(floors, time.Since(between))
				}
				fetch, floor := rate(dst[0].Len(), fetches), rate(dst[0].Len(), floors)
				b.ReportMetric(fetch, "MB/s")
				b.ReportMetric(floor, "floor-MB/s")
				b.ReportMetric(fetch/floor, "ratio")
			})
		}
	}
}

// rate is of the median.
func rate(bytes int64, times []time.Duration) float64 {
	slices.Sort(times)
	return float64(bytes) / 1e6 / times[len(times)/2].Seconds()
}

// BenchmarkFind looks an object up at a peer.
func BenchmarkFind(b *testing.B) {
	for _, secure := range []bool{false, true} {
		for _, n := range []int{1, 32} {
			b.Run(fmt.Sprintf("tls=%v/keys=%d", secure, n), func(b *testing.B) {
				s := open(b, loneTenant, options{secure: secure})
				defer func() {
					if err := s.Close(); err != nil {
						b.Error(err)
					}
				}()
				var wants []tier.Want
				for i := range n {
					o := tiertest.Segment(tiertest.Small, loneTenant[0], uint64(i), 200)
					noError(b, s.Put(context.Background(), 0, o))
					wants = append(wants, tiertest.WantOf(o))
				}
				b.ReportAllocs()
				for b.Loop() {
					rows, err := s.Find(context.Background(), wants)
					if err != nil || slices.Contains(rows, nil) {
						b.Fatal(rows, err)
					}
				}
			})
		}
	}
}

// BenchmarkHint asks for 32 keys, as a match does.
func BenchmarkHint(b *testing.B) {
	s := open(b, loneTenant, options{sources: 2})
	defer func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}()
	var wants []tier.Want
	for i := range 32 {
		w := tiertest.WantOf(tiertest.Segment(tiertest.Small, loneTenant[0], uint64(i), 10))
		tag, _ := s.names.Tag(&w)
		s.index.add(tag, Node(i%2))
		wants = append(wants, w)
	}
	b.ReportAllocs()
	for b.Loop() {
		for i := range wants {
			if _, ok := s.Hint(&wants[i]); !ok {
				b.Fatal("no hint")
			}
		}
	}
}

// floor copies bytes over connections.
type floor struct {
	b        *testing.B
	from, to []byte
	conns    [][2]net.Conn
}

func newFloor(b *testing.B, secure bool, streams int, bytes int64) *floor {
	return &floor{b, make([]byte, bytes), make([]byte, bytes), floorConns(b, secure, streams)}
}

func (f *floor) copy() {
	var all sync.WaitGroup
	share := len(f.from) / len(f.conns)
	for i, pair := range f.conns {
		all.Go(func() {
			for left := f.from[i*share : (i+1)*share]; len(left) > 0; left = left[min(len(left), 1<<20):] {
				_, _ = pair[0].Write(left[:min(len(left), 1<<20)])
			}
		})
		all.Go(func() {
			if _, err := io.ReadFull(pair[1], f.to[i*share:(i+1)*share]); err != nil {
				f.b.Error(err)
			}
		})
	}
	all.Wait()
}

func floorConns(b *testing.B, secure bool, n int) (pairs [][2]net.Conn) {
	listen := must(net.Listen("tcp", "127.0.0.1:0"))
	defer listen.Close()
	server, client := certificates()
	for range n {
		there := must(net.Dial("tcp", listen.Addr().String()))
		here := must(listen.Accept())
		if secure {
			a, z := tls.Server(here, server), tls.Client(there, client)
			done := make(chan error, 1)
			go func() { done <- a.Handshake() }()
			noError(b, z.Handshake())
			noError(b, <-done)
			here, there = a, z
		}
		pairs = append(pairs, [2]net.Conn{here, there})
		b.Cleanup(func() { _, _ = here.Close(), there.Close() })
	}
	return pairs
}
