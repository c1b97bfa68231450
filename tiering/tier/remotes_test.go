package tier

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

// source has names, and believes it has others.
type source struct {
	hint     Hint
	has      map[byte]bool
	believed map[byte]bool
	err      error
	short    bool // answers one row too few
	after    func()

	mu    sync.Mutex
	asked [][]byte
	open  int
}

func (s *source) Hint(w *Want) (Hint, bool) { return s.hint, s.believed[w.Key[0]] }

func (s *source) Find(_ context.Context, wants []Want) ([]Copy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []byte
	rows := make([]Copy, len(wants))
	for i := range wants {
		k := wants[i].Key[0]
		if names = append(names, k); s.has[k] && s.err == nil {
			rows[i] = &copyAt{s}
			s.open++
		}
	}
	s.asked = append(s.asked, names)
	if s.after != nil {
		s.after()
	}
	if s.err != nil {
		return nil, s.err
	}
	if s.short {
		return rows[:len(rows)-1], nil
	}
	return rows, nil
}

type copyAt struct{ at *source }

func (c *copyAt) Entry() *Entry                                        { return nil }
func (c *copyAt) Read(context.Context, []gpuipc.Ref) (*Content, error) { return nil, ErrGone }
func (c *copyAt) Close() {
	c.at.mu.Lock()
	defer c.at.mu.Unlock()
	c.at.open--
}

func set(names ...byte) map[byte]bool {
	m := map[byte]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

func wants(names ...byte) (list []Want) {
	for _, n := range names {
		list = append(list, Want{Name: Name{Key: [32]byte{n}}})
	}
	return list
}

// from lists which source each row came from, 0 = none, and closes the rows.
func from(rows []Copy, sources ...*source) (list []int) {
	for _, r := range rows {
		at := 0
		if r != nil {
			at = 1 + slices.Index(sources, r.(*copyAt).at)
			r.Close()
		}
		list = append(list, at)
	}
	return list
}

func TestRowsAreAskedWhereTheyAreBelieved(t *testing.T) {
	near := &source{has: set(1, 2), believed: set(1, 2, 3), hint: Hint{Latency: time.Millisecond, BytesPerSecond: 1e9}}
	far := &source{has: set(2, 3, 4, 5), believed: set(2, 3, 4), hint: Hint{Place: PlaceObject, Latency: time.Second, BytesPerSecond: 1e9}}
	rs := Remotes{near, far}
	rows, err := rs.Find(t.Context(), wants(1, 2, 3, 4, 5, 6))
	if err != nil {
		t.Fatal(err)
	}
	// 3 is believed near, wrongly; 5 by nobody.
	if got := from(rows, near, far); !slices.Equal(got, []int{1, 1, 2, 2, 2, 0}) {
		t.Fatalf("rows come from %v", got)
	}
	if len(near.asked) != 1 || len(far.asked) != 2 {
		t.Fatalf("%v and %v are asked", near.asked, far.asked)
	}
	if near.open+far.open != 0 {
		t.Fatal("copies are open")
	}
}

func TestTheSoonestIsAskedFirst(t *testing.T) {
	near := &source{has: set(1), believed: set(1), hint: Hint{Latency: time.Second, BytesPerSecond: 1e6}}
	far := &source{has: set(1), believed: set(1), hint: Hint{Place: PlaceObject, Latency: time.Millisecond, BytesPerSecond: 1e9}}
	rs := Remotes{near, far}
	if h, ok := rs.Hint(&wants(1)[0]); !ok || h.Place != PlaceObject {
		t.Fatalf("%+v", h)
	}
	rows, err := rs.Find(t.Context(), wants(1))
	if got := from(rows, near, far); err != nil || got[0] != 2 || len(near.asked) != 0 {
		t.Fatalf("from %v, %v", got, err)
	}
	near.hint = Hint{} // not measured: in order
	if h, ok := rs.Hint(&wants(1)[0]); !ok || h.Place != 0 {
		t.Fatalf("%+v", h)
	}
	if _, ok := rs.Hint(&wants(2)[0]); ok {
		t.Fatal("nobody believes in it")
	}
}

func TestASourceThatFailsCostsItsAnswersOnly(t *testing.T) {
	for name, near := range map[string]*source{
		"fails": {err: ErrUnavailable, has: set(1), believed: set(1, 2)},
		"lies":  {short: true, has: set(1), believed: set(1, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			far := &source{has: set(1)}
			rs := Remotes{near, far}
			rows, err := rs.Find(t.Context(), wants(1, 2))
			if got := from(rows, near, far); err != nil || !slices.Equal(got, []int{2, 0}) {
				t.Fatalf("from %v, %v", got, err)
			}
			far.has = nil
			if _, err := rs.Find(t.Context(), wants(1, 2)); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("nothing is found: %v", err)
			}
			if near.open != 0 {
				t.Fatal("copies are open")
			}
		})
	}
}

func TestAnEndedContextLeavesNothingOpen(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	near := &source{has: set(1), believed: set(1), after: cancel}
	rs := Remotes{near, &source{}}
	if rows, err := rs.Find(ctx, wants(1, 2)); rows != nil || !errors.Is(err, context.Canceled) || near.open != 0 {
		t.Fatalf("%v, %v, %d open", rows, err, near.open)
	}
}

// scholar is a source that is learning.
type scholar struct {
	source
	learning bool
	learnt   int
}

func (s *scholar) Learning() bool                    { return s.learning }
func (s *scholar) Learn(_ context.Context, w []Want) { s.learnt += len(w) }

func TestThoseThatAreLearningLearn(t *testing.T) {
	plain, done, first := &source{}, &scholar{}, &scholar{learning: true}
	rs := Remotes{plain, done, first}
	if !rs.Learning() || (Remotes{plain, done}).Learning() {
		t.Error("whether any of them is learning is wrong")
	}
	if rs.Learn(t.Context(), make([]Want, 3)); first.learnt != 3 || done.learnt != 0 {
		t.Errorf("%d and %d wants were learnt", first.learnt, done.learnt)
	}
}
