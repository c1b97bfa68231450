package prefixcache

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/radix"
	"github.com/spliced-kv/spliced/scripts/lab/replay/flops"
)

const (
	testState = 10 // bytes
	testRow   = 3
)

func testConfig(capacity int64) Config {
	c := Config{Shape: flops.Shape{Shape: cost.Shape{KVBytes: testRow, StateBytes: testState}}, CapacityBytes: capacity}
	c.Shape.Attention = flops.Work{PerToken: 5e12, PerTokenSquared: 1e11}
	return c
}

// plain is a prefix cache under LRU as a map of the prefixes that have a state.
type plain struct {
	used     map[string]int
	clock    int
	capacity int
}

func (m *plain) parent(p string) string {
	for n := len(p) - 1; n > 0; n-- {
		if _, ok := m.used[p[:n]]; ok {
			return p[:n]
		}
	}
	return ""
}

func (m *plain) children(p string) int {
	n := 0
	for c := range m.used {
		if c != p && m.parent(c) == p {
			n++
		}
	}
	return n
}

func (m *plain) bytes() int {
	b := 0
	for p := range m.used {
		b += testState + testRow*(len(p)-len(m.parent(p)))
	}
	return b
}

func (m *plain) use(p string) {
	if p != "" {
		m.clock++
		m.used[p] = m.clock
	}
}

// longest is the longest prefix with a state, and how much any of them shares.
func (m *plain) longest(s string) (held string, shared int) {
	for p := range m.used {
		n := commonFront(letters(p), letters(s))
		shared = max(shared, n)
		if n == len(p) && n > len(held) {
			held = p
		}
	}
	return held, shared
}

func (m *plain) serve(input, output string) (hit int, kept bool) {
	found, _ := m.longest(input)
	m.use(found)
	whole := input + output
	end, _ := m.longest(whole)
	if end != found {
		m.use(end)
	}
	least := testRow * len(whole)
	if end != "" {
		least += testState
	}
	if end != whole {
		least += testState
	}
	if least > m.capacity {
		return len(found), false
	}
	for {
		_, shared := m.longest(whole)
		need := testRow * (len(whole) - shared)
		if shared > len(end) {
			need += testState
		}
		if shared < len(whole) {
			need += testState
		}
		if m.bytes()+need <= m.capacity {
			if shared > len(end) {
				m.use(whole[:shared])
			}
			if shared < len(whole) {
				m.use(whole)
			}
			return len(found), true
		}
		delete(m.used, m.victim(end))
	}
}

func (m *plain) victim(keep string) string {
	victim := ""
	for p := range m.used {
		if p != keep && m.children(p) <= 1 && (victim == "" || m.used[p] < m.used[victim]) {
			victim = p
		}
	}
	return victim
}

// talk is a random stream of requests that go on from earlier ones.
func talk(seed uint64, n int) [][2]string {
	rng := rand.New(rand.NewPCG(seed, 5))
	words := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteByte("aaab"[rng.IntN(4)])
		}
		return b.String()
	}
	past := []string{""}
	var list [][2]string
	for range n {
		base := past[rng.IntN(len(past))]
		if rng.IntN(3) == 0 {
			base = base[:rng.IntN(len(base)+1)]
		}
		r := [2]string{base + words(1+rng.IntN(12)), words(rng.IntN(6))}
		list = append(list, r)
		past = append(past, r[0]+r[1])
		if len(past) > 6 {
			past = past[1:]
		}
	}
	return list
}

func TestLRUAgreesWithAMapOfPrefixes(t *testing.T) {
	for seed := range uint64(40) {
		capacity := 100 + int(seed)*20
		m := &plain{used: map[string]int{}, capacity: capacity}
		c := New(Options{Config: testConfig(int64(capacity))}, policy.NewLRU())
		refused := 0
		for i, r := range talk(seed, 120) {
			hit, kept := m.serve(r[0], r[1])
			if !kept {
				refused++
			}
			got := c.Serve(Request{Input: letters(r[0]), Output: letters(r[1])})
			st := c.Stats()
			if got != (Hit{len(r[0]), hit}) || st.Bytes != int64(m.bytes()) || st.States != len(m.used) || st.Refused != refused {
				t.Fatalf("seed %d request %d %q: %+v and %d bytes, %d states, %d refused; want hit %d and %d, %d, %d",
					seed, i, r, got, st.Bytes, st.States, st.Refused, hit, m.bytes(), len(m.used), refused)
			}
		}
	}
}

// told is a policy that remembers what it was told.
type told struct {
	policy.Eviction
	items     map[policy.ID]policy.Item
	suspended map[policy.ID]bool
}

func (p *told) Insert(id policy.ID, it policy.Item, now time.Time) {
	p.items[id] = it
	p.Eviction.Insert(id, it, now)
}

func (p *told) Update(id policy.ID, it policy.Item) {
	if _, held := p.items[id]; !held {
		panic(fmt.Sprintf("update of %d, which is not held", id))
	}
	p.items[id] = it
	p.Eviction.Update(id, it)
}

func (p *told) Suspend(id policy.ID) { p.suspended[id] = true; p.Eviction.Suspend(id) }
func (p *told) Resume(id policy.ID)  { delete(p.suspended, id); p.Eviction.Resume(id) }
func (p *told) Remove(id policy.ID) {
	delete(p.items, id)
	delete(p.suspended, id)
	p.Eviction.Remove(id)
}

// After every request a policy knows of each node what evicting it would give
// back and what it saves, and only nodes that may leave are asked for.
func TestPolicyHearsOfEveryChange(t *testing.T) {
	for _, name := range []string{"lru", "gdsf", "marconi", "default"} {
		make, _ := policy.Named(name)
		for seed := range uint64(15) {
			p := &told{make(), map[policy.ID]policy.Item{}, map[policy.ID]bool{}}
			c := New(Options{Config: testConfig(150 + int64(seed)*30)}, p)
			keys := map[string]uint64{}
			for i, r := range talk(seed, 200) {
				c.Serve(Request{Input: letters(r[0]), Output: letters(r[1])})
				checkTold(t, c, p, keys, fmt.Sprintf("%s, seed %d, request %d", name, seed, i))
			}
			names := map[uint64]string{}
			for prefix, key := range keys {
				if other, taken := names[key]; taken {
					t.Fatalf("%q and %q share a key", prefix, other)
				}
				names[key] = prefix
			}
		}
	}
}

func checkTold(t *testing.T, c *Policy, p *told, keys map[string]uint64, when string) {
	t.Helper()
	nodes := 0
	var bytes int64
	for n := c.after(radix.Root); n != radix.None; n = c.after(n) {
		nodes++
		begin, end := c.Begin(n), c.End(n)
		bytes += testState + int64(end-begin)*testRow
		want := policy.Item{Bytes: testState, Tokens: end - begin, Key: c.place(n).Key, Extends: c.nodes[c.Parent(n)].id}
		want.Saved = 5*float64(end-begin) + 0.1*float64(end*end-begin*begin)
		if c.Children(n) == 0 {
			want.Bytes += int64(end-begin) * testRow
		}
		id := c.nodes[n].id
		got := p.items[id]
		if off := got.Saved - want.Saved; off > 1e-9 || off < -1e-9 {
			t.Fatalf("%s: node %d is said to save %v, want %v", when, n, got.Saved, want.Saved)
		}
		if got.Saved = want.Saved; got != want || p.suspended[id] != (c.Children(n) > 1) {
			t.Fatalf("%s: node %d with %d children is known as %+v, suspended %v; want %+v", when, n, c.Children(n), got, p.suspended[id], want)
		}
		prefix := word(c.AppendPrefix(nil, n))
		if key, seen := keys[prefix]; seen && key != got.Key || got.Key == 0 {
			t.Fatalf("%s: %q has key %#x, had %#x", when, prefix, got.Key, key)
		}
		keys[prefix] = got.Key
	}
	if len(p.items) != nodes || p.Len() != nodes || c.Stats().Bytes != bytes || bytes > c.CapacityBytes {
		t.Fatalf("%s: %d nodes of %d bytes, %d known to the policy, %d bytes counted, capacity %d",
			when, nodes, bytes, len(p.items), c.Stats().Bytes, c.CapacityBytes)
	}
}

// What does not fit at all drives nothing out.
func TestRefusedRequestEvictsNothing(t *testing.T) {
	c := New(Options{Config: testConfig(200)}, policy.NewLRU())
	c.Serve(Request{Input: letters("abcd")})
	before := c.Stats()
	c.Serve(Request{Input: letters(strings.Repeat("x", 100))})
	after := c.Stats()
	if after.Refused != 1 || after.Evictions != 0 || after.Bytes != before.Bytes {
		t.Fatalf("before %+v, after %+v", before, after)
	}
	if h := c.Serve(Request{Input: letters("abcd")}); h.Tokens != 4 {
		t.Fatalf("hit %+v", h)
	}
}

func TestSymbolsStandForTokens(t *testing.T) {
	o := Options{Config: testConfig(1 << 40)}
	o.SymbolTokens = 512
	c := New(o, policy.NewLRU())
	c.Serve(Request{Input: []uint32{1, 2, 3}})
	if h := c.Serve(Request{Input: []uint32{1, 2, 3, 4}}); h != (Hit{4 * 512, 3 * 512}) {
		t.Fatalf("hit %+v", h)
	}
	if st := c.Stats(); st.Bytes != 2*testState+4*512*testRow || st.HitRate() != 3./7 || st.FLOPsSaved != o.Shape.FLOPs(3*512) {
		t.Fatalf("%+v", st)
	}
}

func TestPercentilesInterpolate(t *testing.T) {
	ttft := TTFT{Fixed: 1, PerToken: 2}
	for _, tokens := range []int{30, 10, 20} {
		ttft.Add(Hit{Input: tokens + 5, Tokens: 5})
	}
	for p, want := range map[float64]float64{0: 21, 25: 31, 50: 41, 90: 57, 100: 61} {
		if got := ttft.Percentile(p); got < want-1e-9 || got > want+1e-9 {
			t.Errorf("P%v is %v, want %v", p, got, want)
		}
	}
	ttft.StepTokens = 50
	ttft.Add(Hit{Input: 50})
	if got := ttft.Percentile(100); got != 201 {
		t.Errorf("50 tokens take %v ms, want those of 100", got)
	}
}
