package catalog

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
)

var seeds = flag.Int("crash.seeds", 12, "power cuts to try in each crash test")

// smallOpen makes logs and tables rotate after a few commits.
func smallOpen(fs vfs.FS) (*Catalog, error) {
	return Open(fs, dir, Options{StoreID: storeA, memTable: 64 << 10})
}

// Another process has to see what an unsynced commit wrote although this one has
// neither closed nor synced anything: that is what is left when it is killed.
func TestUnsyncedCommitIsInTheFile(t *testing.T) {
	root := t.TempDir()
	c, err := Open(vfs.Default, filepath.Join(root, "live"), Options{StoreID: storeA})
	must(t, err)
	defer c.Close()
	opened := c.Syncs()
	for i := range 200 {
		must(t, c.Commit([]Change{put(i)}, false))
		if i%40 != 0 {
			continue
		}
		at := filepath.Join(root, fmt.Sprint("copy", i))
		copyDir(t, filepath.Join(root, "live"), at)
		other, err := Open(vfs.Default, at, Options{StoreID: storeA})
		must(t, err)
		got := load(t, other)
		must(t, other.Close())
		if len(got) != i+1 || !reflect.DeepEqual(got[row(i).Name], created(i)) {
			t.Fatalf("after %d commits a copy of the files has %d rows", i+1, len(got))
		}
	}
	if n := c.Syncs() - opened; n != 0 {
		t.Fatalf("%d syncs that nobody asked for", n)
	}
	must(t, c.Commit([]Change{put(200)}, true))
	if n := c.Syncs() - opened; n != 1 {
		t.Fatalf("%d syncs for one synced commit", n)
	}
	must(t, c.SyncNow())
	if n := c.Syncs() - opened; n != 1 {
		t.Fatalf("%d syncs, although the second had nothing to do", n)
	}
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.Mkdir(to, 0o755))
	names, err := os.ReadDir(from)
	must(t, err)
	for _, e := range names {
		in, err := os.Open(filepath.Join(from, e.Name()))
		must(t, err)
		out, err := os.Create(filepath.Join(to, e.Name()))
		must(t, err)
		_, err = io.Copy(out, in)
		must(t, err)
		in.Close()
		must(t, out.Close())
	}
}

// history is commits of one goroutine, of which each puts a row and deletes the
// one of ten commits ago, so that what is left says how many there were.
type history struct{ first int }

const alive = 10

// step is the i-th commit; its manifest makes logs rotate.
func (h history) step(i int) []Change {
	ch := []Change{put(h.first + i)}
	ch[0].Manifest = make([]byte, 3000)
	if i >= alive {
		n := row(h.first + i - alive).Name
		ch = append(ch, Change{Delete: &n})
	}
	return ch
}

// after says how many commits rows show; most is how many there were at most.
func (h history) after(rows map[extent.Name]Row, most int) (int, error) {
	last := -1
	for i := range most {
		if _, ok := rows[row(h.first+i).Name]; ok {
			last = i
		}
	}
	for i := range most {
		got, ok := rows[row(h.first+i).Name]
		switch want := i <= last && i > last-alive; {
		case want != ok:
			return 0, fmt.Errorf("commit %d was the last, but row %d is there: %v", last, i, ok)
		case ok && !reflect.DeepEqual(got, created(h.first+i)):
			return 0, fmt.Errorf("row %d is %+v", i, got)
		}
	}
	return last + 1, nil
}

// Power cuts at any moment leave a prefix of the commits, with all that was
// acknowledged as synced; and the catalogue opens, also when the power is cut
// again while it does.
func TestPowerCutLeavesAPrefix(t *testing.T) {
	for _, percent := range []int{0, 50} {
		n := *seeds
		if testing.Short() {
			n = max(1, n/6)
		}
		for seed := range n {
			t.Run(fmt.Sprintf("unsynced=%d/seed=%d", percent, seed), func(t *testing.T) {
				t.Parallel()
				powerCuts(t, percent, uint64(seed))
			})
		}
	}
}

func powerCuts(t *testing.T, percent int, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(percent)))
	cut := func(fs *vfs.MemFS) *vfs.MemFS {
		return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(rng.Uint64(), 0))})
	}
	fs := vfs.NewCrashableMem()
	var h history
	next, synced := 0, 0
	for round := range 6 {
		c, err := smallOpen(fs)
		if err != nil {
			t.Fatalf("round %d does not open: %v", round, err)
		}
		n, err := h.after(load(t, c), next)
		if err != nil || n < synced {
			t.Fatalf("round %d: %d commits of %d are left, %d were synced: %v", round, n, next, synced, err)
		}
		next = n
		for range rng.IntN(120) {
			sync := rng.IntN(20) == 0
			must(t, c.Commit(h.step(next), sync))
			next++
			if sync {
				synced = next
			}
			if rng.IntN(15) == 0 {
				checkCut(t, cut(fs), h, next, synced)
			}
		}
		after := cut(fs)
		must(t, c.Close())
		fs = after
	}
}

// checkCut opens what a power cut left, and what one during that leaves.
func checkCut(t *testing.T, fs *vfs.MemFS, h history, next, synced int) {
	t.Helper()
	again := make(chan *vfs.MemFS, 1)
	c, err := smallOpen(cutAtCreate{FS: fs, mem: fs, again: again})
	if err != nil {
		t.Fatalf("does not open: %v", err)
	}
	n, err := h.after(load(t, c), next)
	if err != nil || n < synced {
		t.Fatalf("%d commits of %d are left, %d were synced: %v", n, next, synced, err)
	}
	must(t, c.Close())
	c, err = smallOpen(<-again)
	if err != nil {
		t.Fatalf("does not open after a power cut while it opened: %v", err)
	}
	if m, err := h.after(load(t, c), next); err != nil || m != n {
		t.Fatalf("%d commits, %d after another power cut: %v", n, m, err)
	}
	must(t, c.Close())
}

// cutAtCreate cuts the power when the first log is created.
type cutAtCreate struct {
	vfs.FS
	mem   *vfs.MemFS
	again chan *vfs.MemFS
}

func (f cutAtCreate) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, category)
	if filepath.Ext(name) == ".log" {
		select {
		case f.again <- f.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}):
		default:
		}
	}
	return file, err
}

// Committers of both kinds at once: what was answered before a clone is in the
// clone that its level promises, and each synced commit brings along what was
// committed before it began.
func TestLevelsHoldForCommittersAtOnce(t *testing.T) {
	fs := vfs.NewCrashableMem()
	c, err := smallOpen(fs)
	must(t, err)
	const committers, steps = 8, 150
	var (
		mu     sync.Mutex
		logged [committers]int // commits that were answered
		synced [committers]int // of these, known to be on the disk
	)
	var wg sync.WaitGroup
	for g := range committers {
		wg.Go(func() {
			h := history{first: g * 100000}
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for i := range steps {
				sync := rng.IntN(10) == 0
				mu.Lock()
				before := logged
				mu.Unlock()
				if err := c.Commit(h.step(i), sync); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				logged[g] = i + 1
				if sync {
					before[g] = i + 1
					for j := range synced {
						synced[j] = max(synced[j], before[j])
					}
				}
				mu.Unlock()
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	check := func(percent int) {
		mu.Lock()
		want := synced
		if percent == 100 {
			want = logged
		}
		mu.Unlock()
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(3, 3))})
		other, err := smallOpen(clone)
		must(t, err)
		rows := load(t, other)
		must(t, other.Close())
		for g := range committers {
			n, err := history{first: g * 100000}.after(rows, steps)
			if err != nil || n < want[g] {
				t.Fatalf("committer %d, %d %% of unsynced data: %d commits, %d promised: %v", g, percent, n, want[g], err)
			}
		}
	}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		check(0)
		check(100)
	}
	if n := c.Syncs(); n == 0 || n > committers*steps/5 {
		t.Fatalf("%d syncs of logs", n)
	}
	must(t, c.Close())
}
