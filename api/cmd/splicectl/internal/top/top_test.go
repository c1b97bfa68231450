package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/spliced-kv/spliced/api"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func snapshotAt(seconds int) *Snapshot {
	n := uint64(seconds)
	return &Snapshot{
		At: noon.Add(time.Duration(seconds) * time.Second), Told: true,
		Overview: api.Overview{
			Status: api.Status{Node: "node-1\x1b[2J", Version: "v9", BootEpoch: 7, Started: noon.Add(-time.Hour), Checks: []api.Check{{Name: "disk", State: "degraded", Detail: "slow"}}},
			Usage:  api.Usage{Requests: 10 * n, Prompt: 1000 * n, Prefix: 400 * n, Reused: 200 * n, Saved: 50 * float64(n)},
			Pools:  []api.Pool{{Tier: "dram", Name: "public", UsedBytes: 1 << 29, CapacityBytes: 1 << 30, Objects: 7}, {Tier: "hbm", Name: "public", Device: "GPU-1"}},
			History: api.History{StepSeconds: 10, Series: map[string][]float64{"requests": {0, 5, 10}, "prompt_tokens": {0, 100, 100},
				"prefix_tokens": {0, 50, 100}, "reused_tokens": {0, 0, 0}, "engine_tokens": {0, 0, 0}}},
		},
		Counters: map[string]float64{"published": 4 * float64(n), "disk_read_bytes": 2048 * float64(n)},
		Requests: []api.Request{{ID: 12, At: noon, Tenant: "a", Way: "splice", Prompt: 1000}},
		Usage:    []api.Usage{{Tenant: "tenant-b", Model: "m"}}, Connections: []api.Connection{{ID: 3, Client: "vllm"}},
	}
}

// told makes a screen that was told of snapshots.
func told(o Options, snapshots ...*Snapshot) *Model {
	m := New(context.Background(), o)
	m.Update(tea.WindowSizeMsg{Width: 120, Height: 40})
	for _, s := range snapshots {
		m.Update(answered{s, nil})
	}
	return m
}

func key(name string) tea.KeyPressMsg {
	switch name {
	case "tab":
		return tea.KeyPressMsg{Code: tea.KeyTab}
	case "ctrl+c":
		return tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
	}
	return tea.KeyPressMsg{Text: name, Code: rune(name[0])}
}

func contains(t *testing.T, m *Model, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if view := m.screen(); !strings.Contains(view, text) {
			t.Errorf("no %q in\n%s", text, view)
		}
	}
}

func TestTheScreenShowsWhatANodeTells(t *testing.T) {
	m := told(Options{Every: time.Second}, snapshotAt(10))
	contains(t, m, "node-1\\u001b[2J  spliced v9  up 60.2 min", "degraded: disk: slow", "token hit ratio  60.0 %  of 10,000 prompt tokens    time saved  500 ms",
		"hit ratio         ▄█", "requests          ▄█", "after the next answer", "dram public   ███████████████░░░", "512 MiB of 1 GiB", "GPU-1", "12       10s  a       splice")
	m.Update(answered{snapshotAt(12), nil})
	contains(t, m, "10 requests/s, 1e+03 tokens/s, 50 ms saved/s, 4 published/s, 0 evicted/s, disk 2 KiB/s read")
	m.Update(key("tab"))
	contains(t, m, "tenant-b")
	m.Update(key("tab"))
	contains(t, m, "vllm")
	restarted := snapshotAt(13)
	restarted.Overview.Status.BootEpoch++
	m.Update(answered{restarted, nil})
	contains(t, m, "after the next answer")
	m.Update(answered{nil, errors.New("gone")})
	contains(t, m, "gone", "node-1") // what was known stays
	old := snapshotAt(1)
	old.Told = false
	contains(t, told(Options{}, old, old), "does not report requests", "512 MiB")
}

func TestEveryLineFitsTheScreen(t *testing.T) {
	s := snapshotAt(10)
	for i := range 100 {
		s.Requests = append(s.Requests, api.Request{ID: uint64(i), Model: strings.Repeat("中", 100)})
	}
	for _, colour := range []bool{false, true} {
		m := told(Options{Colour: colour}, s, snapshotAt(12), s)
		for _, size := range [][2]int{{20, 5}, {80, 24}, {1, 1}, {300, 100}} {
			m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
			lines := strings.Split(m.screen(), "\n")
			if len(lines) != max(size[1], 5) {
				t.Errorf("%v: %d lines", size, len(lines))
			}
			for _, line := range lines {
				if ansi.StringWidth(line) > max(size[0], 20) || !utf8.ValidString(line) || strings.Contains(line, "\x1b[2J") {
					t.Errorf("%v: %q", size, line)
				}
			}
		}
	}
}

func TestKeysPauseAskAndEnd(t *testing.T) {
	m := New(context.Background(), Options{Every: 4 * time.Second, Source: func(context.Context) (*Snapshot, error) { return snapshotAt(1), nil }})
	if _, cmd := m.Update(key("r")); cmd != nil {
		t.Error("asked twice at once")
	}
	if _, cmd := m.Update(answered{snapshotAt(1), nil}); cmd == nil {
		t.Error("no tick is awaited")
	}
	if _, cmd := m.Update(tick(m.ticks + 1)); cmd != nil {
		t.Error("a tick of another timer counts")
	}
	_, cmd := m.Update(tick(m.ticks))
	if cmd == nil || cmd().(answered).snapshot == nil {
		t.Fatal("a tick asks nothing")
	}
	m.Update(key("p"))
	if _, cmd := m.Update(answered{snapshotAt(2), nil}); cmd != nil || !strings.Contains(m.screen(), "paused") {
		t.Error("it goes on while paused")
	}
	if _, cmd := m.Update(key("p")); cmd == nil {
		t.Error("it does not go on")
	}
	for range 20 {
		m.Update(key("+"))
	}
	if m.o.Every != leastEvery {
		t.Errorf("every %v", m.o.Every)
	}
	for range 20 {
		m.Update(key("-"))
	}
	if m.o.Every != mostEvery {
		t.Errorf("every %v", m.o.Every)
	}
	for _, name := range []string{"q", "ctrl+c"} {
		if _, cmd := m.Update(key(name)); cmd == nil || fmt.Sprintf("%T", cmd()) != "tea.QuitMsg" {
			t.Errorf("%s does not end it", name)
		}
	}
}

// What --every may say goes further than the keys do: they never turn it the other way.
func TestFasterIsNotSlower(t *testing.T) {
	for _, every := range []time.Duration{100 * time.Millisecond, time.Hour} {
		m := New(context.Background(), Options{Every: every})
		name := map[bool]string{true: "+", false: "-"}[every < leastEvery]
		if m.Update(key(name)); m.o.Every != every {
			t.Errorf("%s after %v: %v", name, every, m.o.Every)
		}
	}
}

// screenOf is a terminal that tells when a text stands on it.
type screenOf struct {
	text  string
	seen  chan struct{}
	mu    sync.Mutex
	b     bytes.Buffer
	ended bool
}

func (s *screenOf) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Write(p)
	if !s.ended && strings.Contains(s.b.String(), s.text) {
		s.ended = true
		close(s.seen)
	}
	return len(p), nil
}

// A program runs on anything that takes its output.
func TestAProgramShowsAndEnds(t *testing.T) {
	m := New(t.Context(), Options{Every: time.Millisecond, Source: func(context.Context) (*Snapshot, error) { return snapshotAt(3), nil }})
	out := &screenOf{text: "token hit ratio", seen: make(chan struct{})}
	p := tea.NewProgram(m, tea.WithContext(t.Context()), tea.WithInput(nil), tea.WithOutput(out), tea.WithoutSignals(), tea.WithWindowSize(120, 40))
	done := make(chan error, 1)
	go func() {
		_, err := p.Run()
		done <- err
	}()
	<-out.seen
	p.Send(key("q"))
	if err := <-done; err != nil {
		t.Error(err)
	}
}
