package tier

// ProfileID numbers a registered profile for the life of a Store; 0 is none.
type ProfileID uint32

// TenantID numbers a tenant of the configuration.
type TenantID uint32

// LeaseID names a lease. Ids come from one sequence and are never reused.
type LeaseID uint64

// ReservationID names one rank's share of an object being filled.
type ReservationID uint64

// CheckpointKind says how a checkpoint's values were computed. As a set of bits it lists
// the kinds that a request accepts.
type CheckpointKind uint8

// Exact is a checkpoint as a full prefill computes it. Spliced is a checkpoint whose prefix
// was composed of segments. Rows is exact but stores no states: a replay of its rows rebuilds
// them, beginning at the states of the checkpoint that it extends, or at zero states.
const (
	Exact   CheckpointKind = 1
	Spliced CheckpointKind = 2
	Rows    CheckpointKind = 4

	AnyKind = Exact | Spliced | Rows
)

// Kinds lists all kinds in order of preference.
var Kinds = [...]CheckpointKind{Exact, Rows, Spliced}

// Before reports whether a hit of kind k is preferred to a hit of the kind other.
func (k CheckpointKind) Before(other CheckpointKind) bool {
	return k&(Exact|Rows) != 0 && other == Spliced || k == Exact && other != Exact
}

// Extends returns the kinds of checkpoints that a checkpoint of kind k may extend.
func (k CheckpointKind) Extends() CheckpointKind {
	if k == Spliced {
		return AnyKind
	}
	return Exact | Rows
}

// DeviceID numbers the accelerators of a store, from 1; 0 is none.
type DeviceID uint32

// Place is the tier of an object.
type Place uint8

// The places, fastest first. The local protocol uses the same numbers. The protocol
// reports an object in an object store as PlacePeer, since for an engine both are remote
// and the hint may be wrong.
const (
	PlaceNone Place = 0
	PlaceHBM  Place = 1
	PlaceDRAM Place = 2
	PlaceDisk Place = 3
	PlacePeer Place = 4 // on another node; a hint that may be wrong

	PlaceObject Place = 5 // a store shared by nodes; used in hints and counters only
)

// HasHexPrefix reports whether the hex form of a key begins with the given digits. It compares digit
// by digit, so that a filter over many objects allocates no strings.
func HasHexPrefix(key *[32]byte, digits string) bool {
	if len(digits) > 2*len(key) {
		return false
	}
	for i := range len(digits) {
		nibble := key[i/2] >> 4
		if i%2 == 1 {
			nibble = key[i/2] & 15
		}
		if "0123456789abcdef"[nibble] != digits[i] {
			return false
		}
	}
	return true
}
