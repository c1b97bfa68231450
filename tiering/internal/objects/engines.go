package objects

import (
	"slices"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Engines counts the engines of one rank that read copies on one device.
type Engines struct {
	Rank   int
	Device *Device
	Count  int // above 0
}

// Attach adds an engine of a rank that reads a device. p.Engines stays sorted by rank.
func (p *Profile) Attach(rank int, d *Device) {
	if i := p.engines(rank, d); i >= 0 {
		p.Engines[i].Count++
		return
	}
	at := slices.IndexFunc(p.Engines, func(e Engines) bool { return e.Rank > rank })
	if at < 0 {
		at = len(p.Engines)
	}
	p.Engines = slices.Insert(p.Engines, at, Engines{rank, d, 1})
}

// Detach removes an engine added by Attach.
func (p *Profile) Detach(rank int, d *Device) {
	i := p.engines(rank, d)
	if p.Engines[i].Count--; p.Engines[i].Count == 0 {
		p.Engines = slices.Delete(p.Engines, i, i+1)
	}
}

func (p *Profile) engines(rank int, d *Device) int {
	return slices.IndexFunc(p.Engines, func(e Engines) bool { return e.Rank == rank && e.Device == d })
}

// Reads reports whether engines e may read objects that a client on a device has matched.
// If the rank of e also has engines on the client's device, only those engines read them.
// Several engines with the same rank are not told apart by their group of ranks.
func (p *Profile) Reads(e *Engines, on tier.DeviceID) bool {
	return e.Device.ID == on || !slices.ContainsFunc(p.Engines, func(x Engines) bool { return x.Rank == e.Rank && x.Device.ID == on })
}

// Serves reports whether the engines of a profile can read an object in HBM, for a client
// on a device. A rank with engines on the client's device needs its copy on that device.
// Any other rank needs a copy on one of the devices that its engines are on. If no engine
// has announced its rank, a copy on the client's device is enough.
func (r *resident) Serves(on tier.DeviceID) bool {
	if r == nil {
		return false
	}
	told := false
	for engines := r.Profile.Engines; len(engines) > 0; {
		n := 1
		for n < len(engines) && engines[n].Rank == engines[0].Rank {
			n++
		}
		switch work, copied := r.served(engines[:n], on); {
		case work && !copied:
			return false
		case work:
			told = true
		}
		engines = engines[n:]
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

// served reports whether engines of one rank are on working devices, and whether these
// devices have the copy that they need.
func (r *resident) served(engines []Engines, on tier.DeviceID) (work, copied bool) {
	for i := range engines {
		e := &engines[i]
		if e.Device.Lost {
			continue
		}
		has := r.On(e.Device.ID, e.Rank) != nil
		if e.Device.ID == on {
			return true, has
		}
		work, copied = true, copied || has
	}
	return work, copied
}
