package bench

import (
	"math"
	"testing"
)

// small is a session with the fewest rounds.
func small() *session { return &session{effort: 0, report: &Report{}} }

func names(s *session) map[string]bool {
	out := map[string]bool{}
	for _, r := range s.report.Rows {
		out[r.Name] = r.Value > 0 && !math.IsInf(r.Value, 0)
	}
	for _, k := range s.report.Skipped {
		out[k.Name] = k.Reason != ""
	}
	return out
}

func TestKernelRowsAreAllThere(t *testing.T) {
	s := small()
	if err := composeRows(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := rotateRows(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	got := names(s)
	for _, name := range []string{"compose_dense_f16", "compose_dense_vs_openblas", "rotate_bf16_1MiB", "rotate_bf16_128MiB"} {
		if !got[name] {
			t.Errorf("%s is missing or has no value: %+v", name, s.report)
		}
	}
}

func TestDenseJobStaysFinite(t *testing.T) {
	j := newDenseJob()
	for range 50 {
		j.run()
	}
	for i, v := range j.state {
		if math.IsNaN(float64(v)) || math.Abs(float64(v)) > 1e3 {
			t.Fatalf("state[%d] is %v after 50 rounds: the figure would be that of denormals or infinities", i, v)
		}
	}
	if j.state[0] == 0 {
		t.Error("nothing was composed")
	}
}
