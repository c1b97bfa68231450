package bench

import "testing"

func TestSamplesOfTheCodecAreThoseOfTheRows(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a model over a long text")
	}
	captured, err := capture(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	// Two attention layers of one head of 32, keys and values; six linear layers
	// of four states of 32 x 32, each with its transition.
	const kv, states = 2 * 2 * 32 * captureTokens, 6 * 4 * 2 * 32 * 32
	for i, want := range []int64{2 * kv, 4 * kv, 2 * states, 4 * states} {
		if got := captured[i].bytes(); got != want {
			t.Errorf("%s: %d bytes, want %d", captured[i].name, got, want)
		}
	}
	if s := synthetic(); s[0].bytes() != 8<<20 || s[1].bytes() != 16<<20 {
		t.Errorf("synthetic samples of %d and %d bytes", s[0].bytes(), s[1].bytes())
	}
}

func TestCodecRowsComeWithTheirFloor(t *testing.T) {
	s := &session{report: &Report{}}
	d := synthetic()[0]
	d.parts[0], d.asked = d.parts[0][:1<<20], true
	if err := codecRow(s, &d); err != nil {
		t.Fatal(err)
	}
	if len(s.report.Rows) != 3 || s.report.Rows[0].Value < 1.2 || s.report.Rows[0].Value > 2 {
		t.Errorf("%+v", s.report.Rows)
	}
	for _, r := range s.report.Rows[1:] {
		if r.Value <= 0 || r.Limit == nil || r.Bar == "" {
			t.Errorf("%+v", r)
		}
	}
}
