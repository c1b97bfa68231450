package torture

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

func good() Report {
	return Report{
		Loops: 2, SyncedAcked: 10, SyncedSurvived: 10, LoggedAcked: 100, LoggedSurvived: 99, MemoryAcked: 9,
		PowerCrashes: 3, PowerSyncedAcked: 5, PowerSyncedSurvived: 5, PowerLoggedAcked: 7,
		Rounds: []Round{{Round: 1, Crash: "after 12 ms", Variant: "codec none"}},
		Power: []Round{
			{Round: 1, Variant: "codec all", Kept: 30, Tallies: Tallies{Synced: Tally{2, 2}}},
			{Round: 2, Variant: "codec all", Kept: 100, Tallies: Tallies{Synced: Tally{1, 1}}},
			{Round: 3, Variant: "codec all", Kept: 30, Tallies: Tallies{Synced: Tally{3, 3}}},
		},
	}
}

func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *Report)
		want   string
	}{
		"good":             {func(r *Report) {}, ""},
		"one synced lost":  {func(r *Report) { r.SyncedSurvived-- }, "1 of 10 acknowledged as synced are lost"},
		"two logged lost":  {func(r *Report) { r.LoggedSurvived = 98 }, "98 of 100"},
		"wrong bytes":      {func(r *Report) { r.Corrupt = 1 }, "other bytes"},
		"phantom":          {func(r *Report) { r.Phantom = 2 }, "2 names"},
		"damage":           {func(r *Report) { r.Damaged = 3 }, "finds 3 problems"},
		"nothing synced":   {func(r *Report) { r.SyncedAcked, r.SyncedSurvived = 0, 0 }, "nothing is proved"},
		"nothing logged":   {func(r *Report) { r.LoggedAcked, r.LoggedSurvived = 0, 0 }, "nothing is proved"},
		"power: synced":    {func(r *Report) { r.PowerSyncedSurvived = 0 }, "power: 5 of 5"},
		"power: corrupt":   {func(r *Report) { r.PowerCorrupt = 1 }, "power: 1 reads"},
		"power: phantom":   {func(r *Report) { r.PowerPhantom = 1 }, "power: 1 names"},
		"power: nothing":   {func(r *Report) { r.PowerSyncedAcked, r.PowerSyncedSurvived = 0, 0 }, "power: nothing"},
		"memory need not":  {func(r *Report) { r.MemorySurvived = 0 }, ""},
		"power takes logs": {func(r *Report) { r.PowerLoggedSurvived = 0 }, ""},
	} {
		r := good()
		c.change(&r)
		mustFail(t, name, r.Failures(), r.Print, c.want)
	}
}

// mustFail expects a report to fail with a text that has want in it, or not at all.
func mustFail(t *testing.T, name string, failures []string, print func(io.Writer) error, want string) {
	t.Helper()
	bad := strings.Join(failures, "; ")
	if want == "" && bad != "" || !strings.Contains(bad, want) {
		t.Errorf("%s: %q, want %q", name, bad, want)
	}
	var text bytes.Buffer
	if err := print(&text); err != nil || strings.Contains(text.String(), "FAILED: ") != (want != "") {
		t.Errorf("%s: %v\n%s", name, err, &text)
	}
}

func TestPowerCutsAreSummedUpByKind(t *testing.T) {
	var text bytes.Buffer
	r := good()
	if err := r.Print(&text); err != nil {
		t.Fatal(err)
	}
	lines := strings.Join(strings.Fields(text.String()), " ")
	for _, want := range []string{"2 5/5 0/0 0/0 0 MiB 0 0 codec all 30 %", "1 1/1 0/0 0/0 0 MiB 0 0 codec all 100 %"} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
}

func TestReportHasTheFieldsThatScriptsRead(t *testing.T) {
	r := good()
	b, err := json.Marshal(&r)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for _, f := range strings.Fields("synced_acked synced_survived logged_acked logged_survived memory_acked memory_survived corrupt phantom " +
		"loops power_synced_acked power_synced_survived power_corrupt power_phantom power_crashes seed version commit duration_s put_per_s") {
		if _, ok := m[f]; !ok {
			t.Errorf("no %s in %s", f, b)
		}
	}
}
