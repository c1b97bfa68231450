package catalog

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// BenchmarkLoad opens a catalogue on disk and reads every entry with its last
// use, with the page cache warm.
func BenchmarkLoad(b *testing.B) {
	const rows = 100_000
	b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
		at := filepath.Join(b.TempDir(), "index")
		fill(b, at, rows)
		b.ReportAllocs()
		for b.Loop() {
			c, err := Open(vfs.Default, at, Options{StoreID: storeA})
			must(b, err)
			n := 0
			must(b, c.Load(func(r Row) error {
				if r.Used == r.Created {
					b.Errorf("row %v without its last use", r.Name)
				}
				n++
				return nil
			}))
			must(b, c.Close())
			if n != rows {
				b.Fatalf("%d rows", n)
			}
		}
		b.ReportMetric(rows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	})
}

func fill(b *testing.B, at string, rows int) {
	c, err := Open(vfs.Default, at, Options{StoreID: storeA})
	must(b, err)
	const batch = 1000
	for i := 0; i < rows; i += batch {
		var changes []Change
		var uses []Use
		for j := i; j < i+batch; j++ {
			ch := put(j)
			ch.Manifest = make([]byte, 1000)
			changes = append(changes, ch)
			uses = append(uses, Use{ch.Row.Name, ch.Row.Created + 1})
		}
		must(b, c.Commit(changes, false))
		must(b, c.SaveUses(uses))
	}
	must(b, c.Close())
}

// BenchmarkCommit writes one row of an entry and its manifest on disk.
func BenchmarkCommit(b *testing.B) {
	for _, synced := range []bool{false, true} {
		for _, committers := range []int{1, 16} {
			b.Run(fmt.Sprintf("synced=%v/committers=%d", synced, committers), func(b *testing.B) {
				c, err := Open(vfs.Default, filepath.Join(b.TempDir(), "index"), Options{StoreID: storeA})
				must(b, err)
				before := c.Syncs()
				ch := put(1)
				ch.Manifest = make([]byte, 1000)
				b.ReportAllocs()
				b.SetParallelism(max(1, committers/2))
				b.ResetTimer()
				if committers == 1 {
					for range b.N {
						must(b, c.Commit([]Change{ch}, synced))
					}
				} else {
					b.RunParallel(func(p *testing.PB) {
						for p.Next() {
							if err := c.Commit([]Change{ch}, synced); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				b.StopTimer()
				b.ReportMetric(float64(c.Syncs()-before)/float64(b.N), "syncs/op")
				must(b, c.Close())
			})
		}
	}
}
