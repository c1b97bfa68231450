package tier

import (
	"context"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Want names an object that this node lacks.
type Want struct {
	Name
	Fingerprint profile.Fingerprint
	Tenant      TenantID
	// Base is a checkpoint on this node that the wanted checkpoint may extend. A source may
	// then return a checkpoint without the rows that Base covers. Zero = none.
	Base Name
	// Mark is a note that a Preparer sets for its own Hint; 0 = none.
	Mark uint64
}

// Hint says where outside this node an object probably is and how fast it can be fetched.
// It is an estimate from data in memory.
type Hint struct {
	Place Place // PlaceObject or PlacePeer; zero means PlacePeer
	// Latency is the expected time to the first byte, and BytesPerSecond the rate after
	// it. Both take transfers into account that are queued for that source. 0 = unknown.
	Latency        time.Duration
	BytesPerSecond float64
}

// assumedBytes is used as an object's size where the size is unknown (a guess).
const assumedBytes = 1 << 20

// expected returns the estimated time to fetch an object of assumedBytes; 0 = unknown.
func (h Hint) expected() time.Duration {
	if h.BytesPerSecond <= 0 {
		return h.Latency
	}
	return h.Latency + time.Duration(assumedBytes/h.BytesPerSecond*float64(time.Second))
}

// Remote is a place outside this node that may hold objects: its peers, or a store shared
// by all nodes. All methods may be called concurrently.
type Remote interface {
	// Hint reports whether an object is believed to be at the Remote. A wrong or old hint
	// costs a miss. Hint reads memory only, never waits and never calls the store, since the
	// store calls it under its lock.
	Hint(w *Want) (Hint, bool)
	// Find looks up objects, with one round trip to each source. It returns one row per
	// want; the row is nil if no source has the object. The caller closes all other rows.
	// An error concerns the whole query: ErrBusy, ErrUnavailable, or the error of ctx.
	// Find checks only that a source names the wanted object, in a shape that the profile
	// allows. Callers must not trust anything else that the source claims.
	Find(ctx context.Context, wants []Want) ([]Copy, error)
}

// Preparer is a Remote whose Hint is faster if the Remote knows beforehand which objects it
// will be asked for: it can then load the memory that Hint reads in advance.
type Preparer interface {
	Remote
	// Prepare is called under the same conditions as Hint. It may set the marks that are
	// passed to Hint.
	Prepare(wants []Want)
}

// Learner is a Remote that at times, as after a start, does not know all objects that its
// sources have. It can then ask a source that knows more.
type Learner interface {
	Remote
	// Learning reports whether the sources may have objects for which Hint has no hint
	// yet. It reads memory only.
	Learning() bool
	// Learn asks one source which nodes have objects for which there is no hint, in one
	// round trip of bounded duration. Hint and Find use the answers for a while. An object
	// that the source does not name counts as absent from all nodes.
	Learn(ctx context.Context, wants []Want)
}

// Copy is an object at one source, identified by that source's digests. The bytes that two
// nodes have under one name may differ in rounding and are never mixed.
type Copy interface {
	// Entry returns the entry of the object at the source. Its Level and Generation have
	// no meaning here.
	Entry() *Entry
	// Read fills the memory of each rank and checks the bytes against the digests that it
	// returns. If the source fails, Read may continue with another source that has the same
	// digests. Errors: ErrCorrupt if the bytes were wrong (the source is not asked for this
	// object again for a while), ErrGone if no source has it any more, ErrUnavailable if it
	// cannot be read now. After an error the contents of the memory are undefined.
	Read(ctx context.Context, dst []gpuipc.Ref) (*Content, error)
	// Close releases the copy. It is called once, after Read has returned.
	Close()
}

// Placed is implemented by a Copy that reports its place. Any other Copy is at a peer.
type Placed interface{ Place() Place }

// PlaceOf returns the place that a promotion reads from; a nil Copy means the lower tier.
func PlaceOf(c Copy) Place {
	if c == nil {
		return PlaceDisk
	}
	if at, ok := c.(Placed); ok {
		return at.Place()
	}
	return PlacePeer
}
