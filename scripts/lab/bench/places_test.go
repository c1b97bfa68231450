package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"golang.org/x/sys/unix"
)

// directScratch is a directory whose file system takes direct transfers.
func directScratch(t *testing.T) *machine.Scratch {
	t.Helper()
	dir := t.TempDir()
	fd, err := unix.Open(filepath.Join(dir, "probe"), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o600)
	if errors.Is(err, unix.EINVAL) {
		t.Skip("this file system does not take direct transfers")
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return &machine.Scratch{Dir: dir}
}

func TestEveryPlaceGivesBackWhatItGot(t *testing.T) {
	d := directScratch(t)
	for _, kind := range placeKinds() {
		t.Run(kind.name, func(t *testing.T) {
			value, err := machine.PageAligned(1 << 20)
			if err != nil {
				t.Fatal(err)
			}
			dir := d.Path(kind.name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			const n = 4
			p, err := kind.open(dir, n<<20)
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				setStamp(value, uint64(i))
				if err := p.put(i, value); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.flush(); err != nil {
				t.Error(err)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if err := machine.DropCached(dir); err != nil {
				t.Error(err)
			}
			if p, err = kind.open(dir, n<<20); err != nil {
				t.Fatal(err)
			}
			for _, i := range []int{2, 0, 3, 1} {
				tail := value[len(value)-1]
				clear(value)
				if err := p.get(i, value); err != nil || stamp(value) != uint64(i) || value[len(value)-1] != tail {
					t.Errorf("value %d came back as %d: %v", i, stamp(value), err)
				}
			}
			if err := p.get(n, value); err == nil {
				t.Error("a value that was never put came back")
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if err := machine.Unmap(value); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRowsOfAPlaceAreMedians(t *testing.T) {
	s := &session{report: &Report{}}
	gb := int64(placeBytes)
	pass := func(v float64) placePass {
		return placePass{put: v, flushed: v / 2, get: 2 * v, wrote: machine.Usage{CPU: v, Written: int64(v) * gb}, read: machine.Usage{CPU: 1}}
	}
	s.addPlace("x", []placePass{pass(3), pass(1), pass(2)}, 4, 8)
	want := map[string]float64{"x_write": 2, "x_write_settled": 1, "x_read_cold": 4, "x_amplification": 2}
	for _, r := range s.report.Rows {
		if v, ok := want[r.Name]; ok && r.Value != v {
			t.Errorf("%+v", r)
		}
		if strings.HasSuffix(r.Name, "_write") && (r.Ratio == nil || *r.Ratio != 0.5) {
			t.Errorf("%+v", r)
		}
		delete(want, r.Name)
	}
	delete(want, "x_amplification") // a kernel may keep no account
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}
