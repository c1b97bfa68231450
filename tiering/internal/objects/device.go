package objects

import (
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Device is the memory of one accelerator and its accounts. The fields of the first group
// are fixed. The store's lock guards the others.
type Device struct {
	ID        tier.DeviceID
	arena     gpuipc.Region
	pageBytes int
	Pools     [PoolCount]*Pool

	Pages    *gpuipc.PageAllocator
	Counters stats.HBM
	Lost     bool // the device is no longer usable, or never was
}

// OpenDevice adds the memory of an accelerator: its pages, and the budgets of its two
// pools, which must be whole pages. Device ids follow the order of the calls, from 1.
func (s *Set) OpenDevice(arena gpuipc.Region, pageBytes int, public, private int64) *Device {
	if s.HBM == nil {
		s.HBM = &copies{Held: map[Identity]*resident{}}
	}
	s.HBM.Devices = append(s.HBM.Devices, nil)
	n := len(s.HBM.Devices)
	d := &Device{ID: tier.DeviceID(n), arena: arena, pageBytes: pageBytes, Pages: gpuipc.NewPageAllocator(public+private, pageBytes)}
	first := n * PoolCount
	d.Pools[PublicPool] = &Pool{Name: "public", Number: first + PublicPool, Device: d, Budget: public, Evict: s.cfg.EvictionPublic()}
	d.Pools[PrivatePool] = &Pool{Name: "private", Number: first + PrivatePool, Device: d, Budget: private, Evict: s.cfg.EvictionPrivate()}
	for _, t := range s.Tenants {
		t.Used = append(t.Used, make([]int64, PoolCount)...)
		if t.Evict != nil && t.Above == nil {
			t.Above = s.cfg.Eviction()
		}
	}
	s.HBM.Devices[n-1] = d
	return d
}

// Lose marks a device as lost, drops its copies and returns their number. The objects of
// all these copies are also in memory or the lower tier.
func (s *Set) Lose(d *Device) (copies int) {
	d.Lost = true
	d.Counters.Lost = 1
	for _, r := range s.HBM.Held {
		copies += s.dropCopies(r, stats.DropLost, func(c *Object) bool { return c.Pool.Device == d })
	}
	return copies
}

// PagesOf rounds the bytes of a copy up to whole pages.
func (d *Device) PagesOf(bytes int64) int64 {
	page := int64(d.pageBytes)
	return (bytes + page - 1) / page * page
}
