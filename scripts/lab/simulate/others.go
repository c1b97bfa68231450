package simulate

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/FastFilter/xorfilter"

	"github.com/spliced-kv/spliced/tiering/peer/index"
)

// Other is the cost of another way to find out which segments peers have, in the same cluster.
// The ways are only implemented as far as the measurement needs. Bytes are per node.
type Other struct {
	Way            string  `json:"way"`
	MemoryBytes    int64   `json:"memory_bytes"`
	BytesPerSecond float64 `json:"bytes_per_second_each_way"`
	// Lookup32 is the time of a lookup of 32 absent keys, measured on this machine. For the way
	// with owners, it is the modelled time until the owners' answers arrive.
	Lookup32    float64 `json:"lookup_32_seconds"`
	Lookup32P99 float64 `json:"lookup_32_p99_seconds"`
	False       float64 `json:"false_peers"`
	HitsLost    float64 `json:"hits_lost"` // with as many nodes down as in the part with restarts
	Note        string  `json:"note"`
}

// Parameters of the other ways.
const (
	rebuildEvery      = 10 * time.Minute // of a filter
	owners            = 3                // nodes that know a key
	matchesPerSecond  = 50               // lookups of 32 keys that the node itself does not have
	ownerBound        = 5 * time.Millisecond
	retellAfter       = 2 * time.Second // time after a restart until an owner has received its keys again
	exchangeBytes     = requestBytes + responseBytes
	ownerAnswersBytes = 16
)

// Others measures three other ways: full sets, filters, and owners.
func Others(ctx context.Context, o Options) ([]Other, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	var all []Other
	for _, measure := range []func(Options) (Other, error){fullSets, filters, owned} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		other, err := measure(o)
		if err != nil {
			return nil, err
		}
		all = append(all, other)
	}
	return all, nil
}

// rates returns, per second, the changes of all other nodes, and the exchanges in which a node
// learns of these changes.
func rates(o Options) (changes, exchanges float64) {
	peers := float64(o.Nodes - 1)
	return 2 * o.Churn / 60 * float64(o.Keys) * peers, peers / index.Interval(o.Nodes-1).Seconds()
}

// fullSets measures the way in which a node keeps a sorted list of all names of every other
// node, and updates the lists by deltas.
func fullSets(o Options) (Other, error) {
	r := rand.New(rand.NewPCG(o.Seed, 1))
	sets := make([][]uint64, o.Nodes-1)
	for i := range sets {
		sets[i] = randomTags(r, o.Keys)
		slices.Sort(sets[i])
	}
	changes, exchanges := rates(o)
	median, p99, named := measureLookups(r, func(tag uint64) bool {
		found := false
		for _, set := range sets {
			_, in := slices.BinarySearch(set, tag)
			found = found || in
		}
		return found
	})
	return Other{
		Way: "full sets", MemoryBytes: int64(len(sets)) * int64(o.Keys) * 8,
		BytesPerSecond: exchanges*exchangeBytes + changes*8,
		Lookup32:       median, Lookup32P99: p99, False: named,
		Note: "names of 64 bits, sorted, no room to grow counted; bytes computed",
	}, nil
}

// filters measures the way in which a node keeps, for every other node, a filter with 16 bits
// per key and a list of the keys added since the filter was built. Removed keys stay in a filter
// until it is rebuilt.
func filters(o Options) (Other, error) {
	r := rand.New(rand.NewPCG(o.Seed, 2))
	built := make([]*xorfilter.BinaryFuse[uint16], o.Nodes-1)
	bytes := int64(0)
	for i := range built {
		f, err := xorfilter.NewBinaryFuse[uint16](randomTags(r, o.Keys))
		if err != nil {
			return Other{}, err
		}
		built[i] = f
		bytes += 2 * int64(len(f.Fingerprints))
	}
	changes, exchanges := rates(o)
	came := changes / 2 * rebuildEvery.Seconds() / 2 // keys newer than the filters, halfway between two rebuilds
	median, p99, named := measureLookups(r, func(tag uint64) bool {
		found := false
		for i := range built {
			found = built[i].Contains(tag) || found
		}
		return found
	})
	return Other{
		Way: "filters", MemoryBytes: bytes + int64(came*8),
		BytesPerSecond: exchanges*exchangeBytes + changes/2*8 + float64(bytes)/rebuildEvery.Seconds(),
		Lookup32:       median, Lookup32P99: p99, False: named,
		Note: "binary fuse filters of 16 bits, built every 10 minutes; the newer keys' list is counted but not looked at; what left stays named for 5 minutes on average",
	}, nil
}

// owned measures the way in which each key has three owners: nodes chosen by a hash of the key,
// which receive every change and answer lookups of the key.
func owned(o Options) (Other, error) {
	r := rand.New(rand.NewPCG(o.Seed, 3))
	net := &cluster{o: o, rand: r}
	// A restarting owner is first down. After that it knows nothing until it has received its
	// keys again.
	away := o.Restart * float64(o.Nodes) * (o.Down + retellAfter).Seconds() / (o.Duration / 2).Seconds() / float64(o.Nodes)
	down := make([]bool, o.Nodes)
	for i := range down {
		down[i] = r.Float64() < away
	}
	const looks = 500
	took, lost := make([]float64, looks), 0
	messages := 0
	for i := range looks {
		slowest := time.Duration(0)
		asked := map[int]time.Duration{}
		for range 32 {
			first := ownerBound
			for _, owner := range rendezvous(r.Uint64(), o.Nodes) {
				answer, before := asked[owner]
				if !before {
					answer = net.trip() + net.trip()
					if r.Float64() < o.Loss {
						answer += 200 * time.Millisecond
					}
					if down[owner] {
						answer = timeout
					}
					asked[owner] = min(answer, ownerBound)
				}
				first = min(first, answer)
			}
			slowest = max(slowest, first)
			if first == ownerBound {
				lost++
			}
		}
		messages += len(asked)
		took[i] = slowest.Seconds()
	}
	slices.Sort(took)
	perLook := float64(messages) / looks * (exchangeBytes + ownerAnswersBytes)
	told := 2 * o.Churn / 60 * float64(o.Keys) * owners * (exchangeBytes + 10)
	return Other{
		Way: "owners", MemoryBytes: owners * int64(o.Keys) * 12,
		BytesPerSecond: told + matchesPerSecond*perLook,
		Lookup32:       took[looks/2], Lookup32P99: took[looks*99/100],
		HitsLost: float64(lost) / (looks * 32),
		Note:     "rendezvous hashing, 3 owners asked at once and waited for 5 ms at most; 50 look-ups of 32 keys a second; modelled",
	}, nil
}

// rendezvous returns the owners of a key: the nodes with the highest hashes of key and node.
func rendezvous(tag uint64, nodes int) [owners]int {
	type ranked struct {
		weight uint64
		node   int
	}
	var best [owners]ranked
	for n := range nodes {
		z := (tag ^ uint64(n)*0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>29) * 0x94d049bb133111eb
		if r := (ranked{z ^ z>>32, n}); r.weight > best[owners-1].weight {
			best[owners-1] = r
			slices.SortFunc(best[:], func(a, b ranked) int { return cmp.Compare(b.weight, a.weight) })
		}
	}
	var chosen [owners]int
	for i, b := range best {
		chosen[i] = b.node
	}
	return chosen
}

func randomTags(r *rand.Rand, n int) []uint64 {
	tags := make([]uint64, n)
	for i := range tags {
		tags[i] = r.Uint64()
	}
	return tags
}

// measureLookups times lookups of 32 absent keys. It returns the median and p99 in seconds, and
// the share of keys for which the function held returned true.
func measureLookups(r *rand.Rand, held func(tag uint64) bool) (median, p99, named float64) {
	const looks = 100
	took, found := make([]float64, looks), 0
	for i := range took {
		tags := randomTags(r, 32)
		start := time.Now()
		for _, tag := range tags {
			if held(tag) {
				found++
			}
		}
		took[i] = time.Since(start).Seconds()
	}
	slices.Sort(took)
	return took[looks/2], took[looks*99/100], float64(found) / (looks * 32)
}
