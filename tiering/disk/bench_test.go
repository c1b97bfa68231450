package disk

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// cpuSeconds is what the process has used.
func cpuSeconds(b *testing.B) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// tokensFor makes segments of a size in MiB of a model with 4.25 KiB a token.
func tokensFor(mib int) int { return mib << 20 / (4096 + 256) }

// BenchmarkWrite keeps 16 writes going, over and over into the same budget, and
// counts until the last is answered. BenchmarkFloor is what the disk gives.
func BenchmarkWrite(b *testing.B) {
	for _, mib := range []int{1, 16, 64} {
		for _, level := range []tier.Level{tier.LevelLogged, tier.LevelSynced} {
			b.Run(fmt.Sprintf("MiB=%d/level=%d", mib, level), func(b *testing.B) { benchWrite(b, mib, level) })
		}
	}
}

func benchConfig(s *shelf, dir string) Config {
	cfg := s.config()
	cfg.Dir, cfg.PublicBytes, cfg.PrivateBytes, cfg.SlabBytes, cfg.GranuleBytes = dir+"/tier", 2<<30, 0, 256<<20, 64<<10
	cfg.Workers, cfg.SyncEvery, cfg.QueueBytes = 4, 5*time.Second, 512<<20
	return cfg
}

func benchWrite(b *testing.B, mib int, level tier.Level) {
	s := newShelf(b)
	cfg := benchConfig(s, b.TempDir())
	lower := s.openOK(cfg)
	p := wide(profile.F32)
	w := thing{seed: 1, profile: p, tenant: tenantA, tokens: tokensFor(mib)}
	base := s.object(w)
	defer s.drop(base)
	flight := make(chan struct{}, min(max(256/mib, 4), 32))
	// All slabs are there before the clock runs: making them is not writing.
	var wg sync.WaitGroup
	put := func(i int) {
		o := *base
		o.Key[0], o.Key[1], o.Key[2] = byte(i), byte(i>>8), byte(i>>16)
		flight <- struct{}{}
		k, err := lower.Admit(&o, 1<<50)
		if err != nil {
			b.Fatal(err)
		}
		wg.Add(1)
		k.Start(level, func(_ tier.Level, err error) {
			if err != nil {
				b.Error(err)
			}
			<-flight
			wg.Done()
		})
	}
	n := 0
	for ; n < int(cfg.PublicBytes>>20)/mib; n++ {
		put(n)
	}
	wg.Wait()
	before := lower.Counters()
	cpu := cpuSeconds(b)
	b.SetBytes(w.layout().Bytes)
	for b.Loop() {
		put(n)
		n++
	}
	wg.Wait()
	after := lower.Counters()
	gb := float64(b.N) * float64(w.layout().Bytes) / 1e9
	b.ReportMetric((cpuSeconds(b)-cpu)/gb, "cpu-s/GB")
	b.ReportMetric(float64(after.StoredBytes-before.StoredBytes)/gb/1e9, "amplification")
	b.ReportMetric(float64(after.GroupObjects-before.GroupObjects)/float64(max(after.Groups-before.Groups, 1)), "objects/group")
	b.ReportMetric(float64(after.Syncs-before.Syncs)/float64(b.N), "syncs/op")
}

// BenchmarkRead reads entries one after another, and four at once.
func BenchmarkRead(b *testing.B) {
	for _, mib := range []int{1, 16, 64} {
		for _, at := range []int{1, 4} {
			if mib*at > 64 {
				continue
			}
			b.Run(fmt.Sprintf("MiB=%d/at=%d", mib, at), func(b *testing.B) { benchRead(b, mib, at) })
		}
	}
}

func benchRead(b *testing.B, mib, at int) {
	s := newShelf(b)
	lower := s.openOK(benchConfig(s, b.TempDir()))
	w := thing{seed: 1, profile: wide(profile.F32), tenant: tenantA, tokens: tokensFor(mib)}
	base := s.object(w)
	var names []tier.Name
	for i := range 512 / mib {
		o := *base
		o.Key[0], o.Key[1] = byte(i), byte(i>>8)
		k, err := lower.Admit(&o, 1<<50)
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan error, 1)
		k.Start(tier.LevelLogged, func(_ tier.Level, err error) { done <- err })
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		names = append(names, tier.Name{Key: o.Key})
	}
	s.drop(base)
	cpu := cpuSeconds(b)
	b.SetBytes(w.layout().Bytes)
	var wg sync.WaitGroup
	next := make(chan int)
	for range at {
		wg.Go(func() {
			ref := s.alloc(w.layout().Bytes)
			defer s.free(ref)
			for i := range next {
				e, _ := lower.Lookup(&names[i%len(names)])
				if _, err := lower.Read(context.Background(), &e, []gpuipc.Ref{ref}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	i := 0
	for b.Loop() {
		next <- i
		i++
	}
	close(next)
	wg.Wait()
	b.ReportMetric((cpuSeconds(b)-cpu)/(float64(b.N)*float64(w.layout().Bytes)/1e9), "cpu-s/GB")
}

// BenchmarkFloor is the same file layer with nothing above it: four transfers of
// 1 MiB at a time.
func BenchmarkFloor(b *testing.B) {
	for _, write := range []bool{true, false} {
		b.Run(fmt.Sprintf("write=%v", write), func(b *testing.B) {
			fs, err := slab.OpenDir(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			const size = 512 << 20
			f, err := fs.Create("floor", size)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			next := make(chan int64)
			var wg sync.WaitGroup
			move := func(write bool) {
				for range 4 {
					wg.Go(func() {
						bufs := [][]byte{slab.AlignedBuffer(1 << 20)}
						for off := range next {
							do := f.ReadAt
							if write {
								do = f.WriteAt
							}
							if err := do(bufs, off%size); err != nil {
								b.Error(err)
							}
						}
					})
				}
			}
			move(true)
			for off := int64(0); off < size; off += 1 << 20 {
				next <- off
			}
			close(next)
			wg.Wait()
			next = make(chan int64)
			move(write)
			b.SetBytes(1 << 20)
			off := int64(0)
			for b.Loop() {
				next <- off
				off += 1 << 20
			}
			close(next)
			wg.Wait()
		})
	}
}
