package torture

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// cutPower plays losses of power with what a test puts over the files: some, and
// on a busy machine, which acknowledges little before each, as many as it takes
// to have something at every level and enough to see what the test looks for.
func cutPower(t *testing.T, over func(vfs.FS) vfs.FS, enough func(*Report) bool) *Report {
	t.Helper()
	cuts := 9 // three of each share of unsynced blocks, over two lives
	if testing.Short() {
		cuts = 3
	}
	for ; ; cuts *= 2 {
		r := &Report{Seed: 5}
		p := powerCuts{options: Options{Seed: r.Seed, Power: cuts}, rng: rand.New(rand.NewPCG(r.Seed, 4)), report: r, over: over}
		if err := p.run(t.Context()); err != nil {
			t.Fatalf("seed %d: %v", r.Seed, err)
		}
		if len(r.Power) != cuts {
			t.Fatalf("%d rows of %d losses of power", len(r.Power), cuts)
		}
		acknowledged := r.PowerSyncedAcked > 0 && r.PowerLoggedAcked > 0 && r.PowerMemoryAcked > 0
		if acknowledged && (enough(r) || cuts > 100) {
			return r
		}
		if cuts > 100 {
			t.Fatalf("seed %d: nothing is acknowledged: %+v", r.Seed, r)
		}
	}
}

func TestSyncedSurvivesLossOfPower(t *testing.T) {
	r := cutPower(t, nil, func(*Report) bool { return true })
	if bad := r.Failures(); bad != nil {
		t.Errorf("seed %d: %q\n%q", r.Seed, bad, r.Notes)
	}
}

// lying is a file system that says that it has synced slabs and has not.
type lying struct{ vfs.FS }

func (l lying) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := l.FS.Create(name, c)
	return lie(name, f, err)
}

func (l lying) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := l.FS.OpenReadWrite(name, c, o...)
	return lie(name, f, err)
}

func lie(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".slab") {
		return f, err
	}
	return lyingFile{f}, nil
}

type lyingFile struct{ vfs.File }

func (lyingFile) Sync() error     { return nil }
func (lyingFile) SyncData() error { return nil }

func (f lyingFile) SyncTo(length int64) (fullSync bool, err error) { return false, nil }

// The audit has to see what such a disk loses; otherwise it would not see it in
// ours either. Lost it may be, but not served wrong.
func TestADiskThatLiesAboutSyncIsFoundOut(t *testing.T) {
	lost := func(r *Report) bool { return r.PowerSyncedSurvived < r.PowerSyncedAcked }
	r := cutPower(t, func(fs vfs.FS) vfs.FS { return lying{fs} }, lost)
	if r.PowerSyncedAcked == 0 || r.PowerSyncedSurvived == r.PowerSyncedAcked || len(r.Failures()) != 1 || r.PowerCorrupt != 0 {
		t.Errorf("seed %d: %d of %d acknowledged as synced survived, failures %q", r.Seed, r.PowerSyncedSurvived, r.PowerSyncedAcked, r.Failures())
	}
}
