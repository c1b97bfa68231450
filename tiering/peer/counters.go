package peer

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/tiering/metric"
)

// Counters counts events since New.
type Counters struct {
	Finds     uint64 `count:"finds" prom:"peer_asked_total" help:"Objects that peers were asked for."`
	Found     uint64 `count:"found" prom:"peer_found_total" help:"Objects that a peer had."`
	Absent    uint64 `count:"absent" prom:"peer_absent_total" help:"Objects that no peer had, although the index said so."`
	Read      uint64 `count:"read" prom:"peer_read_total" help:"Objects read from peers."`
	ReadBytes uint64 `count:"read_bytes" prom:"fetch_bytes_total,tier=peer,direction=in"`
	// Total time of all reads.
	ReadNanos uint64 `count:"read_nanos"`
	Failovers uint64 `count:"failovers" prom:"peer_failovers_total" help:"Reads that another peer went on with."`
	Failures  uint64 `count:"failures" prom:"peer_failures_total" help:"Requests that a peer did not answer, or too slowly."`
	Openings  uint64 `count:"breaker_openings" prom:"peer_breaker_openings_total" help:"How often a peer failed so often that it was left alone."`
	Silences  uint64 `count:"silences" prom:"peer_silences_total" help:"How often a peer stopped answering and was suspected until it answered again."`
	Corrupt   uint64 `count:"corrupt" prom:"corrupt_total,tier=peer"`
	Learns    uint64 `count:"learns" prom:"peer_learns_total" help:"Questions to peers who holds what, by a node that does not know all sets yet."`
	Learnt    uint64 `count:"learnt" prom:"peer_learnt_total" help:"Objects that a peer said somebody holds, to a node that did not know."`
}

type counts struct {
	duration prometheus.Histogram // of reads

	finds, found, absent, read, readBytes, readNanos, failovers, failures, openings, silences, corrupt, learns, learnt atomic.Uint64
}

// Counters returns a snapshot.
func (p *Peers) Counters() Counters {
	c := &p.counts
	return Counters{
		Finds: c.finds.Load(), Found: c.found.Load(), Absent: c.absent.Load(), Read: c.read.Load(), ReadBytes: c.readBytes.Load(),
		ReadNanos: c.readNanos.Load(), Failovers: c.failovers.Load(), Failures: c.failures.Load(), Openings: c.openings.Load(), Silences: c.silences.Load(), Corrupt: c.corrupt.Load(),
		Learns: c.learns.Load(), Learnt: c.learnt.Load(),
	}
}

func newDuration() prometheus.Histogram {
	return metric.Durations{
		Name: "peer_read_duration_seconds", Help: "Time that objects took which were read from other members, from the first question to the last byte, compared with its digests.",
	}.New()
}

// Durations returns the histograms of reads.
func (p *Peers) Durations() []prometheus.Histogram { return []prometheus.Histogram{p.counts.duration} }

// MemberInfo describes a member.
type MemberInfo struct {
	Node           Node
	Addr           string
	TLS            bool
	RoundTrip      time.Duration // measured time of a find; 0 = not measured yet
	BytesPerSecond float64       // measured rate; 0 = not measured yet
	QueuedBytes    int64         // requested and not received yet
	Reads          int           // copies being read
	Open           bool          // not asked now: it failed, and is asked again at LeftAlone, or it is silent
	LeftAlone      time.Time
}

// Members lists the members by number.
func (p *Peers) Members() (list []MemberInfo) {
	now := p.cfg.Now()
	for _, m := range *p.table.Load() {
		if m == nil {
			continue
		}
		info := MemberInfo{Node: m.Node, Addr: m.Addr, TLS: m.TLS != nil, QueuedBytes: m.queued.Load(), Reads: int(m.reads.Load())}
		info.RoundTrip, info.BytesPerSecond = m.speed.get()
		if until := m.until.Load(); until > now.UnixNano() {
			info.Open, info.LeftAlone = true, time.Unix(0, until)
		}
		info.Open = info.Open || m.silent.Load()
		list = append(list, info)
	}
	return list
}
