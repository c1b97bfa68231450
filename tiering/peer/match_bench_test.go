package peer

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/peer/index"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
	"github.com/spliced-kv/spliced/tiering/tiertest/storetest"
)

// BenchmarkMatch32 asks a store for 32 segments that it does not hold, in turns with one
// that knows no peers: more-µs is what an index of 100 nodes with 100,000 segments each
// costs a match, or of as many as SPLICED_INDEX_NODES says (1000 take a minute to fill).
// Of absent ones nobody holds any; of held ones each is held by a node.
func BenchmarkMatch32(b *testing.B) {
	nodes := 100
	if n, err := strconv.Atoi(os.Getenv("SPLICED_INDEX_NODES")); err == nil {
		nodes = n
	}
	dev := tiertest.NewDevice(b)
	names := must(NewNames(secret, tenantsOf(loneTenant)))
	x := index.New(index.Config{})
	peers := must(New(Config{Index: x, Names: names, Device: dev, Insecure: true, Profile: tiertest.ProfileOf}))
	defer peers.Close()
	keys := make([][32]byte, 1<<14)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range keys {
		for k := range keys[i] {
			keys[i][k] = byte(r.Uint32())
		}
	}
	for n := range Node(nodes) {
		own := index.NewOwn(1)
		for range 100_000 {
			own.Add(r.Uint64())
		}
		for i := int(n); i < len(keys)/2; i += nodes { // the first half is held
			tag, _ := names.Tag(&tier.Want{Name: tier.Name{Key: keys[i]}, Fingerprint: tiertest.Small.Fingerprint(), Tenant: 1})
			own.Add(tag)
		}
		for more := true; more; {
			more = must(x.Apply(index.Node(n), own.Delta(nil, x.Position(index.Node(n)))))
		}
		noError(b, peers.Set(Member{Node: n, Addr: "127.0.0.1:1"}))
	}
	open := func(remote tier.Remote) (*tiering.Store, tier.ProfileID) {
		s := must(tiering.Open(tiering.Config{
			Device: dev, Tenants: storetest.Tenants(loneTenant), Eviction: policy.NewLRU, PageBytes: 4096, PublicBytes: 1 << 20, PrivateBytes: 1 << 20, Remote: remote,
		}))
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		b.Cleanup(func() {
			stop()
			<-ended
			_ = s.Close()
		})
		return s, must(s.AddProfile(tiertest.Small))
	}
	alone, id := open(nil)
	among, _ := open(peers)
	for _, of := range []struct {
		name string
		keys [][32]byte
	}{{"absent", keys[len(keys)/2:]}, {"held", keys[:len(keys)/2]}} {
		b.Run(of.name, func(b *testing.B) {
			var without, with []time.Duration
			var result tiering.MatchResult
			at, hits := 0, 0
			match := func(s *tiering.Store) time.Duration {
				q := tiering.MatchQuery{Profile: id, Tenant: 1, Keys: of.keys[at : at+32]}
				began := time.Now()
				noError(b, s.Match(&q, &result))
				return time.Since(began)
			}
			for b.Loop() {
				without, with = append(without, match(alone)), append(with, match(among))
				for _, row := range result.Segments {
					if row.Place == tier.PlacePeer {
						hits++
					}
				}
				at = (at + 32) % len(of.keys)
			}
			b.ReportMetric(0, "ns/op")
			slices.Sort(without)
			slices.Sort(with)
			median := func(l []time.Duration) float64 { return float64(l[len(l)/2].Nanoseconds()) / 1e3 }
			b.ReportMetric(median(without), "alone-µs")
			b.ReportMetric(median(with), "among-µs")
			b.ReportMetric(median(with)-median(without), "more-µs")
			b.ReportMetric(float64(hits)/float64(32*len(with)), "hits/key")
		})
	}
}
