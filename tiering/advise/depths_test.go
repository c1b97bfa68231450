package advise

import (
	"bytes"
	"encoding/csv"
	"strconv"
	"testing"

	"github.com/spliced-kv/spliced/policy/tracetest"
)

// depthRow is a request of a depth file: of its length tokens the first overlap
// are those of request best, and an application would cut it at boundary.
type depthRow struct{ length, boundary, best, overlap int }

func readDepths(t *testing.T, name string) []depthRow {
	t.Helper()
	if testing.Short() {
		t.Skip("replays a depth file")
	}
	lines, err := csv.NewReader(bytes.NewReader(tracetest.Read(t, "sparse_depths_"+name+".csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	rows := make([]depthRow, 0, len(lines))
	for _, line := range lines[1:] {
		var v [7]int
		for i := range v {
			if v[i], err = strconv.Atoi(line[i]); err != nil {
				t.Fatal(err)
			}
		}
		rows = append(rows, depthRow{v[2], v[3], v[4], v[5]})
	}
	return rows
}

// obedient is an engine that does what advice says: it saves states and begins
// from the deepest one that it has. Nothing is ever evicted.
type obedient struct {
	*bench
	cuts    bool
	most    int
	saved   map[uint64]bool // by a hash of all tokens before
	prompts [][]uint32
	states  int
	reused  int // of the tokens shared
	shared  int
}

func (e *obedient) serve(number int, row depthRow) {
	e.Helper()
	prompt := make([]uint32, 0, row.length)
	if row.best >= 0 {
		prompt = append(prompt, e.prompts[row.best][:min(row.overlap, row.length)]...)
	}
	for len(prompt) < row.length {
		prompt = append(prompt, uint32(number)<<12^uint32(len(prompt))*2654435761)
	}
	e.prompts = append(e.prompts, prompt)
	held, hash, hashes := 0, uint64(1), make([]uint64, len(prompt)+1)
	for i, id := range prompt {
		hash = (hash ^ uint64(id)) * 0xff51afd7ed558ccd
		hash ^= hash >> 29
		if hashes[i+1] = hash; e.saved[hash] {
			held = i + 1
		}
	}
	if row.best >= 0 {
		e.reused += min(held, row.overlap)
		e.shared += row.overlap
	}
	q := Query{Tokens: prompt, BlockTokens: 64, MaxCheckpoints: e.most, PrefixTokens: held}
	if e.cuts {
		q.Cuts = []uint32{uint32(row.boundary)}
	}
	for _, p := range e.bench.serve(q).Positions {
		if p.Admit {
			e.saved[hashes[p.Tokens]] = true
			e.states++
		}
	}
	e.Work(e.ctx)
}

// TestAdviceOnRecordedDepths: with boundaries nearly all that is shared is reused,
// without them what the branches tell, which by Marconi's rule is .8575 and .8814 of
// these files with 1.2 to 1.8 states a prompt.
func TestAdviceOnRecordedDepths(t *testing.T) {
	for _, name := range []string{"quality", "sysprompts"} {
		rows := readDepths(t, name)
		for _, way := range []struct {
			name  string
			cuts  bool
			most  int
			least float64 // share of the tokens shared that is reused
		}{{"boundaries", true, 2, 0.985}, {"branches", false, 2, 0.93}} {
			t.Run(name+"/"+way.name, func(t *testing.T) {
				e := &obedient{bench: newBench(t, wholeTree), cuts: way.cuts, most: way.most, saved: map[uint64]bool{}}
				e.store.limit.MaxBytes = 1 << 30
				for i, row := range rows {
					e.serve(i, row)
				}
				share, states := float64(e.reused)/float64(e.shared), float64(e.states)/float64(len(rows))
				t.Logf("%.4f reused with %.2f states a prompt", share, states)
				if share < way.least || states > 2 {
					t.Errorf("%.4f reused with %.2f states a prompt, want at least %.3f with 2", share, states, way.least)
				}
			})
		}
	}
}
