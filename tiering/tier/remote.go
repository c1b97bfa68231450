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
	// Base is a checkpoint that this node has and that the wanted one may extend: what is
	// found may begin there. Zero = none.
	Base Name
	// Mark is what a Preparer has left for its Hint; 0 = nothing.
	Mark uint64
}

// Hint is what is believed of an object that lies beyond this node, from memory alone.
type Hint struct {
	Place Place // PlaceObject, or PlacePeer, which zero stands for
	// Latency is expected until the first byte, BytesPerSecond from then on, what is
	// queued for that source included. 0 = not known.
	Latency        time.Duration
	BytesPerSecond float64
}

// assumedBytes stands for an object's size where it is not known (a guess).
const assumedBytes = 1 << 20

// expected is how long fetching an object of some size takes; 0 = not known.
func (h Hint) expected() time.Duration {
	if h.BytesPerSecond <= 0 {
		return h.Latency
	}
	return h.Latency + time.Duration(assumedBytes/h.BytesPerSecond*float64(time.Second))
}

// Remote is where objects may lie beyond this node: its peers, or a store that all
// nodes share. All methods may run at once.
type Remote interface {
	// Hint tells whether an object is believed to lie there. It may be wrong or old:
	// that costs a miss. It looks at memory only, never waits and never calls back: the
	// store calls it under its lock.
	Hint(w *Want) (Hint, bool)
	// Find asks for objects, in one round trip for those that one source has. It gives
	// one row per want, nil for what nobody had; rows that are not nil are to be closed.
	// An error is of the query as a whole: ErrBusy, ErrUnavailable, or the context's.
	// Nothing that a source says is trusted beyond its checks here: what it names is what
	// was asked for, of a shape that the profile has.
	Find(ctx context.Context, wants []Want) ([]Copy, error)
}

// Preparer is a Remote whose Hint waits for memory less if it was told before what it is
// going to be asked for.
type Preparer interface {
	Remote
	// Prepare is called as Hint is. It may set the wants' marks, with which Hint is asked.
	Prepare(wants []Want)
}

// Learner is a Remote that does not know for a while what all of its sources hold, as
// after a start, and can ask one that does.
type Learner interface {
	Remote
	// Learning tells whether there may be more than is hinted. It looks at memory only.
	Learning() bool
	// Learn asks one source who holds objects that are not hinted, in one round trip whose
	// time is bounded, so that Hint and Find know of them for a while. What could not be
	// learnt is as if nobody held it.
	Learn(ctx context.Context, wants []Want)
}

// Copy is an object at one source, pinned to that source's digests: two nodes' bytes of
// one name may differ in rounding, and are never mixed.
type Copy interface {
	// Entry is what the source holds. Level and Generation say nothing.
	Entry() *Entry
	// Read fills the memory of each rank with the bytes, checked against the digests it
	// gives. If its source fails another one with the same digests may go on. ErrCorrupt:
	// they were wrong, and the source is not asked for them again soon. ErrGone: nobody
	// has them any more. ErrUnavailable: they cannot be read now. After an error the
	// memory holds anything.
	Read(ctx context.Context, dst []gpuipc.Ref) (*Content, error)
	// Close forgets it. It is called once, after Read has returned.
	Close()
}

// Placed is a Copy that says where it lies; others are a peer's.
type Placed interface{ Place() Place }

// PlaceOf is where what a promotion reads lies; nil is an entry of the lower tier.
func PlaceOf(c Copy) Place {
	if c == nil {
		return PlaceDisk
	}
	if at, ok := c.(Placed); ok {
		return at.Place()
	}
	return PlacePeer
}
