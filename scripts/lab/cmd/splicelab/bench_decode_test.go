package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/scripts/lab/bench"
)

// One round of every form of decoding: times have limits, and bytes are those of the
// paper's counts.
func TestBenchOfDecodingPrintsEveryRow(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	out, _ := splicectl(t, cli.ExitOK, "bench", "--suite", "decode-smoke", "--json", "-quiet")
	var r bench.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"decode/recurrent": "ns", "decode/rows alone, 48 tokens": "ns", "decode/engine rows, 1": "µs", "decode/engine drafts, 4 of 4 accepted": "µs"}
	for _, n := range []int{4, 8, 16, 32} {
		want[fmt.Sprintf("decode/chunkwise, %d rows", n)] = "ns"
		want[fmt.Sprintf("decode/chunkwise, %d rows, of recurrent", n)] = "x"
	}
	for _, n := range []int{1, 2, 4, 8} {
		want[fmt.Sprintf("decode/verify %d, a state each", n)] = "ns"
		want[fmt.Sprintf("decode/verify %d, rows and an update, of a state each", n)] = "x"
	}
	bytes := map[string]float64{}
	for _, row := range r.Rows {
		if row.Value <= 0 || row.Unit == "ns" && (row.Limit == nil || *row.Limit <= 0) {
			t.Errorf("row %s: %v %s, limit %v", row.Name, row.Value, row.Unit, row.Limit)
		}
		if unit, ok := want[row.Name]; ok && unit == row.Unit {
			delete(want, row.Name)
		}
		if name, ok := strings.CutSuffix(row.Name, " bytes"); ok {
			bytes[name] = row.Value
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	// States of 65,536 bytes, read and written; 7 of 8 states need no write with 8 rows.
	if b := bytes["decode/recurrent"]; b < 2*65536 || b > 2*65536+1000 {
		t.Errorf("recurrent decoding moves %v bytes", b)
	}
	if b := bytes["decode/chunkwise, 8 rows"]; b < 73728 || b > 77000 {
		t.Errorf("decoding beside 8 rows moves %v bytes", b)
	}
}
