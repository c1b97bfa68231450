package objects

import "github.com/spliced-kv/spliced/tiering/tier"

// Identity names an object independently of its tier.
type Identity struct {
	Name    tier.Name
	Profile *Profile
	Tenant  *Tenant
}

// CopyKey names one rank's copy of an object on a device.
type CopyKey struct {
	Identity
	Rank   int
	Device tier.DeviceID
}

// Identity returns the identity of an object. A copy has the identity of its original.
func (o *Object) Identity() Identity { return Identity{o.Label(), o.Profile, o.Tenant} }

// resident lists the copies in HBM of one object, at least one. Guarded by the store's lock.
//
// Invariant: while the object is whole in memory, Source is the object, and its Resident
// points to this resident. Otherwise Source is nil.
type resident struct {
	Identity
	Source     *Object
	generation uint64 // generation of the lower tier's entry, while Source is nil
	Copies     []Copy // at most one per rank and device, in no order
}

// Copy is one rank's copy of an object.
type Copy struct {
	*Object
	Rank int
	From []uint64 // digests of the object's share at the time of the copy
}

// On returns the copy of a rank on a device; nil = none.
func (r *resident) On(d tier.DeviceID, rank int) *Object {
	if r == nil {
		return nil
	}
	for i := range r.Copies {
		if c := &r.Copies[i]; c.Rank == rank && c.Pool.Device.ID == d {
			return c.Object
		}
	}
	return nil
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
