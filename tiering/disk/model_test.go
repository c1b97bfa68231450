package disk

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// walkOptions is one way to set tiers up. Without a page the disk tier is alone;
// with one it lies below a store.
type walkOptions struct {
	name            string
	granule, slab   int64
	coded           []profile.PartKind
	public, private int64 // of the disk
	quota           int64 // of one of two tenants, over both tiers
	workers, queue  int
	syncEvery       time.Duration
	profiles        []*profile.Profile
	faults          tiertest.Faults
	keeps           tier.Level

	page                     int
	memory                   int64 // of each pool
	behind, ahead            bool
	high, low                float64
	level                    tier.Level // of commits that name none
	promotions, promoteQueue int
}

const (
	nothing = tier.LevelSynced + 1 // is kept for certain
	plenty  = 12 << 20
	scarce  = 700 << 10
)

// The sets whose budgets hold everything audit what has to be there; the others
// what may be there.
var (
	onlySmall = []*profile.Profile{tiertest.Small, tiertest.Linear}
	bothRanks = []*profile.Profile{tiertest.Small, tiertest.Pair, tiertest.Linear}
	packedToo = []*profile.Profile{tiertest.Small, tiertest.Pair, tiertest.Linear, tiertest.Lenient}

	walkSets = []walkOptions{
		{name: "disk", granule: 4 << 10, slab: 2 << 20, public: plenty, private: plenty, workers: 2, profiles: packedToo, keeps: tier.LevelLogged},
		{name: "disk, all coded", granule: 16 << 10, slab: 3 << 20, coded: codedAll, public: plenty, private: plenty, workers: 4,
			profiles: packedToo, keeps: tier.LevelLogged, faults: tiertest.HonestFaults, syncEvery: 3 * time.Millisecond},
		{name: "disk, large granules", granule: 64 << 10, slab: 6 << 20, coded: codedKV, public: 2 * plenty, private: 2 * plenty, workers: 1,
			queue: 6, profiles: onlySmall, keeps: tier.LevelLogged, faults: tiertest.LyingFaults},
		{name: "disk, no room", granule: 4 << 10, slab: 256 << 10, public: scarce, private: scarce, workers: 3, profiles: bothRanks, keeps: nothing, faults: tiertest.LyingFaults},
		{name: "disk, no room, coded, quota", granule: 8 << 10, slab: 128 << 10, coded: codedAll, public: scarce, private: scarce / 2, quota: 200 << 10,
			workers: 2, profiles: onlySmall, keeps: nothing, syncEvery: 2 * time.Millisecond},
		{name: "both, write-behind", granule: 4 << 10, slab: 2 << 20, public: plenty, private: plenty, workers: 2, profiles: bothRanks,
			page: 4096, memory: plenty, behind: true, keeps: tier.LevelMemory},
		{name: "both, memory small, read-ahead", granule: 16 << 10, slab: 4 << 20, coded: codedKV, public: plenty, private: plenty, workers: 2, queue: 8,
			profiles: bothRanks, page: 4096, memory: 400 << 10, behind: true, ahead: true, level: tier.LevelLogged, keeps: tier.LevelLogged, faults: tiertest.HonestFaults},
		{name: "both, demotion, marks", granule: 4 << 10, slab: 1 << 20, public: plenty, private: plenty, workers: 2, profiles: onlySmall,
			page: 8192, memory: 500 << 10, high: 0.7, low: 0.4, promotions: 1, keeps: tier.LevelLogged},
		{name: "both, no room, quota", granule: 4 << 10, slab: 256 << 10, public: scarce, private: scarce, quota: 300 << 10, workers: 2, profiles: bothRanks,
			page: 4096, memory: 300 << 10, behind: true, ahead: true, level: tier.LevelSynced, promoteQueue: 3, keeps: nothing},
		{name: "both, no room, faults", granule: 8 << 10, slab: 256 << 10, coded: codedAll, public: scarce, private: scarce, workers: 2, queue: 4,
			profiles: onlySmall, page: 16384, memory: 600 << 10, high: 0.5, low: 0.2, keeps: nothing, faults: tiertest.LyingFaults, syncEvery: 5 * time.Millisecond},
	}
)

// walkSeed replays one run, of all sets or of one that -run names.
const walkSeed = "SPLICED_SEED"

// walkSeeds are a few that are always the same, so that a test that passes does so
// again; in the long version many that never are.
func walkSeeds(t *testing.T) (seeds []uint64) {
	if text := os.Getenv(walkSeed); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s=%q: %v", walkSeed, text, err)
		}
		return []uint64{seed}
	}
	switch {
	case testing.Short():
		return []uint64{1}
	case !long():
		return []uint64{1, 2}
	}
	for range 20 {
		seeds = append(seeds, rand.Uint64N(1<<32))
	}
	return seeds
}

func TestTiersAgreeWithAMap(t *testing.T) {
	seeds := walkSeeds(t)
	for i := range walkSets {
		o := &walkSets[i]
		t.Run(fmt.Sprintf("options=%d", i), func(t *testing.T) {
			var met tiertest.WalkStats
			for _, seed := range seeds {
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
					tiertest.Leaks(t)
					t.Cleanup(func() {
						if t.Failed() {
							t.Logf("%s; replay: %s=%d go test -run 'TestTiersAgreeWithAMap/options=%d$' ./tiering/disk", o.name, walkSeed, seed, i)
						}
					})
					o.walk(t, seed, &met)
				})
			}
			o.enough(t, &met, len(seeds))
		})
	}
}

// walk makes the tiers and walks over them.
func (o *walkOptions) walk(t *testing.T, seed uint64, met *tiertest.WalkStats) {
	tenants := []tiertest.Tenant{{ID: 1, Name: "a", Salt: []byte("a"), QuotaBytes: o.quota}, {ID: 2, Name: "b", Salt: []byte("b")}}
	to := tiertest.Options{Tenants: tenants, PublicBytes: o.public, PrivateBytes: o.private, LargestBytes: 64 << 10}
	cfg := Config{
		GranuleBytes: o.granule, SlabBytes: o.slab, Coded: o.coded, Workers: o.workers, QueueLen: o.queue, SyncEvery: o.syncEvery,
	}
	var s tiertest.Subject
	if o.page == 0 {
		s = newSubject(t, to, cfg, seed)
	} else {
		s = newStack(t, to, tiering.Config{
			PageBytes: o.page, PublicBytes: o.memory, PrivateBytes: o.memory, WriteBehind: o.behind, ReadAhead: o.ahead,
			HighWater: o.high, LowWater: o.low, DefaultLevel: o.level, MaxPromotions: o.promotions, PromoteQueue: o.promoteQueue,
			SweepEvery: 20 * time.Millisecond,
		}, cfg, seed)
	}
	t.Cleanup(func() { must(t, s.Close()) })
	tiertest.Walk(t, s, tiertest.WalkOptions{
		Seed: seed, Steps: short(350, 1000), Tenants: tenants, Profiles: o.profiles, Segments: 40, Checkpoints: 40, Flights: 5,
		Keeps: o.keeps, Faults: o.faults,
	}, met)
}

// enough fails when walks met too little to mean anything.
func (o *walkOptions) enough(t *testing.T, met *tiertest.WalkStats, walks int) {
	if walks < 2 || // one is replayed, or short
		t.Failed() {
		return
	}
	t.Logf("%s: %+v", o.name, *met)
	restarts := 0
	for _, n := range met.Restarts {
		restarts += n
	}
	if met.Put < 20*walks || met.Hit < 20*walks || met.Missed == 0 || met.Removed == 0 || restarts == 0 || o.faults != tiertest.NoFaults && met.Disturbed == 0 {
		t.Errorf("%s: %d walks met too little: %+v", o.name, walks, *met)
	}
	if survived := met.Survived; o.keeps != nothing && o.faults != tiertest.LyingFaults && survived[tiertest.Killed]+survived[tiertest.PowerLost] == 0 {
		t.Errorf("%s: nothing had to survive: %+v", o.name, *met)
	}
}
