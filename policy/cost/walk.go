package cost

// Task is the kind of run that a Sample measured.
type Task uint8

// The tasks that engines time.
const (
	TaskPrefill Task = iota
	TaskWalk         // segments placed, and the rows between them computed: tokens are WalkRows
	TaskCapture      // segments computed in isolation, to be published

	Tasks
)

func (t Task) String() string {
	return [Tasks]string{"prefill", "walk", "capture"}[t]
}

// Costs of walks and captures until engines have measured them, in rows of a prefill. All
// are guesses on the slow side: a walk uses the engine's projections but not its kernels
// between them, and a capture is a second pass of the recurrence.
const (
	guessedWalk    = 2.0
	guessedCapture = 1.2
	// claimRows is the cost of a splice in addition to its walk, in rows of a prefill: a
	// step of the engine.
	claimRows = 64
	// placedShare is the number of placed rows that count as one computed row of a walk.
	placedShare = 16
)

// WalkRows returns the work of a walk in computed rows; placedShare placed rows count as
// one.
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

// row returns the mean time of a row in a prompt of panelTokens tokens. A prefill that
// was fitted to few samples may have all of it in its square.
func (p Prefill) row() float64 { return p.Marginal(0, panelTokens) / panelTokens }

// SetTask sets the measured prediction of walks or captures; the zero Prefill is none.
func (m *Model) SetTask(t Task, measured Prefill) {
	if t < Tasks {
		m.tasks[t] = measured
	}
}

// Task returns the current prediction of a task, and false if that is a guess for walks
// or captures.
func (m *Model) Task(t Task) (Prefill, bool) {
	if t == TaskPrefill || t >= Tasks || m.tasks[t].IsZero() {
		return m.Guess(t), t == TaskPrefill
	}
	return m.tasks[t], true
}

// splice is a splice with its price: the number of leading segments of a request that it
// uses, and its milliseconds, with captures.
type splice struct {
	segments       int
	total, capture float64
}

// own returns the price without captures, which are for later requests.
func (s splice) own() float64 { return s.total - s.capture }

// walk sums up a splice, segment by segment.
type walk struct {
	model            *Model
	at               int     // tokens in place
	rows, placed     int     // computed and placed so far
	loaded, captured float64 // milliseconds
	guessed          float64 // of placing and computing, used until walks are measured
}

// add moves the walk over a segment's interior [begin, end). It reports whether the segment can be read.
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
		// A measured walk includes reading memory.
	default:
		w.loaded += load
	}
	w.guessed += m.Link(JobCompose).Millis(s.StateBytes) + m.Link(JobRotate).Millis(s.RowBytes) + guessedWalk*m.Prefill().Marginal(w.at, begin)
	w.rows += begin - w.at
	w.placed += end - begin
	w.at = end
	return true
}

// millis returns the time of the walk so far, including loads.
func (w *walk) millis() float64 {
	claim := claimRows * w.model.Prefill().row()
	if measured, ok := w.model.Task(TaskWalk); ok {
		return w.loaded + claim + measured.Millis(0, WalkRows(w.rows, w.placed))
	}
	return w.loaded + claim + w.guessed
}

// spliced prices the best splice: it loads the prefix, if any, walks over the segments
// after it, and leaves the continuation after the last used one to the engine's prefill.
// Of all last segments it uses the cheapest. Readable segments before that one are all
// used, since an engine does not skip one either.
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
