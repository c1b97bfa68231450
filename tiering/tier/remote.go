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
	// Base is a checkpoint on this node that the wanted one may extend: the checkpoint
	// found may begin there. Zero = none.
	Base Name
	// Mark is set by a Preparer for its own Hint; 0 = none.
	Mark uint64
}

// Hint is an estimate, made from memory alone, of an object outside this node.
type Hint struct {
	Place Place // PlaceObject or PlacePeer; zero means PlacePeer
	// Latency is the expected time to the first byte, and BytesPerSecond the rate after
	// it. Both include what is queued for that source. 0 = unknown.
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
	// Hint reports whether an object is believed to be there. A wrong or old hint costs a
	// miss. It reads memory only, never waits and never calls back, since the store calls
	// it under its lock.
	Hint(w *Want) (Hint, bool)
	// Find looks up objects, in one round trip for those of one source. It returns one
	// row per want, nil where no source had the object. The caller closes the other rows.
	// The error concerns the query as a whole: ErrBusy, ErrUnavailable, or the context's.
	// Find checks only that a source names what was asked for, in a shape that the
	// profile allows. Callers must not trust anything else that it claims.
	Find(ctx context.Context, wants []Want) ([]Copy, error)
}

// Preparer is a Remote whose Hint waits less for memory if it learns beforehand what will
// be asked.
type Preparer interface {
	Remote
	// Prepare is called under the same conditions as Hint. It may set the marks that are
	// passed to Hint.
	Prepare(wants []Want)
}

// Learner is a Remote that for a while, as after a start, does not know everything its
// sources hold, and can ask one that does.
type Learner interface {
	Remote
	// Learning reports whether there may be more than is hinted. It reads memory only.
	Learning() bool
	// Learn asks one source which nodes hold objects without a hint, in one round trip of
	// bounded time. Hint and Find know the answers for a while. An object without an
	// answer counts as held by no node.
	Learn(ctx context.Context, wants []Want)
}

// Copy is an object at one source, pinned to that source's digests. The bytes that two
// nodes hold under one name may differ in rounding and are never mixed.
type Copy interface {
	// Entry returns what the source holds. Level and Generation are meaningless.
	Entry() *Entry
	// Read fills the memory of each rank and checks the bytes against the digests that it
	// returns. If the source fails, Read may continue with another one that has the same
	// digests. ErrCorrupt: the bytes were wrong, and the source is not asked for them
	// again for a while. ErrGone: no source has them any more. ErrUnavailable: they
	// cannot be read now. After an error the contents of the memory are undefined.
	Read(ctx context.Context, dst []gpuipc.Ref) (*Content, error)
	// Close releases the copy. It is called once, after Read has returned.
	Close()
}

// Placed is a Copy that reports where it is. A Copy without it is at a peer.
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
