package bench

import (
	"errors"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"slices"
	"strings"
	"testing"
)

func TestSegmentsOfTheTierHaveTheSizesOfTheirRows(t *testing.T) {
	for _, size := range append(bulks(), bulk{"1MiB", 0, flatTokens, 256}) {
		p, err := benchProfile(size.name, size.layers, largeHeads)
		if err != nil {
			t.Fatal(err)
		}
		named := float64(size.bytes()) / float64(size.segments)
		if got := float64(p.SegmentLayout(size.tokens).Bytes); got < 0.98*named || got > 1.02*named {
			t.Errorf("%s: %.0f bytes", size.name, got)
		}
	}
	if small := (&session{}).pass(bulk{"64MiB", 0, 1, 8}); small.segments != 2 || small.bytes() != 128<<20 {
		t.Errorf("%+v", small)
	}
}

func TestWaysShowWhatTheyTook(t *testing.T) {
	s := &session{report: &Report{}}
	w := &way{name: "write", limit: baseline.Transfer{Write: true}, ask: bar{ratioAtLeast: 0.8}, used: machine.Usage{CPU: 1.5, Written: 2_200_000_000}, copied: 2_000_000_000}
	s.addWay(w, "1MiB", [][]float64{{4, 5, 3}, {2, 2, 2}, {3, 3.4, 9}})
	type figures struct {
		value, limit float64
		ok           bool
	}
	want := map[string]figures{
		"disk_write_1MiB": {3.4, 4, true}, "loop_write_1MiB": {2, 4, true},
		"disk_write_cpu_1MiB": {0.75, 0, false}, "disk_write_amplification_1MiB": {1.1, 0, false},
	}
	for _, r := range s.report.Rows {
		got := figures{r.Value, 0, r.OK}
		if r.Limit != nil {
			got.limit = *r.Limit
		}
		if got != want[r.Name] {
			t.Errorf("%s: %+v, want %+v", r.Name, got, want[r.Name])
		}
		delete(want, r.Name)
	}
	if delete(want, "disk_write_amplification_1MiB"); len(want) > 0 { // a kernel may keep no account
		t.Errorf("missing: %v", want)
	}
	s = &session{report: &Report{}}
	s.addWay(&way{name: "read", copied: 1}, "1MiB", [][]float64{nil, {2}, {1}})
	if r := s.report.Rows[0]; len(s.report.Rows) != 2 || r.Limit == nil || *r.Limit != 2 {
		t.Errorf("without fio: %+v", s.report.Rows)
	}
}

func TestFiguresAreTakenOfThePassAlone(t *testing.T) {
	failed := errors.New("failed")
	w := &way{pass: func() error { return failed }}
	if _, err := w.figure(1 << 30)(); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	ran := 0
	w = &way{pass: func() error { ran++; return nil }}
	if got, err := w.figure(1 << 30)(); err != nil || ran != 1 || len(got) != 1 || got[0] <= 0 || w.copied != 1<<30 {
		t.Errorf("%v %+v: %v", got, w, err)
	}
}

func TestSurvivalsOfTortureAreShown(t *testing.T) {
	notes, err := survivals([]byte(`{"loops": 50, "logged_acked": 200, "logged_survived": 199, "synced_acked": 100, "synced_survived": 100, "corrupt": 0}`))
	text := strings.Join(notes, "\n")
	if err != nil || !strings.Contains(text, "199 of 200, 99.5 %") || !strings.Contains(text, "synced: 100 of 100, 100 %") ||
		!strings.Contains(text, "23 %") || strings.Contains(text, "memory") {
		t.Errorf("%s: %v", text, err)
	}
	for _, bad := range []string{"", "{}", `{"loops": 3}`, "[]"} {
		if notes, err := survivals([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, notes)
		}
	}
}

func TestTimeOfADeviceIsRead(t *testing.T) {
	if got := busySeconds("  1 2 3 4 5 6 7 8 9 1500 11 12\n"); got != 1.5 {
		t.Errorf("%v s", got)
	}
	if got := busySeconds("1 2 3"); got != 0 {
		t.Errorf("%v s of a short line", got)
	}
	if got := blockDevice("").busy(); got != 0 {
		t.Errorf("no device was busy for %v s", got)
	}
}

func TestSuitesHaveSectionsOfTheirOwn(t *testing.T) {
	if quick, disk := SectionNames("quick"), SectionNames("disk"); slices.Contains(quick, "bulk") || !slices.Contains(disk, "bulk") ||
		!slices.Equal(SectionNames("smoke"), quick) || !slices.Equal(SectionNames("disk-smoke"), disk) {
		t.Errorf("%v and %v", quick, disk)
	}
	if scale := SectionNames("scale"); !slices.Contains(scale, "clients") || !slices.Equal(SectionNames("scale-smoke"), scale) {
		t.Errorf("sections of scale: %v", scale)
	}
	if _, err := Run(t.Context(), Options{Suite: "none"}); err == nil {
		t.Error("a suite that is not there was run")
	}
}
