package pages

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Scripts in testdata are commands and the text that they give:
//
//	pool BLOCKS block=N [window=N] [pack] [left]
//	admit ID PIECE... [+OUTPUT]     a piece is system:KEY:TOKENS, chunk:KEY:TOKENS or prompt:TOKENS
//	release ID
func TestScripts(t *testing.T) {
	for _, name := range []string{"paper", "left", "packed", "pressure"} {
		t.Run(name, func(t *testing.T) {
			path := "testdata/" + name + ".script"
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{T: t}
			var got strings.Builder
			for _, line := range strings.SplitAfter(string(want), "\n") {
				switch {
				case strings.HasPrefix(line, "    "): // of what was printed then
				case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
					got.WriteString(line)
				default:
					got.WriteString(line)
					got.WriteString(s.run(strings.Fields(line)))
				}
			}
			if *update {
				if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got.String() != string(want) {
				t.Errorf("%s prints\n%s", path, got.String())
			}
		})
	}
}

type script struct {
	*testing.T
	pool *Pool
}

func (s *script) run(words []string) string {
	s.Helper()
	var b strings.Builder
	switch words[0] {
	case "pool":
		c := Config{Blocks: s.number(words[1])}
		for _, w := range words[2:] {
			name, value, _ := strings.Cut(w, "=")
			switch name {
			case "block":
				c.BlockTokens = s.number(value)
			case "window":
				c.Window = s.number(value)
			case "pack":
				c.Pack = true
			case "left":
				c.ShareLeft = true
			default:
				s.Fatalf("rule %q", w)
			}
		}
		s.pool = newPool(s, c.Blocks, c.Rules)
	case "admit":
		s.admit(&b, RequestID(s.number(words[1])), words[2:])
	case "release":
		if !s.pool.Release(RequestID(s.number(words[1]))) {
			b.WriteString("    not resident\n")
		}
	default:
		s.Fatalf("command %q", words[0])
	}
	st := s.pool.Stats()
	fmt.Fprintf(&b, "    %d blocks read, %d idle, %d free; %d requests; %d chunk runs and %d prefixes evicted\n",
		st.Referenced, st.Idle, st.Free, st.Requests, st.Evicted, st.Dropped)
	return b.String()
}

func (s *script) admit(b *strings.Builder, id RequestID, words []string) {
	s.Helper()
	var q Request
	for _, w := range words {
		if output, ok := strings.CutPrefix(w, "+"); ok {
			q.Output = s.number(output)
			continue
		}
		part := strings.Split(w, ":")
		p := Piece{Tokens: s.number(part[len(part)-1])}
		switch part[0] {
		case "system":
			p.Kind, p.Key = Prefix, uint64(part[1][0])
		case "chunk":
			p.Kind, p.Key = Chunk, uint64(part[1][0])
		}
		q.Pieces = append(q.Pieces, p)
	}
	a, err := s.pool.Admit(id, &q)
	if err != nil {
		fmt.Fprintf(b, "    %v\n", err)
		return
	}
	fmt.Fprintf(b, "    %d tokens computed, %d reused, %d slots of padding\n", a.Computed, a.Reused, a.Padding)
	for _, e := range a.Table {
		whose, work := "own", "compute"
		if e.Shared {
			whose = "shared"
		}
		if !e.Compute {
			work = "reuse"
		}
		fmt.Fprintf(b, "    tokens %2d to %2d in block %d from slot %d: %s, %s\n", e.Begin, e.Begin+e.Tokens-1, e.Block, e.Slot, whose, work)
	}
}

func (s *script) number(text string) int {
	s.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		s.Fatal(err)
	}
	return n
}
