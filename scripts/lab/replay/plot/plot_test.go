package plot

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

func percent(v float64) string { return fmt.Sprintf("%.0f %%", v) }

func draw(t *testing.T, c Chart) string {
	t.Helper()
	var b strings.Builder
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return b.String()
		} else if err != nil {
			t.Fatalf("not well-formed: %v\n%s", err, &b)
		}
	}
}

func TestLinesNameAxesUnitsAndSeries(t *testing.T) {
	text := draw(t, Chart{Title: "Hits <&>", Subtitle: "a trace", X: Axis{Name: "capacity, GB", Log: true}, Y: Axis{Name: "token hit rate, %", Format: percent},
		Series: []Series{
			{Name: "lru", X: []float64{10, 100}, Y: []float64{10, 31}},
			{Name: "bound", X: []float64{10, 100}, Y: []float64{20, 40}, Dashed: true},
			{Name: "gap", X: []float64{10, 100}, Y: []float64{12, math.NaN()}},
		}})
	for _, want := range []string{"Hits &lt;&amp;&gt;", "capacity, GB", "token hit rate, %", ">lru 31 %<", ">bound 40 %<", ">gap 12 %<", "stroke-dasharray", ">100<", ">40 %<"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if !strings.Contains(text, `viewBox="0 0 820 `) {
		t.Error("short names widen the picture")
	}
	if n := strings.Count(text, "<circle"); n != 3 {
		t.Errorf("%d markers, want 3: references and gaps have none", n)
	}
}

func TestLongNamesHaveRoom(t *testing.T) {
	text := draw(t, Chart{Series: []Series{{Name: strings.Repeat("long ", 8), X: []float64{1, 2}, Y: []float64{1, 2}}}})
	if !strings.Contains(text, `viewBox="0 0 1033 `) {
		t.Errorf("no room for 42 letters: %.120s", text)
	}
}

func TestOneValueOfXIsBars(t *testing.T) {
	text := draw(t, Chart{Title: "Hits", X: Axis{Name: "capacity, GB"}, Y: Axis{Name: "token hit rate", Format: percent},
		Series: []Series{{Name: "lru", X: []float64{40}, Y: []float64{26.6}}, {Name: "default", X: []float64{40}, Y: []float64{44}}}})
	for _, want := range []string{">lru<", ">default<", ">27 %<", ">44 %<", "token hit rate, at capacity, GB = 40"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Count(text, "<rect") != 3 {
		t.Error("not two bars on a ground")
	}
}

func TestNothingIsDrawnOfNonsense(t *testing.T) {
	for _, c := range []Chart{
		{}, {Series: []Series{{X: []float64{1}}}},
		{Series: []Series{{X: []float64{math.NaN()}, Y: []float64{1}}}},
		{X: Axis{Log: true}, Series: []Series{{X: []float64{0}, Y: []float64{1}}}},
	} {
		if err := c.Write(io.Discard); err == nil {
			t.Errorf("%+v is drawn", c)
		}
	}
}

func TestTicksAreRoundAndReachTheTop(t *testing.T) {
	for most, want := range map[float64][]float64{0: {0, .2, .4, .6, .8, 1}, 0.65: {0, .2, .4, .6, .8}, 57: {0, 10, 20, 30, 40, 50, 60}, 1000: {0, 200, 400, 600, 800, 1000}} {
		got := ticks(most)
		if !slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
			t.Errorf("to %g: %v, want %v", most, got, want)
		}
	}
}

func TestNamesDoNotLieOnEachOther(t *testing.T) {
	got := spread([]float64{100, 101, 50, 399}, 17, 0, 400)
	if want := []float64{100, 117, 50, 399}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	got = spread([]float64{395, 399}, 17, 0, 400)
	if want := []float64{383, 400}; !slices.Equal(got, want) {
		t.Errorf("at the end: %v, want %v", got, want)
	}
}
