package daemon

import (
	"testing"

	"github.com/spliced-kv/spliced/daemon/settings"
)

func TestPoliciesAndPriorsReachTheStore(t *testing.T) {
	c := settings.Default()
	c.Eviction, c.EvictionPrivate, c.AdviseMemory, c.PrefillSpeed, c.MemoryBandwidth = "gdsf", "lru", 0, 1000, 4*settings.GiB
	d := &Daemon{config: c}
	got := d.storeConfig()
	if got.Advise.Bytes >= 0 || got.EvictionPublic != nil || got.EvictionPrivate == nil || got.Eviction == nil {
		t.Errorf("%+v", got)
	}
	if ms := got.Cost.Prefill.Millis(0, 1000); ms < 1000 || ms > 1100 {
		t.Errorf("1000 tokens at 1000 a second take %v ms", ms)
	}
	if got.Cost.DRAMBytesPerSecond != 4*float64(settings.GiB) || got.Cost.DiskBytesPerSecond != 0 {
		t.Errorf("%+v", got.Cost)
	}
}
