package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/scripts/lab/simulate"
)

func TestSimulatePrintsATable(t *testing.T) {
	code, out, errs := ctl(t, "simulate", "-nodes", "5", "-segments", "500", "-churn", "0.5", "-duration", "6s", "-down", "1s")
	if code != cli.ExitOK || !strings.Contains(errs, "100 %  simulating") {
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
	code, out, errs := ctl(t, args...)
	var r simulate.Report
	if err := json.Unmarshal([]byte(out), &r); code != cli.ExitOK || errs != "" || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, errs)
	}
	if r.Nodes != 5 || r.Seed != 3 || len(r.Parts) != 2 || r.Parts[0].NewSegments == 0 || len(r.Use) == 0 {
		t.Errorf("%s", out)
	}
	code, out, errs = ctl(t, append(args, "-others")...)
	var others []simulate.Other
	if err := json.Unmarshal([]byte(out), &others); code != cli.ExitOK || err != nil || len(others) != 3 || others[0].MemoryBytes != 4*500*8 {
		t.Errorf("exit %d, %v: %s\n%s", code, err, errs, out)
	}
}

// Daemons do what the simulation says: as many questions, and answers of as many bytes.
func TestDaemonsDoWhatIsSimulated(t *testing.T) {
	out, errs := splicectl(t, cli.ExitOK, "simulate", "--json", "-quiet", "-nodes", "3", "-segments", "1000", "-churn", "0.6", "-duration", "6s", "-down", "1s", "-daemons")
	var r compared
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	p, d := r.Simulated, r.Daemons
	if d.NewSegments == 0 || d.Lookups == 0 || d.Unseen > 0 || d.False > 0 || d.HitsLost > 0.1 {
		t.Errorf("%+v", d)
	}
	// A machine that is busy asks late, and is told the same with fewer answers.
	if ratio := d.ExchangesPerSecond / p.ExchangesPerSecond; ratio > 1.3 || ratio < 0.2 {
		t.Errorf("%.1f questions a second, %.1f simulated", d.ExchangesPerSecond, p.ExchangesPerSecond)
	}
	if ratio := d.AnswerBytes / p.AnswerBytes; ratio > 1.5 || ratio < 0.2 {
		t.Errorf("%.0f bytes a second, %.0f simulated", d.AnswerBytes, p.AnswerBytes)
	}
}

func TestSimulateRefusesWhatIsOutOfRange(t *testing.T) {
	for _, args := range [][]string{{"-nodes", "40", "-segments", "100", "-duration", "6s", "-down", "1s", "-daemons"}, {"-nodes", "2"}, {"-churn", "2"}, {"trace"}, {"-others", "-nodes", "9999"}} {
		if code, _, errs := ctl(t, append([]string{"simulate"}, args...)...); code != cli.ExitUsage || errs == "" {
			t.Errorf("%v: exit %d: %s", args, code, errs)
		}
	}
}
