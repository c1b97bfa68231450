package policy_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy"
)

// BenchmarkPolicies is a full pool in which every operation is a use, and every
// fourth one takes a victim out and brings something new in.
func BenchmarkPolicies(b *testing.B) {
	for _, name := range []string{"lru", "gdsf", "default"} {
		for _, n := range []int{10_000, 1_000_000} {
			b.Run(fmt.Sprintf("policy=%s/objects=%d", name, n), func(b *testing.B) {
				newPolicy, _ := policy.Named(name)
				p := newPolicy()
				rng := rand.New(rand.NewPCG(1, 1))
				now, next := epoch, policy.ID(0)
				held := make([]policy.ID, 0, n)
				insert := func() policy.ID {
					next++
					it := policy.Item{Bytes: 1e6 + rng.Int64N(1e8), Tokens: rng.IntN(10000), Key: uint64(next), Extends: next / 3}
					p.Insert(next, it, now)
					return next
				}
				for range n {
					now = now.Add(time.Millisecond)
					held = append(held, insert())
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					now = now.Add(time.Millisecond)
					p.Touch(held[rng.IntN(n)], now)
					if i%4 == 0 {
						id, _ := p.Victim(anyID)
						p.Remove(id)
						insert()
					}
				}
			})
		}
	}
}
