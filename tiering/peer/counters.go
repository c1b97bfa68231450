package peer

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/tiering/metric"
)

// Counters counts events since New.
type Counters struct {
	Finds     uint64 `count:"finds" prom:"peer_asked_total" help:"Objects for which other cluster members were asked."`
	Found     uint64 `count:"found" prom:"peer_found_total" help:"Objects that another cluster member was found to have."`
	Absent    uint64 `count:"absent" prom:"peer_absent_total" help:"Objects that no other cluster member had, although this node's index said so."`
	Read      uint64 `count:"read" prom:"peer_read_total" help:"Objects read completely from other cluster members."`
	ReadBytes uint64 `count:"read_bytes" prom:"fetch_bytes_total,tier=peer,direction=in"`
	// Total time of all reads.
	ReadNanos uint64 `count:"read_nanos"`
	Failovers uint64 `count:"failovers" prom:"peer_failovers_total" help:"Reads from a cluster member that another member continued after a failure."`
	Failures  uint64 `count:"failures" prom:"peer_failures_total" help:"Requests to other cluster members that failed or timed out."`
	Openings  uint64 `count:"breaker_openings" prom:"peer_breaker_openings_total" help:"Times that the circuit breaker of a cluster member opened, because too many requests to it in a row had failed. While it is open, the member is not asked."`
	Silences  uint64 `count:"silences" prom:"peer_silences_total" help:"Times that a cluster member stopped answering and nothing was fetched from it until it answered again."`
	Corrupt   uint64 `count:"corrupt" prom:"corrupt_total,tier=peer"`
	Learns    uint64 `count:"learns" prom:"peer_learns_total" help:"Requests to other cluster members about which members hold some objects, sent while this node's own index is incomplete."`
	Learnt    uint64 `count:"learnt" prom:"peer_learnt_total" help:"Objects for which a cluster member named a holder that this node's incomplete index did not have."`
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
		Name: "peer_read_duration_seconds", Help: "Duration in seconds of successful reads of objects from other cluster members, from the first request for bytes to the verification of the last digest.",
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
