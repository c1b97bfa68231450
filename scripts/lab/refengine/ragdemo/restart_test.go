package ragdemo

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// mortal is a store in memory whose crash does what a test says.
type mortal struct {
	inMemory
	hidden  map[profile.SegmentKey]bool // gone since the crash
	lost    int                         // of them, published again
	crashed bool
	wrong   bool // the crash changed saved states
	hits    Hits
}

func (s *mortal) Match(keys []profile.SegmentKey) ([]bool, error) {
	held, err := s.inMemory.Match(keys)
	for i := range held {
		held[i] = held[i] && !s.hidden[keys[i]]
		switch {
		case held[i] && s.crashed:
			s.hits.Disk++
		case held[i]:
			s.hits.Memory++
		}
	}
	return held, err
}

func (s *mortal) Publish(key profile.SegmentKey, tokens []uint32, seg *refengine.Segment[float32]) error {
	if s.hidden[key] {
		s.lost++
		delete(s.hidden, key)
	}
	return s.inMemory.Publish(key, tokens, seg)
}

func (s *mortal) Load(prompt []uint32, positions []int) (*refengine.State[float32], error) {
	st, err := s.inMemory.Load(prompt, positions)
	if st != nil && s.crashed && s.wrong {
		st.Layers[0].S[0]++
	}
	return st, err
}

func (s *mortal) Hits() Hits { return s.hits }

func (s *mortal) Holdings() (Holdings, error) {
	segments, checkpoints, err := s.HeldBytes()
	return Holdings{int(segments>>10) - len(s.hidden) - s.lost, segments, int(checkpoints), checkpoints}, err
}

func TestACrashInTheMiddle(t *testing.T) {
	for name, c := range map[string]struct {
		crash func(s *mortal)
		fails string
	}{
		"that loses nothing": {func(*mortal) {}, ""},
		"that loses a segment": {func(s *mortal) {
			key := s.Key(profile.FirstSpec(len(system)), tokens(system))
			s.hidden[key] = true
		}, "segments"},
		"that changes a state": {func(s *mortal) { s.wrong = true }, "have the same answer"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Model(1)
			if err != nil {
				t.Fatal(err)
			}
			store, crashes := &mortal{inMemory: newInMemory(m), hidden: map[profile.SegmentKey]bool{}}, 0
			r, err := Run(t.Context(), m, store, Options{Sample: short(t), Crash: func(context.Context) error {
				crashes++
				store.crashed = true
				c.crash(store)
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			re := r.Restart
			if crashes != 1 || re == nil || re.AfterRequest != 2 || re.Replayed != 2 {
				t.Fatalf("%d crashes, %+v", crashes, re)
			}
			err = re.Failed()
			if c.fails == "" && err != nil || c.fails != "" && (!errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("%v, want %q", err, c.fails)
			}
			// Two requests of three and two passages behind the system prompt, served
			// once more before and once after; the naive way looks them up as well.
			if c.fails == "" && (re.Replay != Hits{0, 7} || re.Same != 2 || re.Before.Disk != 0 || re.After.Memory != 0 || re.After.Disk != 7+2*(4+4)) {
				t.Errorf("%+v", re)
			}
			var text strings.Builder
			if err := r.Print(&text); err != nil || !strings.Contains(text.String(), "after request 2 the daemon was killed with SIGKILL") {
				t.Errorf("%v\n%s", err, &text)
			}
			for _, line := range strings.Split(text.String(), "\n") {
				if line != r.Sentence && len([]rune(line)) > 110 {
					t.Errorf("line of %d columns: %s", len([]rune(line)), line)
				}
			}
		})
	}
}

func TestACrashNeedsAStoreThatCanTell(t *testing.T) {
	m, err := Model(1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Run(t.Context(), m, newInMemory(m), Options{Sample: short(t), Crash: func(context.Context) error { return nil }})
	if err == nil || !strings.Contains(err.Error(), "cannot tell") {
		t.Error(err)
	}
}
