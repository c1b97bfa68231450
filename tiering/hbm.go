package tiering

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
)

// HBM puts the memory of an accelerator above the store: an inclusive cache of
// what lies in memory or in the lower tier. The zero value of a field that is not
// marked required takes the default that is named with it.
type HBM struct {
	Device gpuipc.Accelerator // required; closed by its owner, after the store
	Way    gpuipc.Way         // how its region is to reach clients; 0 = the device's choice

	// Budgets in bytes, rounded down to whole pages: of segments, and of
	// checkpoints and the rows of buffers. One may be 0.
	PublicBytes  int64
	PrivateBytes int64
	PageBytes    int // as Config's; 64 KiB

	Promotions int // into HBM at once; 2 (a guess: one copies while the next is checked)
	Queue      int // promotions into HBM that are wanted or running; 4096
	// AfterMatch promotes what a match finds in memory for the ranks whose engines
	// are attached, see Store.AttachEngine. A guess takes free room only.
	AfterMatch bool
}

// DeviceArena is the region that extents of leases in HBM refer to; nil without
// HBM. It is the same for the life of the store.
func (s *Store) DeviceArena() gpuipc.SharedRegion { return nil }

// AttachEngine says that an engine of one rank of a profile reads HBM, until
// detach, which may be called again.
func (s *Store) AttachEngine(id ProfileID, rank int) (detach func(), err error) {
	return nil, fmt.Errorf("attach an engine: %w", ErrUnavailable)
}

// AcquireResident is Acquire of copies in HBM for the query's rank: rows have
// PlaceHBM and extents of DeviceArena. What has no copy there begins to be promoted
// and is a miss that is Promoting. ErrUnavailable: there is no HBM.
func (c *Session) AcquireResident(q *AcquireQuery, dst []Acquired) ([]Acquired, error) {
	return dst, fmt.Errorf("acquire in HBM: %w", ErrUnavailable)
}

// AwaitAcquireResident is AcquireResident that waits for promotions until ctx ends,
// as AwaitAcquire.
func (c *Session) AwaitAcquireResident(ctx context.Context, q *AcquireQuery, dst []Acquired) ([]Acquired, error) {
	return c.AcquireResident(q, dst)
}

// LoadResident is Load of a copy in HBM. It is one node: the states of the
// checkpoint, and the rows of its whole chain, as profile.CheckpointLayout(Tokens).
func (c *Session) LoadResident(q *LoadQuery) (Loaded, error) {
	return Loaded{}, fmt.Errorf("load in HBM: %w", ErrUnavailable)
}

// AwaitLoadResident is LoadResident that waits, as AwaitAcquireResident.
func (c *Session) AwaitLoadResident(ctx context.Context, q *LoadQuery) (Loaded, error) {
	return c.LoadResident(q)
}

// NeedsHBMPromotion tells whether AwaitAcquireResident would have to wait. It looks
// at memory only.
func (s *Store) NeedsHBMPromotion(q *AcquireQuery) bool { return false }

// LoadNeedsHBMPromotion tells the same of AwaitLoadResident.
func (s *Store) LoadNeedsHBMPromotion(q *LoadQuery) bool { return false }

// LeasePlace is where the memory of a lease or a buffer of the session lies; false
// when it has neither of that id.
func (c *Session) LeasePlace(id LeaseID) (Place, bool) { return PlaceNone, false }

// PlanPlace is where a plan is carried out: where all its leases lie. ErrInvalid: in
// HBM and in memory. PlaceNone: it has no lease of this session.
func (c *Session) PlanPlace(from From, pl *Plan) (Place, error) { return PlaceNone, nil }
