package view

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Readiness says what hangs and for how long, unless there is graver trouble.
func TestADiskThatHangsIsDegraded(t *testing.T) {
	for name, test := range map[string]struct {
		health disk.Health
		detail string
	}{
		"fine":       {disk.Health{Reads: true}, ""},
		"read":       {disk.Health{ReadStalled: 7 * time.Second}, "a read has hung for 7s"},
		"write":      {disk.Health{Reads: true, WriteStalled: 61 * time.Second}, "a write has hung for 1m1s"},
		"both":       {disk.Health{ReadStalled: 7 * time.Second, WriteStalled: time.Minute}, "a read has hung"},
		"put off":    {disk.Health{}, "reads failed repeatedly"},
		"dormant":    {disk.Health{Reads: true, Dormant: 20, DormantCause: "profile 01: EIO"}, "20 entries are kept but not served"},
		"and full":   {disk.Health{State: disk.StateFull, Reads: true, Dormant: 20, DormantCause: "profile 01: EIO"}, "full since"},
		"and paused": {disk.Health{State: disk.StatePaused, ReadStalled: time.Minute}, "paused since"},
	} {
		got := diskTrouble(test.health)
		if !strings.HasPrefix(got, test.detail) || (got == "") != (test.detail == "") {
			t.Errorf("%s: %q", name, got)
		}
		if named := strings.Contains(got, test.health.DormantCause); !named {
			t.Errorf("%s: %q does not say why entries are dormant", name, got)
		}
	}
}

func TestALockedDiskIsExplainedOnce(t *testing.T) {
	h := disk.Health{State: disk.StateLocked, Cause: "/d: " + volume.ErrLocked.Error(), Since: time.Unix(0, 0).UTC()}
	if got, want := diskTrouble(h), "locked since 1970-01-01T00:00:00Z: serving from memory: /d: another process uses it"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestWhatIsBeingDemotedIsNotEvictable(t *testing.T) {
	p := tiering.PoolInfo{Name: "public", UsedBytes: 100, LeasedBytes: 1, PendingBytes: 2, QuarantinedBytes: 4, DemotingBytes: 8}
	want := memorySeries{"dram", "public", 1, 2, 4, 8}
	if held, pool := memoryOf("dram", &p); *held != want || pool.Evictable != 85 {
		t.Errorf("held %v, not %v; %d bytes are evictable, not 85", *held, want, pool.Evictable)
	}
}

func TestEveryStateOfTheDiskIsExplained(t *testing.T) {
	disk.States(func(s disk.State) {
		if (diskMeans[s] == "") != (s == disk.StateOK) {
			t.Errorf("%v: %q", s, diskMeans[s])
		}
	})
}

func TestPoolsOfDevicesAddUp(t *testing.T) {
	pool := func(place tier.Place, on tier.DeviceID, name string) tiering.PoolInfo {
		return tiering.PoolInfo{Name: name, Place: place, Device: on, CapacityBytes: 100, UsedBytes: 15, LeasedBytes: 1, PendingBytes: 2, QuarantinedBytes: 4, DemotingBytes: 8, Objects: 3}
	}
	totals := poolTotals([]tiering.PoolInfo{
		pool(tier.PlaceDRAM, 0, "public"), pool(tier.PlaceHBM, 1, "public"), pool(tier.PlaceHBM, 1, "private"), pool(tier.PlaceHBM, 2, "public"), pool(tier.PlaceHBM, 3, "public"),
	})
	if len(totals) != 3 || totals[0].UsedBytes != 15 || totals[2].UsedBytes != 15 {
		t.Fatalf("%+v", totals)
	}
	if got, want := totals[1], (tiering.PoolInfo{Name: "public", Place: tier.PlaceHBM, Device: 1, CapacityBytes: 300, UsedBytes: 45, LeasedBytes: 3,
		PendingBytes: 6, QuarantinedBytes: 12, DemotingBytes: 24, Objects: 9}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
