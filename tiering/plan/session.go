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
	HBM    []*Device // accelerators
	Now    func() time.Time
	// Took is called with the time that plans of all layers, and replays, took in memory;
	// nil = no listener.
	Took func(Scope, Timing)

	buffers                                               atomic.Int64 // currently open
	buffersOpened, flushes                                atomic.Uint64
	rowsAppended, rowsAccepted, rowsDropped, rowsReplayed atomic.Uint64
}

// Timing is the time of a plan: its segments in all linear layers, their rows in all
// attention layers, or the replay of some rows. 0 = there was nothing to do.
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
		closed  error // returned by calls after Close
	}
}

// NewSession starts a session.
func (r *Runner) NewSession(s Store) *Session {
	out := &Session{runner: r, store: s}
	out.mu.buffers = map[tier.LeaseID]*buffer{}
	return out
}

// PlaceOf returns the place of a lease or a buffer; PlaceNone if the session has neither
// with this id.
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

// PlaceOfPlan returns where a plan would run: where all its leases are. Other memory
// passed to Compose, Rotate and Assemble must be there as well. ErrInvalid: some leases
// are in HBM and some in memory. PlaceNone: the plan has no lease of this session; it
// then runs where its result is written.
func (s *Session) PlaceOfPlan(from From, pl *Plan) (tier.Place, error) {
	d, err := s.store.On(pl.leases(from))
	if err != nil || d == nil {
		return tier.PlaceNone, err
	}
	return d.Place, nil
}

// deviceOf returns the device whose memory a region is.
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

// Counters counts plans in memory, and events of buffers, since the start.
type Counters struct {
	Composed  uint64 `count:"composed" prom:"kernels_total,kind=compose,tier=dram" help:"Requests computed by kind, and by the tier whose memory they read."`
	Rotated   uint64 `count:"rotated" prom:"kernels_total,kind=rotate,tier=dram"`
	Assembled uint64 `count:"assembled" prom:"kernels_total,kind=assemble,tier=dram"`

	// Buffers of rows that are open now. Rows appended = accepted + dropped + those
	// drafted now, and those of buffers that ended with drafts.
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
