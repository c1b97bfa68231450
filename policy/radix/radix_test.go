package radix_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/radix"
)

// model is the tree as a map of the prefixes of its nodes. A stamp orders
// siblings: a node that takes another's place takes its stamp.
type model struct {
	stamps map[string]int
	next   int
}

func newModel() *model { return &model{stamps: map[string]int{"": 0}} }

func symbols(s string) []uint32 {
	v := make([]uint32, len(s))
	for i := range s {
		v[i] = uint32(s[i])
	}
	return v
}

func text(v []uint32) string {
	var b strings.Builder
	for _, s := range v {
		b.WriteByte(byte(s))
	}
	return b.String()
}

func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// match is the end of the deepest node that begins s, and how much of s any node
// shares.
func (m *model) match(s string) (end, matched int) {
	for p := range m.stamps {
		c := common(p, s)
		matched = max(matched, c)
		if c == len(p) {
			end = max(end, c)
		}
	}
	return end, matched
}

func (m *model) parent(p string) string {
	for n := len(p) - 1; ; n-- {
		if _, ok := m.stamps[p[:n]]; ok {
			return p[:n]
		}
	}
}

// children lists the nodes right below p in the order in which they came.
func (m *model) children(p string) []string {
	var list []string
	for c := range m.stamps {
		if c != "" && strings.HasPrefix(c, p) && c != p && m.parent(c) == p {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b string) int { return m.stamps[a] - m.stamps[b] })
	return list
}

func (m *model) insert(s string) {
	end, matched := m.match(s)
	if matched > end {
		for _, c := range m.children(s[:end]) {
			if common(c, s) == matched {
				m.stamps[s[:matched]] = m.stamps[c]
			}
		}
	}
	if len(s) > matched {
		m.next++
		m.stamps[s] = m.next
	}
}

// check compares tree and model node by node and answers the nodes by prefix.
func check(t *testing.T, tree *radix.Tree, m *model) map[string]radix.Node {
	t.Helper()
	nodes := map[string]radix.Node{}
	var walk func(n radix.Node, prefix string)
	walk = func(n radix.Node, prefix string) {
		nodes[prefix] = n
		if got := text(tree.AppendPrefix(nil, n)); got != prefix || tree.End(n) != len(prefix) {
			t.Fatalf("node %d holds %q to %d, want %q", n, got, tree.End(n), prefix)
		}
		var want, got []string
		for _, c := range m.children(prefix) {
			want = append(want, c[len(prefix):])
		}
		for c := tree.FirstChild(n); c != radix.None; c = tree.NextSibling(c) {
			got = append(got, text(tree.AppendEdge(nil, c)))
			if tree.Parent(c) != n || tree.Begin(c) != len(prefix) {
				t.Fatalf("child %d of %d has parent %d and begins at %d", c, n, tree.Parent(c), tree.Begin(c))
			}
			if found := tree.Child(n, uint32(got[len(got)-1][0])); found != c {
				t.Fatalf("child %d of %d is found as %d", c, n, found)
			}
		}
		if !slices.Equal(got, want) || tree.Children(n) != len(want) {
			t.Fatalf("children of %q are %q (%d), want %q", prefix, got, tree.Children(n), want)
		}
		for c := tree.FirstChild(n); c != radix.None; c = tree.NextSibling(c) {
			walk(c, prefix+text(tree.AppendEdge(nil, c)))
		}
	}
	walk(radix.Root, "")
	if len(nodes) != len(m.stamps) || tree.Len() != len(nodes) {
		t.Fatalf("%d nodes walked, %d counted, want %d", len(nodes), tree.Len(), len(m.stamps))
	}
	return nodes
}

func randomText(rng *rand.Rand) string {
	b := make([]byte, rng.IntN(70))
	for i := range b {
		b[i] = 'a'
		if rng.IntN(12) == 0 {
			b[i] = 'b' + byte(rng.IntN(2))
		}
	}
	return string(b)
}

func TestTreeAgreesWithAMapOfPrefixes(t *testing.T) {
	seeds := uint64(15)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		tree, m := radix.New(), newModel()
		for step := range 250 {
			nodes := check(t, tree, m)
			s := randomText(rng)
			end, matched := m.match(s)
			p := tree.Probe(symbols(s))
			if p.End != end || p.Matched != matched || p.Node != nodes[s[:end]] || p.Splits != (matched > end) || p.Grows != len(s)-matched {
				t.Fatalf("seed %d step %d: probe of %q is %+v, want end %d, matched %d", seed, step, s, p, end, matched)
			}
			front := symbols(s)[:rng.IntN(len(s)+1)]
			if got := tree.Extend(tree.Match(front), symbols(s)); got != p.Path {
				t.Fatalf("seed %d step %d: %q matched in two parts is %+v, at once %+v", seed, step, s, got, p.Path)
			}
			switch rng.IntN(5) {
			case 0, 1: // remove or merge any node that may go
				mutate(rng, tree, m, nodes)
			default:
				m.insert(s)
				in := tree.Insert(symbols(s))
				if got := text(tree.AppendPrefix(nil, in.Leaf)); got != s {
					t.Fatalf("seed %d step %d: leaf of %q is %q", seed, step, s, got)
				}
				if in.Splits != (in.Branch != radix.None) || in.Splits && tree.End(in.Branch) != matched {
					t.Fatalf("seed %d step %d: insert of %q answers %+v", seed, step, s, in)
				}
			}
		}
	}
}

// mutate removes a leaf or merges a node that has one child, and checks that the
// child keeps its number and its value.
func mutate(rng *rand.Rand, tree *radix.Tree, m *model, nodes map[string]radix.Node) {
	var may []string
	for p := range nodes {
		if p != "" && len(m.children(p)) <= 1 {
			may = append(may, p)
		}
	}
	if len(may) == 0 {
		return
	}
	slices.Sort(may)
	p := may[rng.IntN(len(may))]
	if children := m.children(p); len(children) == 1 {
		m.stamps[children[0]] = m.stamps[p]
		tree.SetValue(nodes[children[0]], 7)
		child := tree.Merge(nodes[p])
		if child != nodes[children[0]] || tree.Value(child) != 7 {
			panic(fmt.Sprintf("merge of %q answers node %d with value %d", p, child, tree.Value(child)))
		}
	} else {
		tree.Remove(nodes[p])
	}
	delete(m.stamps, p)
}

func TestWhatIsFreedIsUsedAgain(t *testing.T) {
	tree := radix.New()
	round := func(seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 3))
		for range 2000 {
			tree.Insert(symbols(randomText(rng)))
		}
		for tree.Len() > 1 {
			n := tree.FirstChild(radix.Root)
			for tree.Children(n) > 1 {
				n = tree.FirstChild(n)
			}
			if tree.Children(n) == 1 && seed%2 == 0 {
				tree.Merge(n)
				continue
			}
			for tree.Children(n) > 0 {
				n = tree.FirstChild(n)
			}
			tree.Remove(n)
		}
	}
	round(0)
	peak, limit := tree.Bytes(), tree.Limit()
	for seed := range uint64(8) {
		round(seed)
		round(0)
	}
	if tree.Limit() > limit*11/10 || tree.Bytes() > peak*11/10 {
		t.Fatalf("after 17 rounds %d bytes for %d nodes, after one %d for %d", tree.Bytes(), tree.Limit(), peak, limit)
	}
}

func TestMisuseNamesTheNode(t *testing.T) {
	tree := radix.New()
	tree.Insert(symbols("ab"))
	leaf := tree.Insert(symbols("ac")).Leaf
	for name, call := range map[string]func(){
		"removal of a parent": func() { tree.Remove(tree.Parent(leaf)) },
		"removal of the root": func() { tree.Remove(radix.Root) },
		"merge of a leaf":     func() { tree.Merge(leaf) },
		"merge of a branch":   func() { tree.Merge(tree.Parent(leaf)) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "node") {
					t.Fatalf("recovered %v", r)
				}
			}()
			call()
		})
	}
}

// grown is a tree of n nodes: sessions that share a front and part again and
// again, with edges of up to 15 symbols. It answers some of the sequences too.
func grown(n int) (*radix.Tree, [][]uint32) {
	rng := rand.New(rand.NewPCG(9, 9))
	tree := radix.New()
	var kept [][]uint32
	var buf []uint32
	for tree.Len() < n {
		var node radix.Node
		if tree.Limit() > 1 {
			node = radix.Node(rng.IntN(tree.Limit()))
		}
		buf = tree.AppendPrefix(buf[:0], node)
		for range 1 + rng.IntN(15) {
			buf = append(buf, rng.Uint32())
		}
		tree.Insert(buf)
		if len(kept) < 4096 && rng.IntN(n/4096+1) == 0 {
			kept = append(kept, slices.Clone(buf))
		}
	}
	return tree, kept
}

func TestMemoryPerNode(t *testing.T) {
	if testing.Short() {
		t.Skip("a tree of 10^6 nodes")
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const n = 1_000_000
	tree, _ := grown(n)
	runtime.GC()
	runtime.ReadMemStats(&after)
	perNode := float64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%.1f bytes a node on the heap, %.1f by Bytes", perNode, float64(tree.Bytes())/n)
	if perNode > 120 || float64(tree.Bytes())/n > 120 {
		t.Errorf("%.1f bytes a node, want at most 120", perNode)
	}
	runtime.KeepAlive(tree)
}
