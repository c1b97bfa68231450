package plan

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// stateAfter is what some events make of an idle buffer for ten rows from token 20 on.
func stateAfter(t *testing.T, events ...bufferEvent) bufferState {
	t.Helper()
	s := newBufferState(20, 10)
	for i, e := range events {
		if err := s.transition(e); err != nil && !errors.Is(err, tier.ErrGone) {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	return s
}

// The beginnings that tests share: four rows, of which three are certain, and what
// may run on them.
var (
	fourRows = []bufferEvent{
		{kind: beginAppend, token: 20, rows: 3}, {kind: endAppend, rows: 3}, {kind: acceptRows, rows: 3},
		{kind: beginAppend, token: 23, rows: 1}, {kind: endAppend, rows: 1},
	}
	whileAppending = append(fourRows[:5:5], bufferEvent{kind: beginAppend, token: 24, rows: 2})
	whileReplaying = append(fourRows[:5:5], bufferEvent{kind: beginReplay, token: 22})
	whileFlushing  = append(fourRows[:5:5], bufferEvent{kind: beginFlush, token: 22})
	whileEnding    = append(whileReplaying[:6:6], bufferEvent{kind: release})
	whenEnded      = append(whileEnding[:7:7], bufferEvent{kind: endReplay})
)

func TestBufferRefusesWhatCannotBeNow(t *testing.T) {
	for name, tc := range map[string]struct {
		after []bufferEvent
		event bufferEvent
		want  error
	}{
		"append behind the rows":     {fourRows, bufferEvent{kind: beginAppend, token: 24, rows: 6}, nil},
		"append more than fit":       {fourRows, bufferEvent{kind: beginAppend, token: 24, rows: 7}, tier.ErrFull},
		"append with a gap":          {fourRows, bufferEvent{kind: beginAppend, token: 25, rows: 1}, tier.ErrInvalid},
		"append over rows":           {fourRows, bufferEvent{kind: beginAppend, token: 23, rows: 1}, tier.ErrInvalid},
		"append beside an append":    {whileAppending, bufferEvent{kind: beginAppend, token: 24, rows: 1}, tier.ErrBusy},
		"append beside a replay":     {whileReplaying, bufferEvent{kind: beginAppend, token: 24, rows: 1}, nil},
		"append beside a flush":      {whileFlushing, bufferEvent{kind: beginAppend, token: 24, rows: 1}, tier.ErrBusy},
		"append to a released one":   {whileEnding, bufferEvent{kind: beginAppend, token: 24, rows: 1}, tier.ErrGone},
		"accept the draft":           {fourRows, bufferEvent{kind: acceptRows, rows: 1}, nil},
		"accept nothing":             {fourRows, bufferEvent{kind: acceptRows}, nil},
		"accept more than drafted":   {fourRows, bufferEvent{kind: acceptRows, rows: 2}, tier.ErrInvalid},
		"accept less than nothing":   {fourRows, bufferEvent{kind: acceptRows, rows: -1}, tier.ErrInvalid},
		"accept beside an append":    {whileAppending, bufferEvent{kind: acceptRows, rows: 1}, tier.ErrBusy},
		"accept beside a replay":     {whileReplaying, bufferEvent{kind: acceptRows, rows: 1}, nil},
		"accept beside a flush":      {whileFlushing, bufferEvent{kind: acceptRows, rows: 1}, tier.ErrBusy},
		"accept in a released one":   {whenEnded, bufferEvent{kind: acceptRows}, tier.ErrGone},
		"replay what is certain":     {fourRows, bufferEvent{kind: beginReplay, token: 23}, nil},
		"replay the base":            {fourRows, bufferEvent{kind: beginReplay, token: 20}, nil},
		"replay a draft":             {fourRows, bufferEvent{kind: beginReplay, token: 24}, tier.ErrInvalid},
		"replay before the base":     {fourRows, bufferEvent{kind: beginReplay, token: 19}, tier.ErrInvalid},
		"replay beside an append":    {whileAppending, bufferEvent{kind: beginReplay, token: 22}, nil},
		"replay beside a replay":     {whileReplaying, bufferEvent{kind: beginReplay, token: 22}, nil},
		"replay beside a flush":      {whileFlushing, bufferEvent{kind: beginReplay, token: 22}, tier.ErrBusy},
		"replay of a released one":   {whileEnding, bufferEvent{kind: beginReplay, token: 22}, tier.ErrGone},
		"flush beside an append":     {whileAppending, bufferEvent{kind: beginFlush, token: 22}, tier.ErrBusy},
		"flush beside a replay":      {whileReplaying, bufferEvent{kind: beginFlush, token: 22}, tier.ErrBusy},
		"flush beside a flush":       {whileFlushing, bufferEvent{kind: beginFlush, token: 22}, tier.ErrBusy},
		"flush of a released one":    {whenEnded, bufferEvent{kind: beginFlush, token: 22}, tier.ErrGone},
		"release while it is filled": {whileAppending, bufferEvent{kind: release}, nil},
		"release once more":          {whileEnding, bufferEvent{kind: release}, tier.ErrGone},
	} {
		t.Run(name, func(t *testing.T) {
			s := stateAfter(t, tc.after...)
			before := s
			err := s.transition(tc.event)
			if !errors.Is(err, tc.want) || (err != nil) != (tc.want != nil) {
				t.Fatalf("error %v, want %v", err, tc.want)
			}
			if err != nil && s != before {
				t.Fatalf("refused, and yet phase %d became %d, rows [%d, %d, %d) [%d, %d, %d)",
					before.phase, s.phase, before.begin, before.accepted, before.end, s.begin, s.accepted, s.end)
			}
		})
	}
}

// What ends after the release has not happened, and the last one ends the buffer.
func TestWhatEndsAfterReleaseIsGone(t *testing.T) {
	for name, tc := range map[string]struct {
		while []bufferEvent
		end   bufferEvent
	}{
		"append":        {whileAppending, bufferEvent{kind: endAppend, rows: 2}},
		"failed append": {whileAppending, bufferEvent{kind: failAppend}},
		"replay":        {whileReplaying, bufferEvent{kind: endReplay}},
		"flush":         {whileFlushing, bufferEvent{kind: endFlush, token: 22}},
		"failed flush":  {whileFlushing, bufferEvent{kind: failFlush}},
	} {
		t.Run(name, func(t *testing.T) {
			s := stateAfter(t, append(tc.while[:6:6], bufferEvent{kind: release})...)
			if s.phase != bufferEnding {
				t.Fatalf("phase %d while it is in use", s.phase)
			}
			if err := s.transition(tc.end); !errors.Is(err, tier.ErrGone) {
				t.Fatalf("error %v, want %v", err, tier.ErrGone)
			}
			if s.phase != bufferEnded || s.begin != 20 || s.accepted != 23 || s.end != 24 {
				t.Fatalf("phase %d, rows [%d, %d, %d)", s.phase, s.begin, s.accepted, s.end)
			}
		})
	}
	if s := stateAfter(t, append(fourRows[:5:5], bufferEvent{kind: release})...); s.phase != bufferEnded {
		t.Fatalf("phase %d after the release of one that nobody uses", s.phase)
	}
}

func TestEndOfWhatHasNotBegunPanics(t *testing.T) {
	for _, kind := range []bufferEventKind{endAppend, failAppend, endReplay, endFlush, failFlush} {
		for name, after := range map[string][]bufferEvent{"idle": fourRows, "ended": whenEnded} {
			s := stateAfter(t, after...)
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("event %d on one that is %s was taken", kind, name)
					}
				}()
				_ = s.transition(bufferEvent{kind: kind})
			}()
		}
	}
}

// Whatever happens in whatever order, positions ascend within the capacity, and what is
// refused changes nothing.
func TestBufferPositionsAscend(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		s := newBufferState(rng.IntN(50), 1+rng.IntN(9))
		var running []bufferEvent
		for range 300 {
			e := bufferEvent{kind: bufferEventKind(rng.IntN(int(release)))} // which would be the end
			switch e.kind {
			case beginAppend:
				e.token, e.rows = s.end, rng.IntN(s.capacity+2)
			case acceptRows:
				e.rows = rng.IntN(s.end - s.accepted + 1)
			case beginReplay, beginFlush:
				e.token = s.begin + rng.IntN(s.accepted-s.begin+1)
			default:
				if len(running) == 0 {
					continue
				}
				i := rng.IntN(len(running))
				e = running[i]
				running = append(running[:i], running[i+1:]...)
			}
			was := s
			if s.transition(e) != nil {
				if s != was {
					t.Fatalf("seed %d: refused, and yet %+v became %+v", seed, was, s)
				}
				continue
			}
			switch e.kind {
			case beginAppend:
				e.kind = endAppend + bufferEventKind(rng.IntN(2))
				running = append(running, e)
			case beginFlush:
				e.kind = endFlush + bufferEventKind(rng.IntN(2))
				running = append(running, e)
			case beginReplay:
				e.kind = endReplay
				running = append(running, e)
			}
			if s.begin > s.accepted || s.accepted > s.end || s.end > s.begin+s.capacity || s.running != len(running) {
				t.Fatalf("seed %d: rows [%d, %d, %d) of %d, %d running of %d", seed, s.begin, s.accepted, s.end, s.capacity, s.running, len(running))
			}
		}
	}
}

// Rows stay where they are until they are flushed or dropped, whichever pages come and go.
func TestRowsKeepTheirPlaces(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var ps pages
		begin, end, next := 20, 20, int64(0)
		places := map[int][2]int64{}
		for range 200 {
			switch rng.IntN(3) {
			case 0:
				n := 1 + rng.IntN(40)
				if lack := ps.lack(end, n); lack > 0 {
					rows := lack + rng.IntN(pageRows)
					next++
					ps = append(ps, page{memory: &Claimed{Memory: gpuipc.Ref{Extents: []gpuipc.Extent{{Off: next}}}}, begin: end + n - lack, rows: rows})
				}
				end += n
			case 1:
				end -= rng.IntN(end - begin + 1)
				ps.behind(end)
			case 2:
				begin += rng.IntN(end - begin + 1)
				ps.before(begin)
			}
			for row := range places {
				if row < begin || row >= end {
					delete(places, row)
				}
			}
			row := begin
			for _, run := range ps.runs(begin, end-begin) {
				for i := range run.n {
					at := [2]int64{run.ref.Extents[0].Off, int64(run.at + i)}
					if was, ok := places[row]; ok && was != at {
						t.Fatalf("seed %d: row %d moved from %v to %v", seed, row, was, at)
					}
					places[row] = at
					row++
				}
			}
			if row != end || len(ps) > 0 && (ps[0].end() <= begin || ps[len(ps)-1].begin >= end) {
				t.Fatalf("seed %d: places up to %d of [%d, %d) in %d pages", seed, row, begin, end, len(ps))
			}
		}
	}
}
