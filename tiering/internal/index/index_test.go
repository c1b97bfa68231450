package index

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// keyIn makes keys that crowd few shards when narrow, so that runs of slots grow
// long and removals have gaps to close.
func keyIn(rng *rand.Rand, narrow bool) (key [32]byte) {
	for i := range key {
		key[i] = byte(rng.Uint32())
	}
	if narrow {
		key[0], key[1] = 7, byte(rng.IntN(32))
	}
	return key
}

func TestIndexAgreesWithMap(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 5))
		x, want := New[int](), map[[32]byte]*int{}
		var keys [][32]byte
		for range 300 {
			keys = append(keys, keyIn(rng, seed%2 == 0))
		}
		for step := range 5000 {
			key := keys[rng.IntN(len(keys))]
			switch rng.IntN(3) {
			case 0:
				v := step
				x.Put(&key, &v)
				want[key] = &v
			case 1:
				x.Remove(&key)
				delete(want, key)
			case 2:
				if got := x.Find(&key); got != want[key] {
					t.Fatalf("seed %d step %d: found %v, want %v", seed, step, got, want[key])
				}
			}
			if x.Len() != len(want) {
				t.Fatalf("seed %d step %d: %d held, want %d", seed, step, x.Len(), len(want))
			}
		}
		for _, key := range keys {
			if got := x.Find(&key); got != want[key] {
				t.Fatalf("seed %d: found %v, want %v at the end", seed, got, want[key])
			}
		}
	}
}

func TestIndexListsInAscendingOrderAfterAKey(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 6))
	x := New[[32]byte]()
	var keys [][32]byte
	for i := range 2000 {
		key := keyIn(rng, i%3 == 0)
		keys = append(keys, key)
		x.Put(&key, &key)
	}
	slices.SortFunc(keys, func(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) })
	for _, first := range []int{-1, 0, 500, 1998, 1999} {
		var after *[32]byte
		from := 0
		if first >= 0 {
			after, from = &keys[first], Shard(&keys[first])
		}
		var got [][32]byte
		for shard := from; shard < Shards; shard++ {
			for _, key := range x.Sorted(shard, after) {
				got = append(got, *key)
			}
		}
		if !slices.Equal(got, keys[first+1:]) {
			t.Fatalf("after key %d: %d keys, want %d in order", first, len(got), len(keys)-first-1)
		}
	}
}

// Keys that come and go at a constant number do not make the map grow: numbers in a shard
// vary, and no shard keeps the table of the most it ever had.
func TestChurnDoesNotGrowTheMap(t *testing.T) {
	const keys = 1 << 16
	rng := rand.New(rand.NewPCG(1, 7))
	x, ring, v := New[int](), make([][32]byte, keys), 1
	slots := func() (n int) {
		for i := range x.shards {
			n += len(x.shards[i].slots)
		}
		return n
	}
	for i := range ring {
		ring[i] = keyIn(rng, false)
		x.Put(&ring[i], &v)
	}
	filled := slots()
	for range 20 {
		for i := range ring {
			x.Remove(&ring[i])
			ring[i] = keyIn(rng, false)
			x.Put(&ring[i], &v)
		}
	}
	if now := slots(); now > filled+filled/4 {
		t.Errorf("%d slots for %d keys, %d when they were first put", now, keys, filled)
	}
	for i := range ring {
		x.Remove(&ring[i])
	}
	if now := slots(); now > Shards*minSlots {
		t.Errorf("%d slots without a key", now)
	}
}
