package show

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

func TestSizesReadWell(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 30: "1 GiB", 5<<40 + 1<<39: "5.5 TiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// Rates and measures are read by people: none has an exponent, whatever its size.
func TestNumbersHaveNoExponent(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 5648.2: "5,648", 12.345: "12.3", 99.96: "100", 0.04567: "0.0457", 7.5e-5: "0.000075", 1.5e-9: "< 0.000001",
		-3.25: "-3.25", 1e12: "1,000,000,000,000", 0.5: "0.5", 20: "20",
	} {
		if got := Number(v); got != want {
			t.Errorf("%g: %q, want %q", v, got, want)
		}
	}
}

func TestCellsReadWell(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	for want, cell := range map[string]any{
		"5s": Age{now.Add(-5 * time.Second), now}, "1m": Age{now.Add(-90 * time.Second), now}, "47h": Age{now.Add(-47 * time.Hour), now},
		"2d": Age{now.Add(-49 * time.Hour), now}, "-": Age{time.Time{}, now}, "12.5 ms": Millis(12.5), "1.25 s": Millis(1250),
		"60.1 %": Share(0.601), "1,234,567": Count(1234567), "999": Count(999), "0": Count(0), "1 KiB": Size(1024),
	} {
		if got := cell.(interface{ String() string }).String(); got != want {
			t.Errorf("%#v: %q, want %q", cell, got, want)
		}
	}
	if got := Share(math.NaN()).String(); got != "-" {
		t.Errorf("no share: %q", got)
	}
}

type item struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

var view = View[item]{[]string{"NAME", "SIZE", "+LAST USE"}, func(i *item) []any { return []any{i.Name, Size(i.Size), "x"} }}

func page() *Page {
	return Of([]item{{"b", 900}, {"a", 2048}, {"c", 900}}, false, view)
}

func TestAPageIsSortedByWhatCellsAreAndCut(t *testing.T) {
	p := page()
	if err := p.Sort("-size"); err != nil {
		t.Fatal(err)
	}
	if got := p.Items[0].(item).Name + p.Items[1].(item).Name + p.Items[2].(item).Name; got != "abc" {
		t.Errorf("by size: %s", got)
	}
	p.Cut(2)
	if err := p.Sort("NAME"); err != nil || !p.More || len(p.Items) != 2 || p.Rows[1][0] != "b" {
		t.Errorf("%v %+v", err, p)
	}
	if err := p.Sort("last-use"); err != nil {
		t.Error(err)
	}
	if err := p.Sort("colour"); err == nil || !strings.Contains(err.Error(), "name, size, last-use") {
		t.Errorf("%v", err)
	}
}

func TestATableLinesUpAndShowsWideColumnsOnlyThen(t *testing.T) {
	var b bytes.Buffer
	if err := page().Write(&b, false); err != nil {
		t.Fatal(err)
	}
	if want := "NAME  SIZE\nb     900 B\na     2 KiB\nc     900 B\n"; b.String() != want {
		t.Errorf("%q", &b)
	}
	b.Reset()
	p := page()
	p.Named("NODE", "n\x1b中")
	if err := p.Write(&b, true); err != nil || !strings.HasPrefix(b.String(), "NODE       NAME  SIZE   LAST USE\nn\\u001b中  b     900 B  x\n") {
		t.Errorf("%v\n%s", err, &b)
	}
}

func TestColoursAreForTerminals(t *testing.T) {
	for name, r := range map[string]struct {
		env  []string
		want string
	}{
		"no terminal": {nil, "A\nok\n"},
		"forced":      {[]string{"CLICOLOR_FORCE=1", "TERM=xterm"}, "\x1b[1mA\x1b[0m\n\x1b[32mok\x1b[0m\n"},
		"forbidden":   {[]string{"CLICOLOR_FORCE=1", "TERM=xterm", "NO_COLOR=1"}, "A\nok\n"},
	} {
		var b bytes.Buffer
		table := NewTable(terminal.NewWriter(&b, r.env), "A")
		table.Row(State("ok"))
		if err := table.Flush(); err != nil || b.String() != r.want {
			t.Errorf("%s: %v %q", name, err, &b)
		}
	}
}

func TestYAMLSaysWhatJSONSays(t *testing.T) {
	in := map[string]any{"b": []any{}, "a": []any{1.5, "true", "12", "two\nlines", nil, "\x1b[2J"}, "c": map[string]any{}}
	var b bytes.Buffer
	if err := YAML(&b, in); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(b.String(), "\x1b") || !strings.Contains(b.String(), "a:\n  - 1.5\n  - \"true\"\n") {
		t.Errorf("%s", &b)
	}
	var back map[string]any
	if err := yaml.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	x, _ := json.Marshal(in)
	y, _ := json.Marshal(back)
	if !bytes.Equal(x, y) {
		t.Errorf("%s\n%s", x, y)
	}
}
