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
