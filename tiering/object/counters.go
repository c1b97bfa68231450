package object

import (
	"errors"
	"sync/atomic"

	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// counters counts events since New.
type counters struct {
	Admitted     atomic.Uint64 `count:"admitted" prom:"object_admissions_total" help:"Objects accepted into the write queue of the object store."`
	Written      atomic.Uint64 `count:"written" prom:"object_written_total" help:"Objects written to the object store."`
	WrittenBytes atomic.Uint64 `count:"written_bytes" prom:"fetch_bytes_total,tier=object,direction=in"`
	StoredBytes  atomic.Uint64 `count:"stored_bytes" prom:"object_stored_bytes_total" help:"Bytes uploaded to the object store by completed writes, after coding and with headers and padding."`
	There        atomic.Uint64 `count:"there" prom:"object_there_total" help:"Queued objects that did not have to be written, because the bucket already had them."`
	WriteErrors  atomic.Uint64 `count:"write_errors" prom:"object_errors_total,operation=write" help:"Failures of the object store, by operation: write (objects not written), list (listings of the bucket that failed), any (requests that failed because the server was unavailable, which includes most of the others)."`
	ListErrors   atomic.Uint64 `count:"list_errors" prom:"object_errors_total,operation=list"`
	Failed       atomic.Uint64 `count:"failed" prom:"object_errors_total,operation=any"`

	RefusedExists   atomic.Uint64 `count:"refused_exists" prom:"object_refusals_total,reason=exists" help:"Objects not accepted into the write queue of the object store, by reason: exists (in the bucket or queued already), busy (queue full, or the bucket is not listed yet), full (no room in the bucket's prefix or on the server), state (circuit breaker open, or shutting down)."`
	RefusedBusy     atomic.Uint64 `count:"refused_busy" prom:"object_refusals_total,reason=busy"`
	RefusedFull     atomic.Uint64 `count:"refused_full" prom:"object_refusals_total,reason=full"`
	RefusedState    atomic.Uint64 `count:"refused_state" prom:"object_refusals_total,reason=state"`
	BreakerOpenings atomic.Uint64 `count:"breaker_openings" prom:"object_breaker_openings_total" help:"Times that the circuit breaker of the object store opened, because too many requests in a row had failed. While it is open, the server is not asked."`

	Asked     atomic.Uint64 `count:"asked" prom:"object_finds_total,result=asked" help:"Lookups sent to the object store for single objects: asked (all), found, absent. Invalid objects and failed lookups are only in asked."`
	Found     atomic.Uint64 `count:"found" prom:"object_finds_total,result=found"`
	Absent    atomic.Uint64 `count:"absent" prom:"object_finds_total,result=absent"`
	Read      atomic.Uint64 `count:"read" prom:"object_read_total" help:"Objects read from the object store."`
	ReadBytes atomic.Uint64 `count:"read_bytes" prom:"fetch_bytes_total,tier=object,direction=out"`
	Corrupt   atomic.Uint64 `count:"corrupt" prom:"corrupt_total,tier=object"`

	Passes       atomic.Uint64 `count:"passes" prom:"object_listings_total" help:"Completed listings of the bucket."`
	Expired      atomic.Uint64 `count:"expired" prom:"evictions_total,tier=object,reason=age"`
	Evicted      atomic.Uint64 `count:"evicted" prom:"evictions_total,tier=object,reason=room"`
	EvictedBytes atomic.Uint64 `count:"evicted_bytes" prom:"evicted_bytes_total,tier=object"`
	Foreign      atomic.Uint64 `count:"foreign"` // names in a listing that are not ours
}

// refused counts an object that was not admitted.
func (c *counters) refused(err error) {
	switch {
	case errors.Is(err, tier.ErrExists):
		c.RefusedExists.Add(1)
	case errors.Is(err, tier.ErrBusy):
		c.RefusedBusy.Add(1)
	case errors.Is(err, tier.ErrFull):
		c.RefusedFull.Add(1)
	default:
		c.RefusedState.Add(1)
	}
}

// Gauges are the current values of a Store.
type Gauges struct {
	Listed      uint64 `count:"known" prom:"object_known" help:"Objects believed to be in the object store."`
	Held        uint64 `count:"held" prom:"object_bytes" help:"Bytes in the bucket under the configured prefix: the total of the last listing plus what this node has written since."`
	QueuedBytes uint64 `count:"queued_bytes" prom:"object_queued_bytes" help:"Bytes of objects queued for or being written to the object store."`
	Queued      uint64 `count:"queued" prom:"object_queued" help:"Objects queued for or being written to the object store."`
	Requests    uint64 `count:"requests" prom:"object_requests_total" help:"HTTP requests sent to the object store, including retries."`
	CutShards   uint64 `count:"cut_shards" prom:"object_index_cut" help:"Parts, of 256, of the in-memory index of the bucket that are too small for all listed objects. Objects missing in the index cost a request to look up."`
}

// Gauges returns the current values of a Store.
func (s *Store) Gauges() Gauges {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return Gauges{
		Listed: uint64(s.index.size()), Held: uint64(s.room.held()), QueuedBytes: uint64(s.queue.bytes), Queued: uint64(s.queue.objs),
		Requests: s.client.transport.requests.Load(), CutShards: uint64(s.index.cut.Load()),
	}
}

// Counters returns pointers to the structs of all counters and gauges, always of the same
// types. The caller must not modify the counters.
func (s *Store) Counters() []any {
	g := s.Gauges()
	return []any{&s.counters, &g}
}

// Counts calls f with the name and value of each counter and gauge.
func (s *Store) Counts(f func(name string, value uint64)) {
	metric.Each(&s.counters, f)
	g := s.Gauges()
	metric.Each(&g, f)
}
