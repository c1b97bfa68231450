package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/simulate"
)

func TestSimulatePrintsATable(t *testing.T) {
	code, out, errs := cli(t, "simulate", "-nodes", "5", "-segments", "500", "-churn", "0.5", "-duration", "6s", "-down", "1s")
	if code != exitOK || !strings.Contains(errs, "100 %  simulating") {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{"5 nodes with 500 segments each, 4 of them with an index; seed 1", "sent and read, each, kB/s", "hits lost, %", "asking a neighbour too"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestSimulatePrintsJSON(t *testing.T) {
	args := []string{"simulate", "--json", "-quiet", "-nodes", "5", "-segments", "500", "-churn", "0.5", "-duration", "6s", "-down", "1s", "-seed", "3"}
	code, out, errs := cli(t, args...)
	var r simulate.Report
	if err := json.Unmarshal([]byte(out), &r); code != exitOK || errs != "" || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, errs)
	}
	if r.Nodes != 5 || r.Seed != 3 || len(r.Parts) != 2 || r.Parts[0].NewSegments == 0 || len(r.Use) == 0 {
		t.Errorf("%s", out)
	}
	code, out, errs = cli(t, append(args, "-others")...)
	var others []simulate.Other
	if err := json.Unmarshal([]byte(out), &others); code != exitOK || err != nil || len(others) != 3 || others[0].MemoryBytes != 4*500*8 {
		t.Errorf("exit %d, %v: %s\n%s", code, err, errs, out)
	}
}

func TestSimulateRefusesWhatIsOutOfRange(t *testing.T) {
	for _, args := range [][]string{{"-nodes", "2"}, {"-churn", "2"}, {"trace"}, {"-others", "-nodes", "9999"}} {
		if code, _, errs := cli(t, append([]string{"simulate"}, args...)...); code != exitUsage || errs == "" {
			t.Errorf("%v: exit %d: %s", args, code, errs)
		}
	}
}
