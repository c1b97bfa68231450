package peer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// A member that stops answering fails the find that notices it, long before FindTime, and
// costs nobody else anything until it answers again.
func TestAMemberThatFallsSilentIsSkippedUntilItAnswers(t *testing.T) {
	s := opened(t, options{cfg: Config{FindTime: time.Hour, SilentTime: 200 * time.Millisecond}})
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	s.put(t, 0, o)
	w := tiertest.WantOf(o)
	over, err := s.Disturb(0, o, tiertest.Fault(tiertest.Stalled))
	noError(t, err)
	if _, err := s.Find(context.Background(), []tier.Want{w}); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("a find of a silent member: %v", err)
	}
	if _, ok := s.Hint(&w); ok {
		t.Error("a hint of a silent member")
	}
	if rows, err := s.Find(context.Background(), []tier.Want{w}); err != nil || rows[0] != nil {
		t.Errorf("a second find asks it again: %v, %v", rows, err)
	}
	if _, err := s.Call(context.Background(), 0, &Call{Path: FindPath, Within: time.Hour}); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("a call asks it again: %v", err)
	}
	if info := s.Members()[0]; !info.Open || s.Counters().Silences != 1 {
		t.Errorf("%+v, counted %d", info, s.Counters().Silences)
	}
	over()
	if !tiertest.Wait(time.Minute, func() bool {
		rows, err := s.Find(context.Background(), []tier.Want{w})
		return err == nil && rows[0] != nil
	}) {
		t.Error("it is not asked again")
	}
}

// Another member that has the object is asked at once.
func TestAFindGoesOnFromASilentMember(t *testing.T) {
	s := opened(t, options{sources: 2, cfg: Config{FindTime: time.Hour, SilentTime: time.Second}})
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	for at := range 2 {
		s.put(t, at, o)
	}
	over, err := s.Disturb(0, o, tiertest.Fault(tiertest.Stalled))
	noError(t, err)
	defer over()
	w := tiertest.WantOf(o)
	if rows, err := s.Find(context.Background(), []tier.Want{w}); err != nil || rows[0] == nil {
		t.Errorf("%v, %v", rows, err)
	}
}

// A member that only takes long for one object answers a probe, and is waited for.
func TestAMemberThatIsSlowIsNotSilent(t *testing.T) {
	s := opened(t, options{cfg: Config{FindTime: time.Hour, SilentTime: 10 * time.Second}})
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	s.put(t, 0, o)
	for range 3 {
		if s.fellSilent(s.member(0)) {
			t.Fatal("a member that answers probes is silent")
		}
	}
	if n := s.Counters().Silences; n != 0 {
		t.Errorf("counted %d", n)
	}
}
