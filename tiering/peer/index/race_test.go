package index

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// Readers look up what never changes while a writer changes everything around it, lets
// peers restart and forgets them: they always find it, and nobody else's name for it.
func TestReadersNeverMissWhatStays(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	x := New(Config{})
	const shard = uint64(0x5a5) << 52 // all in one shard, so that it is put in order all the time
	const mark = 1 << 30              // the lowest bit of a key: what stays has it, what changes has not
	stays := make([]uint64, 64)
	base := NewOwn(1)
	for i := range stays {
		stays[i] = shard | r.Uint64()>>12 | mark
		base.Add(stays[i])
	}
	follow(t, x, 1, base)
	var stop atomic.Bool
	var readers sync.WaitGroup
	var looked atomic.Int64
	for range 3 {
		readers.Go(func() {
			var dst [4]Node
			for i := 0; !stop.Load(); i++ {
				tag := stays[i%len(stays)]
				if i%len(stays) == 0 {
					x.Prefetch(stays) // which changes nothing
				}
				if n := x.Holders(tag, dst[:]); n != 1 || dst[0] != 1 {
					t.Errorf("%d holders, first %d", n, dst[0])
					return
				}
				var all NodeSet
				if x.AllHolders(tag, &all); all != (NodeSet{0: 1 << 1}) {
					t.Errorf("all holders: %x", all)
					return
				}
				looked.Add(1)
			}
		})
	}
	churn := NewOwn(1)
	var held []uint64
	for step := range 4000 {
		for range 20 {
			held = append(held, shard|r.Uint64()>>12&^mark)
			churn.Add(held[len(held)-1])
		}
		for len(held) > 500 {
			churn.Remove(held[0])
			held = held[1:]
		}
		follow(t, x, 2, churn)
		switch {
		case step%500 == 499:
			churn, held = NewOwn(uint64(step)), nil
		case step%700 == 699:
			x.Forget(2)
		case step%50 == 0:
			x.Sweep(shards)
		}
	}
	stop.Store(true)
	readers.Wait()
	if looked.Load() == 0 {
		t.Error("no reader looked at anything")
	}
}

func TestHoldersAllocatesNothing(t *testing.T) {
	x, o := New(Config{}), NewOwn(1)
	for i := range uint64(10_000) {
		o.Add(i * 0x9e3779b97f4a7c15)
	}
	follow(t, x, 3, o)
	var dst [8]Node
	var set NodeSet
	i := uint64(0)
	if n := testing.AllocsPerRun(1000, func() {
		i++
		x.Holders(i*0x9e3779b97f4a7c15, dst[:])
		x.AllHolders(i*0x9e3779b97f4a7c15, &set)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
