package top

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

// View implements tea.Model. It uses the alternate screen.
func (m *Model) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	return v
}

// screen returns the content, one line per line of the terminal.
func (m *Model) screen() string {
	lines := m.head()
	if m.last != nil {
		lines = append(lines, m.served()...)
		lines = append(lines, "")
		lines = append(lines, m.tiers()...)
		lines = append(lines, "")
		lines = append(lines, m.lower()...)
	}
	foot := "q quit  p pause  r now  tab requests, usage, connections  + faster  - slower"
	if len(lines) > m.height-1 {
		lines = lines[:m.height-1]
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, m.paint("2", foot))
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], m.width, "…")
	}
	return strings.Join(lines, "\n")
}

func (m *Model) paint(style, text string) string {
	if !m.o.Colour {
		return text
	}
	return show.Paint(style, text)
}

func (m *Model) head() []string {
	state := fmt.Sprintf("every %v", m.o.Every)
	if m.paused {
		state = "paused"
	}
	var lines []string
	if m.last == nil {
		lines = append(lines, "asking …  "+state)
	} else {
		s := &m.last.Overview.Status
		lines = append(lines, m.paint("1", terminal.Line(s.Node))+fmt.Sprintf("  spliced %s  up %s  at %s  %s", terminal.Line(s.Version),
			show.Long(m.last.At.Sub(s.Started)), m.last.At.Format(time.TimeOnly), state))
		for _, check := range s.Checks {
			if check.State != api.CheckOK {
				lines = append(lines, m.paint("33", terminal.Line(check.State+": "+check.Name+": "+check.Detail)))
			}
		}
	}
	if m.err != nil {
		lines = append(lines, m.paint("31", terminal.Line(m.err.Error())))
	}
	return append(lines, "")
}

// served formats the hit ratio, the time saved and rates.
func (m *Model) served() []string {
	o := &m.last.Overview
	if !m.last.Told {
		return []string{"this version of the daemon does not report requests", m.rates()}
	}
	u := &o.Usage
	ratio := func(prefix, reused, prompt, engine float64) show.Share {
		return show.ShareOf(prefix+reused, prompt-engine)
	}
	lines := []string{
		fmt.Sprintf("token hit ratio  %s  of %s prompt tokens    time saved  %s", m.paint("1", ratio(float64(u.Prefix), float64(u.Reused),
			float64(u.Prompt), float64(u.Engine)).String()), show.Count(u.Prompt), show.LongMillis(u.Saved)),
	}
	h := o.History.Series
	var ratios []float64
	for i := range h["prompt_tokens"] {
		ratios = append(ratios, float64(ratio(at(h["prefix_tokens"], i), at(h["reused_tokens"], i), at(h["prompt_tokens"], i), at(h["engine_tokens"], i))))
	}
	wide := max(10, min(m.width-20, 120))
	if len(ratios) > 0 {
		lines = append(lines, "hit ratio        "+spark(ratios, 1, wide), "requests         "+spark(h["requests"], 0, wide))
	}
	held := fmt.Sprintf("%s segments, %s checkpoints, %d leases, %d connections", show.Count(o.Segments), show.Count(o.Checkpoints), o.Leases, o.Connections)
	return append(lines, m.rates(), held)
}

func at(series []float64, i int) float64 {
	if i < len(series) {
		return series[i]
	}
	return 0
}

// rates formats the increments between the latest two snapshots.
func (m *Model) rates() string {
	if m.before == nil {
		return "rates            after the next answer"
	}
	seconds := m.last.At.Sub(m.before.At).Seconds()
	if seconds <= 0 {
		return "rates            -"
	}
	per := func(counter string) float64 { return (m.last.Counters[counter] - m.before.Counters[counter]) / seconds }
	text := "rates           "
	if m.last.Told {
		u, b := &m.last.Overview.Usage, &m.before.Overview.Usage
		text += fmt.Sprintf(" %.3g requests/s, %.3g tokens/s, %.3g ms saved/s,", (float64(u.Requests)-float64(b.Requests))/seconds,
			(float64(u.Prompt)-float64(b.Prompt))/seconds, (u.Saved-b.Saved)/seconds)
	}
	return text + fmt.Sprintf(" %.3g published/s, %.3g evicted/s, disk %s/s read, %s/s written", per("published"), per("evicted_room")+per("evicted_quota"),
		show.Bytes(int64(per("disk_read_bytes"))), show.Bytes(int64(per("disk_written_bytes"))))
}

// tiers formats a bar for each pool.
func (m *Model) tiers() []string {
	const width = 30
	var lines []string
	pools := m.last.Overview.Pools
	for i := range pools {
		p := &pools[i]
		full := 0
		if p.CapacityBytes > 0 {
			full = int(min(max(width*p.UsedBytes/p.CapacityBytes, 0), width))
		}
		style := "32"
		if full > width*9/10 {
			style = "33"
		}
		device := ""
		if p.Device != "" {
			device = "  " + terminal.Line(p.Device)
		}
		lines = append(lines, fmt.Sprintf("%-5s%-8s %s%s  %s of %s, %s leased, %s objects%s", terminal.Line(p.Tier), terminal.Line(p.Name),
			m.paint(style, strings.Repeat("█", full)), strings.Repeat("░", width-full), show.Bytes(p.UsedBytes), show.Bytes(p.CapacityBytes),
			show.Bytes(p.LeasedBytes), show.Count(p.Objects), device))
	}
	return lines
}

// lower formats the selected pane.
func (m *Model) lower() []string {
	var page *show.Page
	s := m.last
	switch m.pane {
	case usage:
		page = show.Of(s.Usage, false, show.View[api.Usage]{Columns: []string{"TENANT", "MODEL", "REQUESTS", "PROMPT", "PREFIX", "REUSED", "COMPUTED", "SAVED"},
			Row: func(u *api.Usage) []any {
				return []any{u.Tenant, u.Model, show.Count(u.Requests), show.Count(u.Prompt), show.Count(u.Prefix), show.Count(u.Reused),
					show.Count(u.Computed), show.LongMillis(u.Saved)}
			}})
	case connections:
		page = show.Of(s.Connections, false, show.View[api.Connection]{Columns: []string{"ID", "CLIENT", "PID", "AGE", "REQUESTS", "IN FLIGHT", "LEASES", "TENANTS"},
			Row: func(n *api.Connection) []any {
				return []any{n.ID, n.Client, n.PID, show.Age{At: n.Since, Now: s.At}, show.Count(n.Requests), n.InFlight, n.Leases, strings.Join(n.Tenants, ",")}
			}})
	default:
		page = show.Of(s.Requests, false, show.View[api.Request]{Columns: []string{"REQUEST", "AGE", "TENANT", "WAY", "PROMPT", "PREFIX", "REUSED", "COMPUTED", "TTFT", "SAVED", "MODEL"},
			Row: func(r *api.Request) []any {
				return []any{r.ID, show.Age{At: r.At, Now: s.At}, r.Tenant, r.Way, r.Prompt, r.Prefix, r.Reused, r.Computed,
					show.Millis(r.TTFTMillis), show.Millis(r.SavedMillis), r.Model}
			}})
	}
	var b bytes.Buffer
	var w io.Writer = &b
	if m.o.Colour {
		w = terminal.Coloured(&b)
	}
	if err := page.Write(w, false); err != nil {
		return []string{err.Error()}
	}
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

// spark draws the last values of a series in one line. The parameter top is the greatest possible
// value; 0 = the maximum of the series. NaN is drawn as a blank.
func spark(series []float64, top float64, width int) string {
	marks := []rune(" ▁▂▃▄▅▆▇█")
	series = series[max(0, len(series)-width):]
	greatest := top
	for _, v := range series {
		if top == 0 && v > greatest {
			greatest = v
		}
	}
	var b strings.Builder
	for _, v := range series {
		level := 0
		if greatest > 0 && v > 0 {
			level = min(max(int(math.Round(v/greatest*8)), 1), 8)
		}
		b.WriteRune(marks[level])
	}
	return b.String()
}
