package cost

// Task is the kind of run that a Sample measured.
type Task uint8

// The tasks that engines time.
const (
	TaskPrefill Task = iota
	TaskWalk         // segments placed and the rows between them computed; End is WalkRows
	TaskCapture      // segments computed in isolation, to be published

	Tasks
)

func (t Task) String() string {
	return [Tasks]string{"prefill", "walk", "capture"}[t]
}

// Costs of walks and captures until engines have measured them, as multiples of the time of a
// prefill's row. All are guesses on the slow side: a walk uses the engine's projections but not the
// engine's kernels between them, and a capture is a second pass of the recurrence.
const (
	guessedWalk    = 2.0
	guessedCapture = 1.2
	// claimRows is the cost of a splice in addition to its walk: a step of the engine, as a number
	// of rows of a prefill.
	claimRows = 64
	// placedShare is the number of placed rows that count as one computed row of a walk.
	placedShare = 16
)

// WalkRows returns the work of a walk as a number of computed rows. placedShare placed rows count
// as one computed row.
func WalkRows(computed, placed int) int { return computed + (placed+placedShare-1)/placedShare }

// Guess returns the prediction of a task without measurements, derived from the current
// prediction of a prefill.
func (m *Model) Guess(t Task) Prefill {
	p := m.Prefill()
	switch t {
	case TaskWalk:
		return Prefill{PerToken: guessedWalk * p.row()}
	case TaskCapture:
		return p.scaled(guessedCapture)
	}
	return p
}

// row returns the mean milliseconds of a row in a prompt of panelTokens tokens. PerToken alone
// would not do: in a prefill fitted to few samples, all of the time may be in PerTokenSquared.
func (p Prefill) row() float64 { return p.Marginal(0, panelTokens) / panelTokens }

// SetTask sets the measured prediction of walks or captures. The zero Prefill means that there is
// none.
func (m *Model) SetTask(t Task, measured Prefill) {
	if t < Tasks {
		m.tasks[t] = measured
	}
}

// Task returns the current prediction of a task. It returns false if that is a guess, which happens
// only for walks and captures.
func (m *Model) Task(t Task) (Prefill, bool) {
	if t == TaskPrefill || t >= Tasks || m.tasks[t].IsZero() {
		return m.Guess(t), t == TaskPrefill
	}
	return m.tasks[t], true
}

// splice is a priced splice: the number of leading segments of the request that it uses, its
// milliseconds in total, and the part of these for captures.
type splice struct {
	segments       int
	total, capture float64
}

// own returns the milliseconds without captures, which pay off in later requests only.
func (s splice) own() float64 { return s.total - s.capture }

// walk adds up the time of a splice, segment by segment.
type walk struct {
	model            *Model
	at               int     // number of tokens whose state is in place
	rows, placed     int     // tokens computed and tokens placed so far
	loaded, captured float64 // milliseconds
	guessed          float64 // milliseconds of placing and computing, used until walks are measured
}

// add extends the walk to the end of a segment's interior [begin, end), the tokens between its
// seams. It returns false, and changes nothing, if the segment is in no tier and is not to be
// captured.
func (w *walk) add(s *Segment, begin, end int) bool {
	m := w.model
	_, measured := m.Task(TaskWalk)
	switch load, ok := m.loadFrom(s.Tier, s.From, s.StateBytes+s.RowBytes); {
	case s.Capture:
		capture, _ := m.Task(TaskCapture)
		w.captured += capture.Millis(0, s.Tokens)
	case !ok:
		return false
	case measured && s.From == (Link{}) && s.Tier <= TierDRAM:
		// A measured walk includes the time to read memory.
	default:
		w.loaded += load
	}
	w.guessed += m.Link(JobCompose).Millis(s.StateBytes) + m.Link(JobRotate).Millis(s.RowBytes) + guessedWalk*m.Prefill().Marginal(w.at, begin)
	w.rows += begin - w.at
	w.placed += end - begin
	w.at = end
	return true
}

// millis returns the milliseconds of the walk so far, including loads but not captures.
func (w *walk) millis() float64 {
	claim := claimRows * w.model.Prefill().row()
	if measured, ok := w.model.Task(TaskWalk); ok {
		return w.loaded + claim + measured.Millis(0, WalkRows(w.rows, w.placed))
	}
	return w.loaded + claim + w.guessed
}

// spliced prices the best splice. A splice loads the prefix, if any, and walks over the segments
// after it. It leaves the continuation after the last used segment to the engine's prefill. spliced
// tries each segment as the last one and takes the cheapest. All readable segments before the last
// one are used, since an engine does not skip any either.
func (m *Model) spliced(r Request) splice {
	best := splice{total: inf}
	if r.ExactOnly {
		return best
	}
	w := walk{model: m}
	if r.Prefix.Tokens > 0 {
		if load, ok := m.loadFrom(r.Prefix.Tier, r.Prefix.From, r.Prefix.Bytes); ok {
			w.at, w.loaded = r.from(r.Prefix.Tokens), load
		}
	}
	p := m.Prefill()
	for i := range r.Segments {
		s := &r.Segments[i]
		begin, end := s.Begin+s.SeamTokens/2, s.Begin+s.Tokens-(s.SeamTokens-s.SeamTokens/2)
		if end = min(end, r.Tokens-1); begin < w.at || end <= begin {
			continue // inside the prefix, or nothing left between its seams
		}
		if !w.add(s, begin, end) {
			continue
		}
		if own := w.millis() + p.Millis(w.at, r.Tokens); own < best.own() {
			best = splice{segments: i + 1, total: own + w.captured, capture: w.captured}
		}
	}
	return best
}
