// Package policytest holds the conformance suite that every eviction policy
// passes before a pool may use it.
package policytest

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func always(policy.ID) bool { return true }

// Conformance checks the properties that package tiering relies on, for any order of
// eviction.
func Conformance(t *testing.T, newPolicy func() policy.Eviction) {
	t.Run("empty has no victim", func(t *testing.T) {
		p := newPolicy()
		if id, ok := p.Victim(always); ok || p.Len() != 0 {
			t.Fatalf("empty policy: victim %d, %v, length %d", id, ok, p.Len())
		}
	})
	t.Run("unknown ids are ignored", func(t *testing.T) { unknownIDs(t, newPolicy()) })
	t.Run("insert of a held id is a use", func(t *testing.T) { insertTwice(t, newPolicy()) })
	t.Run("one object is the victim", func(t *testing.T) { single(t, newPolicy()) })
	t.Run("nothing evictable means no victim", func(t *testing.T) { noneEvictable(t, newPolicy()) })
	t.Run("drains every object once", func(t *testing.T) { drain(t, newPolicy()) })
	t.Run("an update is no use and keeps the object", func(t *testing.T) { update(t, newPolicy()) })
	t.Run("suspended objects are no victims", func(t *testing.T) { suspended(t, newPolicy()) })
	t.Run("a suspension keeps the place", func(t *testing.T) { suspensionKeepsPlace(t, newPolicy) })
	t.Run("clock may step back", func(t *testing.T) { clockBack(t, newPolicy()) })
	for seed := range uint64(20) {
		t.Run("random operations agree with a set", func(t *testing.T) { random(t, newPolicy, seed) })
	}
}

func unknownIDs(t *testing.T, p policy.Eviction) {
	p.Insert(1, policy.Item{Bytes: 1}, epoch)
	p.Touch(2, epoch)
	p.Update(2, policy.Item{Bytes: 5})
	p.Suspend(2)
	p.Resume(2)
	p.Remove(2)
	if id, ok := p.Victim(always); !ok || id != 1 || p.Len() != 1 {
		t.Fatalf("victim %d, %v, length %d; want 1, true, 1", id, ok, p.Len())
	}
	p.Remove(1)
	p.Remove(1)
	if p.Len() != 0 {
		t.Fatalf("length %d after removing the only object twice", p.Len())
	}
}

func insertTwice(t *testing.T, p policy.Eviction) {
	p.Insert(1, policy.Item{Bytes: 1}, epoch)
	p.Insert(1, policy.Item{Bytes: 2}, epoch.Add(time.Second))
	if p.Len() != 1 {
		t.Fatalf("length %d after inserting one id twice", p.Len())
	}
	p.Remove(1)
	if _, ok := p.Victim(always); ok || p.Len() != 0 {
		t.Fatal("an id inserted twice stayed behind its removal")
	}
}

func single(t *testing.T, p policy.Eviction) {
	p.Insert(7, policy.Item{Bytes: 1 << 40, Tokens: 1 << 30, Tenant: 3}, epoch)
	for range 3 {
		if id, ok := p.Victim(always); !ok || id != 7 {
			t.Fatalf("victim %d, %v; want 7", id, ok)
		}
	}
	if p.Len() != 1 {
		t.Fatalf("Victim changed the length to %d", p.Len())
	}
}

func noneEvictable(t *testing.T, p policy.Eviction) {
	for id := range policy.ID(10) {
		p.Insert(id, policy.Item{Bytes: 1}, epoch)
	}
	asked := map[policy.ID]bool{}
	if id, ok := p.Victim(func(id policy.ID) bool { asked[id] = true; return false }); ok {
		t.Fatalf("victim %d although nothing may leave", id)
	}
	if len(asked) != 10 {
		t.Fatalf("asked about %d objects of 10 before giving up", len(asked))
	}
	for want := range policy.ID(10) {
		if id, ok := p.Victim(func(id policy.ID) bool { return id == want }); !ok || id != want {
			t.Fatalf("victim %d, %v where only %d may leave", id, ok, want)
		}
	}
}

func drain(t *testing.T, p policy.Eviction) {
	const n = 200
	for id := range policy.ID(n) {
		p.Insert(id, policy.Item{Bytes: int64(id%7 + 1), Tokens: int(id % 5)}, epoch.Add(time.Duration(id)))
	}
	seen := map[policy.ID]bool{}
	for range n {
		id, ok := p.Victim(always)
		if !ok || seen[id] {
			t.Fatalf("victim %d, %v after %d of %d", id, ok, len(seen), n)
		}
		seen[id] = true
		p.Remove(id)
	}
	if _, ok := p.Victim(always); ok || p.Len() != 0 {
		t.Fatalf("length %d after draining", p.Len())
	}
}

func update(t *testing.T, p policy.Eviction) {
	p.Insert(1, policy.Item{Bytes: 1, Tokens: 1}, epoch)
	p.Update(1, policy.Item{Bytes: 1 << 50})
	p.Update(1, policy.Item{})
	if id, ok := p.Victim(always); !ok || id != 1 || p.Len() != 1 {
		t.Fatalf("victim %d, %v, length %d after two updates of one object", id, ok, p.Len())
	}
	p.Remove(1)
	if _, ok := p.Victim(always); ok || p.Len() != 0 {
		t.Fatal("an updated object stayed behind its removal")
	}
}

func suspended(t *testing.T, p policy.Eviction) {
	for id := range policy.ID(3) {
		p.Insert(id, policy.Item{Bytes: 1}, epoch)
	}
	p.Suspend(0)
	p.Suspend(1)
	p.Suspend(1)
	p.Touch(0, epoch)
	p.Update(0, policy.Item{Bytes: 7})
	p.Insert(1, policy.Item{Bytes: 2}, epoch)
	id, ok := p.Victim(func(id policy.ID) bool {
		if id != 2 {
			t.Fatalf("asked about %d, which is suspended", id)
		}
		return true
	})
	if !ok || id != 2 || p.Len() != 3 {
		t.Fatalf("victim %d, %v, length %d; want 2, true, 3", id, ok, p.Len())
	}
	p.Remove(2)
	if id, ok := p.Victim(always); ok || p.Len() != 2 {
		t.Fatalf("victim %d although the rest is suspended, length %d", id, p.Len())
	}
	p.Remove(0)
	p.Resume(0)
	p.Resume(1)
	p.Resume(1)
	if id, ok := p.Victim(always); !ok || id != 1 || p.Len() != 1 {
		t.Fatalf("victim %d, %v, length %d; want 1, true, 1", id, ok, p.Len())
	}
	p.Remove(1)
	p.Insert(1, policy.Item{Bytes: 1}, epoch)
	if id, ok := p.Victim(always); !ok || id != 1 {
		t.Fatalf("victim %d, %v: inserted again it was not suspended", id, ok)
	}
}

// suspensionKeepsPlace suspends half of the objects and resumes them. All objects must then
// leave in the same order as in a twin without suspensions.
func suspensionKeepsPlace(t *testing.T, newPolicy func() policy.Eviction) {
	p, twin := newPolicy(), newPolicy()
	for id := range policy.ID(40) {
		it := policy.Item{Bytes: int64(id*7%11 + 1), Tokens: int(id * 5 % 13)}
		p.Insert(id, it, epoch.Add(time.Duration(id)*time.Second))
		twin.Insert(id, it, epoch.Add(time.Duration(id)*time.Second))
	}
	for id := policy.ID(0); id < 40; id += 2 {
		p.Suspend(id)
	}
	for id := policy.ID(0); id < 40; id += 2 {
		p.Resume(id)
	}
	for left := 40; left > 0; left-- {
		got, ok := p.Victim(always)
		want, _ := twin.Victim(always)
		if !ok || got != want {
			t.Fatalf("victim %d, %v with %d left; without the suspensions %d", got, ok, left, want)
		}
		p.Remove(got)
		twin.Remove(want)
	}
}

func clockBack(t *testing.T, p policy.Eviction) {
	p.Insert(1, policy.Item{Bytes: 1}, epoch)
	p.Insert(2, policy.Item{Bytes: 1}, epoch.Add(-time.Hour))
	p.Touch(1, epoch.Add(-2*time.Hour))
	id, ok := p.Victim(always)
	if !ok || id != 1 && id != 2 {
		t.Fatalf("victim %d, %v", id, ok)
	}
}

// random runs one script of random calls against two instances of the policy and against a
// plain set. Both instances must return the same victims, and the victims must agree with
// the set.
func random(t *testing.T, newPolicy func() policy.Eviction, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	p, twin := newPolicy(), newPolicy()
	var held []policy.ID
	suspended := map[policy.ID]bool{}
	now := epoch
	for step := range 2000 {
		// Clocks stand still, jump and step back.
		now = now.Add(time.Duration(rng.IntN(1000)-100) * time.Millisecond * time.Duration(rng.IntN(2)))
		id := policy.ID(rng.IntN(100))
		at := slices.Index(held, id)
		it := policy.Item{Bytes: rng.Int64N(1000) + 1, Tokens: rng.IntN(100), Tenant: uint32(rng.IntN(3)), Key: rng.Uint64N(120)}
		if seed%2 == 1 {
			it.Saved = 10 * rng.Float64()
		}
		switch rng.IntN(7) {
		case 0:
			p.Insert(id, it, now)
			twin.Insert(id, it, now)
			if at < 0 {
				held = append(held, id)
			}
		case 1:
			p.Touch(id, now)
			twin.Touch(id, now)
		case 2:
			p.Remove(id)
			twin.Remove(id)
			delete(suspended, id)
			if at >= 0 {
				held = slices.Delete(held, at, at+1)
			}
		case 3:
			p.Update(id, it)
			twin.Update(id, it)
		case 4:
			p.Suspend(id)
			twin.Suspend(id)
			suspended[id] = at >= 0
		case 5:
			p.Resume(id)
			twin.Resume(id)
			delete(suspended, id)
		case 6:
			odd := policy.ID(rng.IntN(3))
			may := func(id policy.ID) bool {
				if !slices.Contains(held, id) || suspended[id] {
					t.Fatalf("seed %d step %d: asked about %d, which is not held or suspended", seed, step, id)
				}
				return id%3 != odd
			}
			got, ok := p.Victim(may)
			other, otherOK := twin.Victim(may)
			if got != other || ok != otherOK {
				t.Fatalf("seed %d step %d: twins chose %d, %v and %d, %v", seed, step, got, ok, other, otherOK)
			}
			if ok && !may(got) || ok != slices.ContainsFunc(held, func(id policy.ID) bool { return !suspended[id] && may(id) }) {
				t.Fatalf("seed %d step %d: victim %d, %v of %v without %v", seed, step, got, ok, held, suspended)
			}
		}
		if p.Len() != len(held) {
			t.Fatalf("seed %d step %d: length %d, want %d", seed, step, p.Len(), len(held))
		}
	}
}
