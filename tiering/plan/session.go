package plan

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Runner runs the plans of all sessions, and counts them.
type Runner struct {
	Memory *Device
	HBM    []*Device // accelerators, in the order of their ids
	Now    func() time.Time
	// Took is called with the time of each plan of all layers, and of each replay, that
	// ran in memory; nil = no listener.
	Took func(Scope, Timing)

	buffers                                               atomic.Int64 // currently open
	buffersOpened, flushes                                atomic.Uint64
	rowsAppended, rowsAccepted, rowsDropped, rowsReplayed atomic.Uint64
}

// Timing is the time that a plan took. Compose is the time to compose as many segments as
// Segments says, in all linear layers. Rotate is the time to rotate as many rows as Rows
// says, in all attention layers. Replay is the time to replay as many rows as Replayed says.
// 0 = the plan did no such work.
type Timing struct {
	Segments, Rows  int
	Compose, Rotate time.Duration
	Replayed        int
	Replay          time.Duration
}

// Session carries out the plans of one session of the store and owns its buffers.
type Session struct {
	runner *Runner
	store  Store

	mu struct {
		sync.Mutex
		buffers map[tier.LeaseID]*buffer
		opening int
		closed  error // the error of calls after Close; nil while open
	}
}

// NewSession starts a session.
func (r *Runner) NewSession(s Store) *Session {
	out := &Session{runner: r, store: s}
	out.mu.buffers = map[tier.LeaseID]*buffer{}
	return out
}

// PlaceOf returns the place of a lease or buffer; PlaceNone if the session has no lease or
// buffer with this id.
func (s *Session) PlaceOf(id tier.LeaseID) tier.Place {
	s.mu.Lock()
	b := s.mu.buffers[id]
	s.mu.Unlock()
	if b != nil {
		return b.on.Place
	}
	if d, err := s.store.On([]tier.LeaseID{id}); err == nil && d != nil {
		return d.Place
	}
	return tier.PlaceNone
}

// PlaceOfPlan returns the place where a plan would run: the place of all its leases. Other
// memory passed to Compose, Rotate and Assemble must be there as well. The error is
// ErrInvalid if some leases are in HBM and some in memory. The result is PlaceNone if the
// plan has no lease of this session; it then runs where its result is written.
func (s *Session) PlaceOfPlan(from From, pl *Plan) (tier.Place, error) {
	d, err := s.store.On(pl.leases(from))
	if err != nil || d == nil {
		return tier.PlaceNone, err
	}
	return d.Place, nil
}

// deviceOf returns the device that has the memory of a region.
func (r *Runner) deviceOf(region gpuipc.Region) *Device {
	if shared, ok := region.(gpuipc.SharedRegion); ok {
		for _, d := range r.HBM {
			if d.Batch.UUID() == shared.Device() {
				return d
			}
		}
	}
	return r.Memory
}

// Counters counts plans that ran in memory, and events of buffers, since the start.
type Counters struct {
	Composed  uint64 `count:"composed" prom:"kernels_total,kind=compose,tier=dram" help:"Compute requests of engines that succeeded, by kind (compose, rotate, assemble or replay) and by the tier whose memory they read."`
	Rotated   uint64 `count:"rotated" prom:"kernels_total,kind=rotate,tier=dram"`
	Assembled uint64 `count:"assembled" prom:"kernels_total,kind=assemble,tier=dram"`

	// Buffers is the number of open buffers. RowsAppended is the sum of RowsAccepted,
	// RowsDropped, the rows drafted now, and the drafts that were left when their buffers ended.
	Buffers       uint64 `count:"buffers"`
	BuffersOpened uint64 `count:"buffers_opened"`
	RowsAppended  uint64 `count:"buffer_rows_appended"`
	RowsAccepted  uint64 `count:"buffer_rows_accepted"`
	RowsDropped   uint64 `count:"buffer_rows_dropped"`
	Replayed      uint64 `count:"replayed" prom:"kernels_total,kind=replay,tier=dram"`
	RowsReplayed  uint64 `count:"buffer_rows_replayed"`
	BufferFlushes uint64 `count:"buffer_flushes"`
}

// Ran counts the plans that succeeded on an accelerator. They are not included in
// Counters.
type Ran struct {
	Composed  uint64 `count:"composed" prom:"kernels_total,kind=compose,tier=hbm"`
	Rotated   uint64 `count:"rotated" prom:"kernels_total,kind=rotate,tier=hbm"`
	Assembled uint64 `count:"assembled" prom:"kernels_total,kind=assemble,tier=hbm"`
	Replayed  uint64 `count:"replayed" prom:"kernels_total,kind=replay,tier=hbm"`
}

// Ran returns a snapshot of the device's counts.
func (d *Device) Ran() Ran {
	return Ran{d.composed.Load(), d.rotated.Load(), d.assembled.Load(), d.replayed.Load()}
}

// Counters returns a snapshot.
func (r *Runner) Counters() Counters {
	m := r.Memory
	return Counters{
		Composed: m.composed.Load(), Rotated: m.rotated.Load(), Assembled: m.assembled.Load(), Replayed: m.replayed.Load(),
		Buffers: uint64(r.buffers.Load()), BuffersOpened: r.buffersOpened.Load(), BufferFlushes: r.flushes.Load(),
		RowsAppended: r.rowsAppended.Load(), RowsAccepted: r.rowsAccepted.Load(),
		RowsDropped: r.rowsDropped.Load(), RowsReplayed: r.rowsReplayed.Load(),
	}
}
