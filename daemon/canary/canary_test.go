package canary

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestReportsOfOneTenantAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	c := New(func() time.Time { now = now.Add(time.Second); return now })
	of := func(tenant, i int) (k Key) {
		k.Tenant = 1
		k.Fingerprint[0], k.Fingerprint[1], k.Fingerprint[2] = byte(i), byte(i>>8), byte(tenant)
		return k
	}
	if _, _, err := c.Add(of(0, 0), "", &wire.ReportRequest{Compared: 1}); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= maxRows; i++ {
		if off, _, err := c.Add(of(0, i), "", &wire.ReportRequest{Compared: 1, Off: 1}); err != nil || !off {
			t.Fatal(i, off, err)
		}
	}
	if _, _, err := c.Add(of(0, maxRows+1), "", &wire.ReportRequest{Compared: 1, Off: 1}); err == nil {
		t.Fatal("more rows than the bound")
	} else if code, _ := codes.Of(err); code != wire.Full {
		t.Fatal(err)
	}
	if rows := c.List(); len(rows) != maxRows || c.Sums().Off != maxRows {
		t.Fatalf("%d rows, %d off", len(rows), c.Sums().Off)
	}
	elsewhere := of(0, 1)
	elsewhere.Tenant = 2
	if off, _, err := c.Add(elsewhere, "", &wire.ReportRequest{Compared: 1}); err != nil || off {
		t.Fatal("another tenant is in the way of the first:", off, err)
	}
}

// A client reports again what was in force and could not be noted in time: that counts once. The
// slices of a decoded report alias the receive buffer, which the next report overwrites.
func TestReportsAreComparedAfterTheirBufferIsReused(t *testing.T) {
	c := New(time.Now)
	usual := wire.ReportRequest{Compared: 5}
	report := wire.ReportRequest{Compared: 60, Failed: 1, Worst: 2, Bound: 1, Off: 1, Text: "worse"}
	report.Losses = wire.ReportLosses{Present: true, Compared: []uint32{60, 0, 0, 0}, Changed: make([]uint32, 4)}
	other := report
	other.Losses.Compared = []uint32{0, 60, 0, 0}
	buffers := [2][]byte{make([]byte, 0, 1<<10), make([]byte, 0, 1<<10)}
	for i, row := range []struct {
		m        *wire.ReportRequest
		buffer   int
		compared uint64
	}{{&usual, 0, 5}, {&usual, 1, 10}, {&report, 0, 70}, {&report, 1, 70}, {&other, 1, 130}, {&other, 0, 130}, {&report, 0, 190}} {
		var m wire.ReportRequest
		b := row.m.Append(buffers[row.buffer][:0])
		if err := m.Decode(b); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Add(Key{Tenant: 1}, "", &m); err != nil {
			t.Fatal(err)
		}
		clear(b)
		if got := c.List()[0].Compared; got != row.compared {
			t.Errorf("report %d: %d comparisons, want %d", i, got, row.compared)
		}
	}
	if n := c.List()[0].Failed; n != 3 {
		t.Errorf("%d failed, want 3", n)
	}
	if l := c.List()[0].Losses; l[0].Canary.Compared != 120 || l[1].Canary.Compared != 60 {
		t.Errorf("losses %+v", l)
	}
}

// unreliable is a disk that takes a while.
type unreliable struct {
	refusals int
	content  []byte
	kept     chan []byte
}

func (u *unreliable) Note(string) ([]byte, error) {
	if u.refusals--; u.refusals >= 0 {
		return nil, tier.ErrUnavailable
	}
	return u.content, nil
}

func (u *unreliable) KeepNote(_ string, content []byte) error {
	u.kept <- content
	return nil
}

// remembered is a canary with a memory that has read its note; stop ends the memory.
func remembered(t *testing.T, disk *unreliable) (_ *Canary, stop func()) {
	t.Helper()
	c := New(time.Now)
	k := NewMemory(c, disk, []tiering.Tenant{{ID: 1, Name: "here"}}, zerolog.Nop())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	<-k.Loaded()
	return c, func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func TestNotesOfOthersAreKept(t *testing.T) {
	disk := &unreliable{refusals: 3, kept: make(chan []byte, 1), content: []byte(
		`[{"tenant":"gone","profile":"` + strings.Repeat("ab", 32) + `","model":"m","why":"w"}]`)}
	c, stop := remembered(t, disk)
	if _, err := c.Set(Key{Tenant: 1}, "m", true, ""); err != nil {
		t.Fatal(err)
	}
	if text := string(<-disk.kept); !strings.Contains(text, `"gone"`) || !strings.Contains(text, `"here"`) {
		t.Fatalf("kept %s", text)
	}
	stop()
}

// A note that is damaged switches everything off, and is left as it is, since a
// profile that it names may be one of those that answer wrongly.
func TestDamagedNoteFailsClosed(t *testing.T) {
	entry := `{"tenant":"here","profile":"` + strings.Repeat("ab", 32) + `","model":"m","why":"w"}`
	for _, content := range []string{
		"", "{", "null", "[", "[" + entry, "[" + entry + "]]", `[{"tenant":"here"}]`, `[{}]`, "[" + strings.Replace(entry, "tenant", "tenanu", 1) + "]",
		"[" + strings.Replace(entry, "ab", "xx", 1) + "]", strings.Repeat("\x00", 100),
	} {
		disk := &unreliable{kept: make(chan []byte, 1), content: []byte(content)}
		c, stop := remembered(t, disk)
		if !c.IsOff(Key{Tenant: 1}) || !c.IsOff(Key{Tenant: 2}) || !strings.Contains(c.Unknown(), "damaged") {
			t.Errorf("%q: what it switches off is on; %q", content, c.Unknown())
		}
		if _, err := c.Set(Key{Tenant: 1}, "m", false, ""); err == nil {
			t.Errorf("%q: switched on", content)
		}
		if _, err := c.Set(Key{Tenant: 1}, "m", true, "because"); err != nil {
			t.Errorf("%q: %v", content, err)
		}
		stop()
		if len(disk.kept) > 0 {
			t.Errorf("%q: written over with %s", content, <-disk.kept)
		}
	}
}

// failing is a disk that does not read for a while.
type failing struct{ unreliable }

func (f *failing) Note(string) ([]byte, error) {
	if f.refusals--; f.refusals >= 0 {
		return nil, errors.New("input/output error")
	}
	return nil, fs.ErrNotExist
}

// While the note does not read everything is off, and by itself on again after it.
func TestNoteThatDoesNotReadIsWaitedFor(t *testing.T) {
	disk := &failing{unreliable{refusals: 1}}
	c := New(time.Now)
	k := NewMemory(c, disk, nil, zerolog.Nop())
	if known, err := k.load(); known || err == nil || !c.IsOff(Key{Tenant: 1}) {
		t.Errorf("known %v, %v, off %v", known, err, c.IsOff(Key{Tenant: 1}))
	}
	if known, err := k.load(); !known || err != nil || c.IsOff(Key{Tenant: 1}) {
		t.Errorf("known %v, %v, off %v", known, err, c.IsOff(Key{Tenant: 1}))
	}
}

// FuzzNote: a note is refused, or is written again with all that it says.
func FuzzNote(f *testing.F) {
	f.Add([]byte(`[{"tenant":"here","profile":"` + strings.Repeat("ab", 32) + `","model":"m","since":"2026-01-02T03:04:05Z","why":"w"}]`))
	f.Add([]byte("[]"))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, content []byte) {
		list, err := parseNote(content)
		if err != nil {
			return
		}
		again, err := json.Marshal(list)
		if err != nil {
			return // a time that JSON has no form for
		}
		if back, err := parseNote(again); err != nil || len(back) != len(list) {
			t.Fatalf("%s was read, and not its own %s: %v", content, again, err)
		}
	})
}

func TestLossesAreCountedByWayAndSource(t *testing.T) {
	c := New(time.Now)
	of := Key{Tenant: 1}
	report := func(offline uint8, compared, changed [wire.LossWays]uint32) {
		t.Helper()
		m := wire.ReportRequest{Losses: wire.ReportLosses{Present: true, Offline: offline, Compared: compared[:], Changed: changed[:]}}
		if _, _, err := c.Add(of, "", &m); err != nil {
			t.Fatal(err)
		}
	}
	report(1, [wire.LossWays]uint32{300, 300, 40}, [wire.LossWays]uint32{43, 6})
	report(1, [wire.LossWays]uint32{200}, [wire.LossWays]uint32{30})  // another start: replaced, not added
	report(1, [wire.LossWays]uint32{0, 250}, [wire.LossWays]uint32{}) // another engine, which measured one way
	report(0, [wire.LossWays]uint32{100, 0, 9, 1}, [wire.LossWays]uint32{3})
	report(0, [wire.LossWays]uint32{98}, [wire.LossWays]uint32{6})
	known := c.List()[0].Losses.Known()
	want := []Loss{
		{Way{}, Counts{198, 9}, Counts{200, 30}}, {Way{Primed: true}, Counts{}, Counts{250, 0}},
		{Way{Refreshed: true}, Counts{9, 0}, Counts{40, 0}}, {Way{true, true}, Counts{1, 0}, Counts{}},
	}
	if !slices.Equal(known, want) {
		t.Fatalf("counted %+v, want %+v", known, want)
	}
	for i, expected := range []float64{40. / 400, 1. / 252, -1, -1} { // 49 comparisons are too few
		if got := known[i].Expected(); got != expected {
			t.Errorf("%+v: expected %v, want %v", known[i].Way, got, expected)
		}
	}
	report(0, [wire.LossWays]uint32{0, 0, 1}, [wire.LossWays]uint32{})
	if got := c.List()[0].Losses.Known()[2].Expected(); got != 1./52 {
		t.Errorf("expected %v of 50 comparisons without a change, want 1/52", got)
	}
}

func TestRequestsAreSplicedWithinTheirLimit(t *testing.T) {
	c := New(time.Now)
	of := Key{Tenant: 1}
	m := wire.ReportRequest{Losses: wire.ReportLosses{Present: true, Compared: []uint32{98, 98, 98, 20}, Changed: []uint32{9, 4, 1, 0}}}
	if _, _, err := c.Add(of, "", &m); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name              string
		of                Key
		max               float64
		primed, refreshed uint8
		segments          int
		want              wire.AdviseLoss
	}{
		{"anything", of, 1, 0, 0, 3, wire.AdviseLoss{Asked: 0.1, Refreshed: 0.02, Splicing: wire.SplicingAsked}},
		{"anything, of nothing known", Key{Tenant: 2}, 1, 0, 0, 3, wire.AdviseLoss{Asked: -1, Refreshed: -1, Splicing: wire.SplicingAsked}},
		{"within", of, 0.1, 0, 0, 3, wire.AdviseLoss{Asked: 0.1, Refreshed: 0.02, Splicing: wire.SplicingAsked}},
		{"only with the last in context", of, 0.09, 0, 0, 3, wire.AdviseLoss{Asked: 0.1, Refreshed: 0.02, Splicing: wire.SplicingRefreshed}},
		{"there is one", of, 0.09, 0, 0, 1, wire.AdviseLoss{Asked: 0.1, Refreshed: 0.02, Splicing: wire.SplicingNone}},
		{"beyond", of, 0.019, 0, 0, 3, wire.AdviseLoss{Asked: 0.1, Refreshed: 0.02, Splicing: wire.SplicingNone}},
		{"refreshed already", of, 0.02, 0, 1, 3, wire.AdviseLoss{Asked: 0.02, Refreshed: 0.02, Splicing: wire.SplicingAsked}},
		{"refreshed already, beyond", of, 0.01, 0, 1, 3, wire.AdviseLoss{Asked: 0.02, Refreshed: 0.02, Splicing: wire.SplicingNone}},
		{"primed", of, 0.05, 1, 0, 3, wire.AdviseLoss{Asked: 0.05, Refreshed: -1, Splicing: wire.SplicingAsked}},
		{"too little is known", of, 0.04, 1, 0, 3, wire.AdviseLoss{Asked: 0.05, Refreshed: -1, Splicing: wire.SplicingNone}},
		{"nothing is known", Key{Tenant: 2}, 0.99, 0, 0, 3, wire.AdviseLoss{Asked: -1, Refreshed: -1, Splicing: wire.SplicingNone}},
	} {
		t.Run(row.name, func(t *testing.T) {
			row.want.Present = true
			q := wire.AdviseLimit{Present: true, MaxLoss: row.max, Primed: row.primed, Refreshed: row.refreshed}
			if got := c.Limit(row.of, &q, row.segments); got != row.want {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}
