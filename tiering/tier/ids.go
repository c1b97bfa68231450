package tier

// ProfileID numbers a registered profile for the life of a Store; 0 is none.
type ProfileID uint32

// TenantID numbers a tenant of the configuration.
type TenantID uint32

// LeaseID names a lease. Ids come from one sequence and are never reused.
type LeaseID uint64

// ReservationID names one rank's share of an object being filled.
type ReservationID uint64

// CheckpointKind says how a checkpoint's values were computed; as a set of bits
// it says which kinds a request accepts.
type CheckpointKind uint8

// An Exact checkpoint is what full prefill gives; a Spliced one went through
// the composition of segments. One of Rows is exact and has no states: they are
// rebuilt from its rows, behind those of the checkpoint that it extends, or zero ones.
const (
	Exact   CheckpointKind = 1
	Spliced CheckpointKind = 2
	Rows    CheckpointKind = 4

	AnyKind = Exact | Spliced | Rows
)

// Kinds are all there are, in the order in which they are preferred.
var Kinds = [...]CheckpointKind{Exact, Rows, Spliced}

// Before says that a hit of kind k is preferred to one of kind other.
func (k CheckpointKind) Before(other CheckpointKind) bool {
	return k&(Exact|Rows) != 0 && other == Spliced || k == Exact && other != Exact
}

// Extends are the kinds of checkpoints that one of kind k may extend.
func (k CheckpointKind) Extends() CheckpointKind {
	if k == Spliced {
		return AnyKind
	}
	return Exact | Rows
}

// DeviceID numbers the accelerators of a store, from 1; 0 is none.
type DeviceID uint32

// Place is the tier that an object lies in.
type Place uint8

// The places, from the fastest. The numbers are those of the local protocol, in which what
// lies in an object store is told as PlacePeer: to an engine both are beyond the node, with
// a hint that may be wrong.
const (
	PlaceNone Place = 0
	PlaceHBM  Place = 1
	PlaceDRAM Place = 2
	PlaceDisk Place = 3
	PlacePeer Place = 4 // beyond this node: a hint, which may be wrong

	PlaceObject Place = 5 // of hints and counters only: a store that nodes share
)
