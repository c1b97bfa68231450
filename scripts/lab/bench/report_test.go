package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestBarsAreMetByTheirParts(t *testing.T) {
	rows := []struct {
		bar          bar
		value, limit float64
		text         string
		ok           bool
	}{
		{bar{}, 5, 0, "", true},
		{bar{atMost: 20}, 20, 0, "≤20", true},
		{bar{atMost: 20}, 20.5, 0, "≤20", false},
		{bar{atMost: 20, ratioAtMost: 1.3}, 25, 20, "≤20 or ≤1.3×limit", true},
		{bar{atMost: 20, ratioAtMost: 1.3}, 27, 20, "≤20 or ≤1.3×limit", false},
		{bar{atMost: 20, ratioAtMost: 1.3}, 27, 0, "≤20 or ≤1.3×limit", false}, // no limit: that part is not met
		{bar{ratioAtLeast: 0.65}, 6.5, 10, "≥0.65×limit", true},
		{bar{ratioAtLeast: 0.65}, 6.4, 10, "≥0.65×limit", false},
		{bar{atLeast: 2.5}, 2.4, 10, "≥2.5", false},
		{bar{atLeast: 2, ratioAtLeast: 0.5, all: true}, 3, 10, "≥2 and ≥0.5×limit", false},
		{bar{atLeast: 2, ratioAtLeast: 0.5, all: true}, 5, 10, "≥2 and ≥0.5×limit", true},
	}
	for _, r := range rows {
		got := row("x", "u", r.value, r.limit, r.bar)
		if got.Bar != r.text || got.OK != r.ok {
			t.Errorf("%v of %v with %+v: %q ok=%v, want %q ok=%v", r.value, r.limit, r.bar, got.Bar, got.OK, r.text, r.ok)
		}
	}
}

func TestRowsRoundToFourDigits(t *testing.T) {
	for v, want := range map[float64]float64{0: 0, 1.23456: 1.235, 123456: 123500, 0.000123456: 0.0001235, -98765: -98770} {
		if got := round4(v); got != want {
			t.Errorf("%v: %v, want %v", v, got, want)
		}
	}
}

func TestReportHasTheFixedFields(t *testing.T) {
	r := Report{Machine: "m", Commit: "c", Date: time.Unix(0, 0).UTC(), Suite: "quick",
		Rows:    []Row{row("with", "µs", 10, 8, bar{atMost: 20}), row("without", "ms", 30, 0, bar{atMost: 20})},
		Skipped: []Skip{{Name: "gone", Reason: "no library"}}}
	text, err := json.Marshal(&r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"machine":"m","commit":"c","date":"1970-01-01T00:00:00Z","suite":"quick","rows":[` +
		`{"name":"with","value":10,"unit":"µs","limit":8,"ratio":1.25,"bar":"≤20","ok":true},` +
		`{"name":"without","value":30,"unit":"ms","limit":null,"ratio":null,"bar":"≤20","ok":false}],` +
		`"skipped":[{"name":"gone","reason":"no library"}]}`
	if string(text) != want {
		t.Errorf("%s", text)
	}
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"MISSED", "no library", "1.25"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("%q is missing in:\n%s", part, &b)
		}
	}
}

func TestQuantilesAreNearestRanks(t *testing.T) {
	s := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.8: 4, 0.99: 5, 1: 5} {
		if got := quantile(s, q); got != want {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if s[0] != 5 || quantile(nil, 0.5) != 0 {
		t.Error("samples were sorted in place, or none made a number")
	}
}

func TestAlternateInterleavesAndStopsAtTheFirstError(t *testing.T) {
	order := ""
	figure := func(name string) func() ([]float64, error) {
		return func() ([]float64, error) { order += name; return []float64{float64(len(order))}, nil }
	}
	out, err := alternate(2, figure("a"), figure("b"))
	if err != nil || order != "abab" || len(out[0]) != 2 || out[1][1] != 4 {
		t.Errorf("%s %v %v", order, out, err)
	}
	broken := errors.New("broken")
	if _, err := alternate(3, figure("c"), func() ([]float64, error) { return nil, broken }); !errors.Is(err, broken) || order != "ababc" {
		t.Errorf("%s %v", order, err)
	}
}
