package objects

import (
	"slices"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Engines are those that read one rank's copies on one device.
type Engines struct {
	Rank   int
	Device *Device
	Count  int // above 0
}

// Attach counts an engine in, and detach out.
func (p *Profile) Attach(rank int, d *Device) {
	if i := p.engines(rank, d); i >= 0 {
		p.Engines[i].Count++
		return
	}
	p.Engines = append(p.Engines, Engines{rank, d, 1})
}

// Detach ends what Attach began.
func (p *Profile) Detach(rank int, d *Device) {
	i := p.engines(rank, d)
	if p.Engines[i].Count--; p.Engines[i].Count == 0 {
		p.Engines = slices.Delete(p.Engines, i, i+1)
	}
}

func (p *Profile) engines(rank int, d *Device) int {
	return slices.IndexFunc(p.Engines, func(e Engines) bool { return e.Rank == rank && e.Device == d })
}

// Reads tells whether what a client on a device asks for is read by some engines: by
// those of a rank that has engines on the client's own device only there. Groups of
// ranks are not told apart.
func (p *Profile) Reads(e *Engines, on tier.DeviceID) bool {
	return e.Device.ID == on || !slices.ContainsFunc(p.Engines, func(x Engines) bool { return x.Rank == e.Rank && x.Device.ID == on })
}

// Serves tells whether engines of a profile can read an object in HBM, as a client on a
// device sees it: ranks with engines on that device have their copies there, each other
// rank on one of the devices where it has engines. Where no engine has said which rank
// it is, any copy on the client's device will do.
func (r *resident) Serves(on tier.DeviceID) bool {
	if r == nil {
		return false
	}
	told := false
	for rank := range r.Profile.Ranks {
		switch engines, copied := r.rankServed(rank, on); {
		case engines && !copied:
			return false
		case engines:
			told = true
		}
	}
	if told {
		return true
	}
	for i := range r.Copies {
		if r.Copies[i].Pool.Device.ID == on {
			return true
		}
	}
	return false
}

// rankServed tells whether a rank has engines on devices that work, and a copy for them.
func (r *resident) rankServed(rank int, on tier.DeviceID) (engines, copied bool) {
	for i := range r.Profile.Engines {
		e := &r.Profile.Engines[i]
		if e.Rank != rank || e.Device.Lost {
			continue
		}
		has := r.On(e.Device.ID, rank) != nil
		if e.Device.ID == on {
			return true, has
		}
		engines, copied = true, copied || has
	}
	return engines, copied
}
