package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/scripts/lab/bench"
)

// One round with each number of clients.
func TestBenchOfManyClientsPrintsEveryRow(t *testing.T) {
	if testing.Short() {
		t.Skip("starts 18 processes")
	}
	out, _ := splicectl(t, cli.ExitOK, "bench", "--suite", "scale-smoke", "--json", "-quiet")
	var r bench.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, n := range []int{1, 2, 4, 8, 16} {
		name := fmt.Sprintf("clients_%d", n)
		want[name], want[name+"_p50"], want[name+"_p99"], want[name+"_cpu"], want[name+"_switches"] = "ops/s", "µs", "µs", "µs/op", "1/op"
		if n > 1 {
			want[name+"_vs_1"] = "ratio"
		}
	}
	want["match_32_p50_evicting"], want["match_32_p99_evicting"], want["match_32_max_evicting"], want["reserve_evicting"] = "µs", "µs", "µs", "ms"
	for _, row := range r.Rows {
		if want[row.Name] != row.Unit || row.Value <= 0 || (row.Limit == nil || *row.Limit <= 0) != (row.Name == "reserve_evicting") {
			t.Errorf("row %s: %v %s, limit %v", row.Name, row.Value, row.Unit, row.Limit)
		}
		delete(want, row.Name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}
