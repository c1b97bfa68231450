package prefixcache

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/radix"
	"github.com/spliced-kv/spliced/scripts/lab/replay/flops"
)

var update = flag.Bool("update", false, "rewrite the scripts in testdata")

// Scripts in testdata are commands and the text that they give. A letter is a
// token, whose rows take one byte and whose prefill takes one FLOP a token:
//
//	cache KIND BYTES [state=BYTES] [alpha=A] [bootstrap=N] [released] [block=N]
//	serve INPUT [OUTPUT]
//
// What is printed after a request is the hit, what left, and the tree: of each
// node its edge, the bytes of its state and rows, and what hits there would save.
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.script")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".script"), func(t *testing.T) {
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{T: t}
			for _, line := range strings.SplitAfter(string(want), "\n") {
				if strings.HasPrefix(line, "    ") { // of what was printed then
					continue
				}
				s.out.WriteString(line)
				if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
					s.run(words)
				}
			}
			if *update {
				if err := os.WriteFile(path, []byte(s.out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if s.out.String() != string(want) {
				t.Errorf("%s prints\n%s", path, s.out.String())
			}
		})
	}
}

type script struct {
	*testing.T
	out   strings.Builder
	cache Cache
	left  []string
}

func (s *script) run(words []string) {
	s.Helper()
	switch {
	case words[0] == "cache" && len(words) > 2:
		s.open(words[1], s.number(words[2]), words[3:])
	case words[0] == "serve" && len(words) > 1:
		r := Request{Input: letters(words[1])}
		if len(words) > 2 {
			r.Output = letters(words[2])
		}
		h := s.cache.Serve(r)
		s.printf("hit %d of %d tokens\n", h.Tokens, h.Input)
		for _, l := range s.left {
			s.printf("%s\n", l)
		}
		s.left = nil
		s.print()
	default:
		s.Fatalf("command %q", words)
	}
}

func (s *script) open(kind string, capacity float64, words []string) {
	s.Helper()
	c := Config{Shape: flops.Shape{Shape: cost.Shape{KVBytes: 1, StateBytes: 10}}, CapacityBytes: int64(capacity)}
	c.Shape.MLP.PerToken = 1
	var o MarconiOptions
	var b BlockOptions
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "state":
			c.Shape.StateBytes = int64(s.number(value))
		case "alpha":
			o.Alpha = s.number(value)
		case "bootstrap":
			o.Bootstrap = int(s.number(value))
		case "released":
			o.Quirks = AsReleased()
		case "block":
			b.Symbols = int(s.number(value))
		default:
			s.Fatalf("setting %q", w)
		}
	}
	switch kind {
	case "blocks":
		s.cache = NewBlocks(c, b)
	case "path-lru":
		s.cache = NewPathLRU(c)
	case "marconi":
		s.cache = NewMarconi(c, o)
	default:
		make, ok := map[string]func() policy.Eviction{"lru": policy.NewLRU, "gdsf": policy.NewGDSF}[kind]
		if !ok {
			s.Fatalf("no cache %q", kind)
		}
		options := Options{Config: c, Saved: func(begin, end int) float64 { return float64(end - begin) }}
		options.OnEvict = func(p Place) {
			what := "leaf"
			if p.Children > 0 {
				what = "state in the middle"
			}
			s.left = append(s.left, fmt.Sprintf("evict %s of tokens %d to %d, %d bytes", what, p.Begin, p.End, p.Bytes))
		}
		s.cache = New(options, make())
	}
}

func (s *script) number(word string) float64 {
	s.Helper()
	v, err := strconv.ParseFloat(word, 64)
	if err != nil {
		s.Fatal(err)
	}
	return v
}

func (s *script) printf(format string, args ...any) { fmt.Fprintf(&s.out, "    "+format, args...) }

func (s *script) print() {
	switch c := s.cache.(type) {
	case *Blocks:
		s.blocks(c, 0, "")
	case *PathLRU:
		s.tree(&c.tree, radix.Root, "", func(n radix.Node) string { return fmt.Sprintf(", used at %d", c.used[n]) })
	case *Marconi:
		s.tree(&c.tree, radix.Root, "", func(n radix.Node) string {
			return fmt.Sprintf(", used at %d, efficiency %.3f", c.used[n], c.efficiency[n])
		})
		if alpha, tuned := c.Alpha(); tuned {
			s.printf("alpha %g\n", alpha)
		}
	case *Policy:
		s.tree(&c.tree, radix.Root, "", func(n radix.Node) string {
			it := c.item(n)
			return fmt.Sprintf(", gives back %d, saves %g", it.Bytes, it.Saved)
		})
	}
	st := s.cache.Stats()
	s.printf("%d bytes, %d states\n", st.Bytes, st.States)
}

func (s *script) tree(t *tree, n radix.Node, indent string, more func(radix.Node) string) {
	if n != radix.Root {
		s.printf("%s%s%s\n", indent, word(t.AppendEdge(nil, n)), more(n))
		indent += "  "
	}
	for c := t.FirstChild(n); c != radix.None; c = t.NextSibling(c) {
		s.tree(t, c, indent, more)
	}
}

func (s *script) blocks(b *Blocks, n int32, indent string) {
	for c := b.nodes[n].child; c != 0; c = b.nodes[c].next {
		s.printf("%s%s\n", indent, word(b.nodes[c].symbols))
		s.blocks(b, c, indent+"  ")
	}
}

func letters(s string) []uint32 {
	v := make([]uint32, len(s))
	for i := range s {
		v[i] = uint32(s[i])
	}
	return v
}

func word(v []uint32) string {
	b := make([]byte, len(v))
	for i := range v {
		b[i] = byte(v[i])
	}
	return string(b)
}
