// Package top is a live screen of one node. The model is independent of the terminal: it
// receives events and returns the screen's content.
package top

import (
	"context"
	"errors"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/spliced-kv/spliced/api"
)

// Snapshot is the state of a node at one time.
type Snapshot struct {
	At          time.Time
	Overview    api.Overview
	Told        bool // the node reports usage, requests and history
	Counters    map[string]float64
	Requests    []api.Request
	Usage       []api.Usage
	Connections []api.Connection
}

// Source queries a node.
type Source func(context.Context) (*Snapshot, error)

// Options define what is shown, and how.
type Options struct {
	Source Source
	Every  time.Duration
	Colour bool
}

// Bounds of the query interval set by keys.
const (
	leastEvery = 500 * time.Millisecond
	mostEvery  = time.Minute
)

// pane is the content of the lower part of the screen.
type pane int

const (
	requests pane = iota
	usage
	connections
	panes
)

// Model is the state of a screen.
//
// Invariant: at most one query is in flight. While a query is in flight or the screen is
// paused, no timer runs.
type Model struct {
	ctx context.Context
	o   Options

	width, height int
	pane          pane
	paused        bool
	asking        bool
	ticks         int // number of the current timer; ticks of older timers are ignored

	last, before *Snapshot // nil = nothing yet
	err          error     // of the latest query
}

// New creates a screen that queries until the context ends.
func New(ctx context.Context, o Options) *Model {
	return &Model{ctx: ctx, o: o, width: 80, height: 24, asking: true}
}

type (
	answered struct {
		snapshot *Snapshot
		err      error
	}
	tick int
)

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return m.question() }

func (m *Model) question() tea.Cmd {
	return func() tea.Msg {
		s, err := m.o.Source(m.ctx)
		return answered{s, err}
	}
}

// ask queries now, unless a query is in flight.
func (m *Model) ask() tea.Cmd {
	if m.asking {
		return nil
	}
	m.asking = true
	return m.question()
}

// wait restarts the timer.
func (m *Model) wait() tea.Cmd {
	m.ticks++
	n := m.ticks
	return tea.Tick(m.o.Every, func(time.Time) tea.Msg { return tick(n) })
}

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, 20), max(msg.Height, 5)
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	case answered:
		m.asking, m.err = false, msg.err
		if msg.err == nil {
			m.before, m.last = m.last, msg.snapshot
			if m.before != nil && m.before.Overview.Status.BootEpoch != m.last.Overview.Status.BootEpoch {
				m.before = nil // the counters have restarted
			}
		}
		if errors.Is(msg.err, context.Canceled) {
			return m, tea.Quit
		}
		if !m.paused {
			return m, m.wait()
		}
	case tick:
		if int(msg) == m.ticks && !m.paused {
			return m, m.ask()
		}
	}
	return m, nil
}

func (m *Model) key(name string) tea.Cmd {
	switch name {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "p", "space":
		if m.paused = !m.paused; !m.paused {
			return m.ask()
		}
	case "r", "enter":
		return m.ask()
	case "tab", "right", "l":
		m.pane = (m.pane + 1) % panes
	case "shift+tab", "left", "h":
		m.pane = (m.pane + panes - 1) % panes
	case "+":
		m.o.Every = max(m.o.Every/2, min(m.o.Every, leastEvery))
	case "-":
		m.o.Every = min(m.o.Every*2, max(m.o.Every, mostEvery))
	}
	return nil
}
