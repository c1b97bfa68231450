package simulate

import (
	"time"
)

// Report is the result of a run. Bytes are per node: the mean of the sampled nodes.
type Report struct {
	Nodes     int     `json:"nodes"`
	Segments  int     `json:"segments_per_node"`
	Sampled   int     `json:"sampled"`
	Churn     float64 `json:"churn_per_minute"`
	Seed      uint64  `json:"seed"`
	Sets      int64   `json:"own_set_bytes"`
	First     CatchUp `json:"first_start"`
	Parts     []Part  `json:"parts"`
	Restarted CatchUp `json:"restarted"`
	Use       []Use   `json:"restarted_of_use"`
	Seconds   float64 `json:"run_seconds"`
}

// Part is one part of a run.
type Part struct {
	Name string `json:"name"`
	// BytesPerSecond is the traffic of a node in each direction. A node asks as often as it is
	// asked, so it receives as many answer bytes as it sends, and the same holds for requests.
	BytesPerSecond     float64 `json:"bytes_per_second_each_way"`
	ExchangesPerSecond float64 `json:"exchanges_per_second"`    // exchanges that a node starts; it answers the same number
	AnswerBytes        float64 `json:"answer_bytes_per_second"` // bytes of the deltas in these exchanges, without protocol overhead
	IndexBytes         int64   `json:"index_bytes"`             // largest index of all sampled nodes
	IndexKeys          int64   `json:"index_keys"`
	BitsPerKey         float64 `json:"index_bits_per_key"`

	VisibleP50    float64 `json:"visible_p50_seconds"` // time until one node knows a new segment
	VisibleP99    float64 `json:"visible_p99_seconds"`
	EverywhereP99 float64 `json:"everywhere_p99_seconds"` // time until the last of the sampled nodes knows it
	EverywhereMax float64 `json:"everywhere_max_seconds"`
	NewSegments   int64   `json:"new_segments"`

	HitsLost       float64 `json:"hits_lost"`        // share of lookups of existing segments for which the index named no node that has it
	RecentHitsLost float64 `json:"recent_hits_lost"` // the same, of segments added in the last minute
	Vain           float64 `json:"vain"`             // share of lookups of existing segments for which the index named nodes, but none that has it
	False          float64 `json:"false_peers"`      // share of absent keys for which the index named a node
	Departed       float64 `json:"departed_named"`   // the same, of keys removed everywhere in the last minute
	Lookups        int64   `json:"lookups"`

	// Time of a lookup of 32 absent keys, measured on this machine.
	Lookup32    float64 `json:"lookup_32_seconds"`
	Lookup32P99 float64 `json:"lookup_32_p99_seconds"`

	ApplyCPU    float64 `json:"apply_cpu_share"` // of a core, on this machine
	ApplyErrors int     `json:"apply_errors"`
}

// CatchUp is the times after which a node that started empty has read all sets.
type CatchUp struct {
	Half           float64 `json:"half_seconds"` // half of the keys are known
	Most           float64 `json:"most_seconds"` // 99 % of them
	All            float64 `json:"all_seconds"`
	Bytes          int64   `json:"bytes_read"`
	BytesPerSecond float64 `json:"bytes_per_second"`
}

// Use is the share of hits that a node finds some seconds after it started with an empty index.
type Use struct {
	Seconds   float64 `json:"seconds"`
	Alone     float64 `json:"hits_alone"` // share of existing segments for which its index names a holder
	Neighbour float64 `json:"hits_with_a_neighbour"`
}

func (c *cluster) catchUpOf(r *reader) CatchUp {
	u := r.catchUp
	v := CatchUp{Half: u.half.Seconds(), Most: u.most.Seconds(), All: u.all.Seconds(), Bytes: u.bytes}
	if u.all > 0 {
		v.BytesPerSecond = float64(u.bytes) / u.all.Seconds()
	}
	return v
}

func (c *cluster) summary(name string, before []traffic) Part {
	f := &c.figures
	p := Part{Name: name,
		VisibleP50: f.visible.at(0.5).Seconds(), VisibleP99: f.visible.at(0.99).Seconds(),
		EverywhereP99: f.everywhere.at(0.99).Seconds(), EverywhereMax: f.everywhere.max.Seconds(), NewSegments: f.everywhere.n,
		HitsLost: share(f.held.lost, f.held.asked), RecentHitsLost: share(f.recent.lost, f.recent.asked),
		Vain: share(f.held.vain, f.held.asked), False: share(f.absent.named, f.absent.asked), Departed: share(f.departed.named, f.departed.asked),
		Lookups: f.held.asked + f.recent.asked + f.absent.asked + f.departed.asked, ApplyErrors: f.errors,
	}
	seconds := (c.now - f.since).Seconds()
	steady, bytes, answers, exchanges, apply := 0.0, int64(0), int64(0), int64(0), time.Duration(0)
	for i, r := range c.readers {
		if !r.steady {
			continue
		}
		steady++
		bytes += r.traffic.sent + r.traffic.received - before[i].sent - before[i].received
		answers += r.traffic.answers - before[i].answers
		exchanges += r.traffic.exchanges - before[i].exchanges
		apply += r.apply
		p.IndexKeys = max(p.IndexKeys, r.index.Stats().Keys)
	}
	p.BytesPerSecond = float64(bytes) / steady / seconds
	p.AnswerBytes = float64(answers) / steady / seconds
	p.ExchangesPerSecond = float64(exchanges) / steady / seconds
	p.ApplyCPU = apply.Seconds() / steady / seconds
	first := c.readers[0].index
	p.Lookup32, p.Lookup32P99, _ = measureLookups(c.rand, func(tag uint64) bool { return first.Holders(tag, nil) > 0 })
	p.IndexBytes = f.indexBytes
	p.BitsPerKey = float64(p.IndexBytes) * 8 / float64(max(p.IndexKeys, 1))
	return p
}

func share(n, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}
