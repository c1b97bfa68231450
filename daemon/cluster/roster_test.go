package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const testHold = 5 * time.Second

func at(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }

func facts(incarnation uint64) *metadata {
	return &metadata{Protocol: Protocol, Incarnation: incarnation, Peer: netip.MustParseAddrPort("10.0.0.1:7947"), Version: "1"}
}

func testRoster() *roster {
	return newRoster("self", testHold, func(m *metadata) string {
		if m.Protocol != Protocol {
			return "other protocol"
		}
		return ""
	})
}

var gossipAddr = netip.MustParseAddrPort("10.0.0.1:7946")

// told gives events as text, such as "+a1 -a1": name and incarnation. It gives back the
// numbers of those that left.
func told(t *testing.T, r *roster, now time.Time) string {
	t.Helper()
	events, _ := r.settle(now)
	var text []string
	for _, e := range events {
		sign := "+"
		if !e.join {
			sign = "-"
			r.freed(e.member.Number)
		}
		text = append(text, fmt.Sprintf("%s%s%d", sign, e.member.Name, e.member.Incarnation))
	}
	return strings.Join(text, " ")
}

func TestWhatIsToldOfAMember(t *testing.T) {
	leaving, other, moved := facts(1), facts(1), facts(1)
	leaving.Leaving, other.Protocol = true, Protocol+1
	moved.Peer = netip.MustParseAddrPort("10.0.0.1:7999")
	type step struct {
		at   float64
		do   *metadata // nil = lost
		want string
	}
	look := &metadata{} // nothing happens
	for name, steps := range map[string][]step{
		"it comes and stays":                     {{0, facts(1), "+a1"}, {1, facts(1), ""}, {60, look, ""}},
		"it dies":                                {{0, facts(1), "+a1"}, {1, nil, ""}, {5.9, look, ""}, {6, look, "-a1"}, {7, look, ""}},
		"it flaps":                               {{0, facts(1), "+a1"}, {1, nil, ""}, {5, facts(1), ""}, {20, look, ""}},
		"it flaps, then dies":                    {{0, facts(1), "+a1"}, {1, nil, ""}, {5, facts(1), ""}, {6, nil, ""}, {10.9, look, ""}, {11, look, "-a1"}},
		"it comes back too late":                 {{0, facts(1), "+a1"}, {1, nil, ""}, {6, look, "-a1"}, {7, facts(1), "+a1"}},
		"it restarts within the hold":            {{0, facts(1), "+a1"}, {1, nil, ""}, {2, facts(2), "-a1 +a2"}},
		"it restarts before anybody sees it die": {{0, facts(1), "+a1"}, {1, facts(2), "-a1 +a2"}},
		"it moves":                               {{0, facts(1), "+a1"}, {1, moved, "-a1 +a1"}},
		"it says that it leaves":                 {{0, facts(1), "+a1"}, {1, leaving, "-a1"}, {2, nil, ""}, {3, facts(2), "+a2"}},
		"it leaves before it was there":          {{0, leaving, ""}, {1, nil, ""}},
		"it speaks another protocol":             {{0, other, ""}, {1, nil, ""}, {2, facts(2), "+a2"}},
		"it is upgraded":                         {{0, facts(1), "+a1"}, {1, other, "-a1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRoster()
			for i, s := range steps {
				switch s.do {
				case look:
				case nil:
					r.lost("a", at(s.at))
				default:
					r.seen("a", gossipAddr, s.do, at(s.at))
				}
				if got := told(t, r, at(s.at)); got != s.want {
					t.Errorf("step %d: told %q, want %q", i, got, s.want)
				}
			}
		})
	}
}

func TestAHeldMemberIsLookedAtWhenItsTimeIsUp(t *testing.T) {
	r := testRoster()
	r.seen("a", gossipAddr, facts(1), at(0))
	r.seen("b", gossipAddr, facts(1), at(0))
	if _, next := r.settle(at(0)); !next.IsZero() {
		t.Errorf("next look at %v though nothing is due", next)
	}
	r.lost("a", at(1))
	r.lost("b", at(3))
	if _, next := r.settle(at(3)); !next.Equal(at(6)) {
		t.Errorf("next look at %v, want %v", next, at(6))
	}
	if m := r.members(); len(m) != 2 || m[0].State != Unreachable || !m[0].Since.Equal(at(1)) || !m[0].Told {
		t.Errorf("%+v", m)
	}
	if got := told(t, r, at(6)); got != "-a1" {
		t.Errorf("told %q", got)
	}
	if _, next := r.settle(at(6)); !next.Equal(at(8)) {
		t.Errorf("next look at %v, want %v", next, at(8))
	}
}

func TestAMemberThatDoesNotAnswerIsDoubtedOnce(t *testing.T) {
	r := testRoster()
	doubts := func(want string) {
		t.Helper()
		got := ""
		for _, m := range r.doubts() {
			got += m.Name + " " + m.State.String()
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	r.seen("a", gossipAddr, facts(1), at(0))
	r.lost("a", at(0))
	doubts("") // of whom nobody was told
	r.seen("a", gossipAddr, facts(1), at(0))
	told(t, r, at(0))
	doubts("")
	r.lost("a", at(1))
	doubts("a unreachable")
	doubts("")
	r.seen("a", gossipAddr, facts(1), at(2))
	doubts("a alive")
	r.lost("a", at(3))
	doubts("a unreachable")
	if got := told(t, r, at(9)); got != "-a1" {
		t.Errorf("told %q", got)
	}
	doubts("")
	r.seen("a", gossipAddr, facts(2), at(10))
	told(t, r, at(10))
	doubts("")
}

func TestNodesThatFailedAndNodesThatLeftAreRemembered(t *testing.T) {
	r := testRoster()
	leaving := facts(1)
	leaving.Leaving = true
	for _, name := range []string{"failed", "left", "flaps", "here", "restarts"} {
		r.seen(name, gossipAddr, facts(1), at(0))
	}
	told(t, r, at(0))
	r.pinged("failed", time.Millisecond, time.Time{}, at(3))
	r.seen("left", gossipAddr, leaving, at(4))
	for _, name := range []string{"failed", "left", "flaps"} {
		r.lost(name, at(5))
	}
	r.seen("flaps", gossipAddr, facts(1), at(6))
	r.seen("restarts", gossipAddr, facts(2), at(6))
	events, _ := r.settle(at(20))
	departed := map[string]State{}
	for _, e := range events {
		if !e.join {
			departed[e.member.Name] = e.member.State
		}
	}
	if len(departed) != 3 || departed["failed"] != Failed || departed["left"] != Left || departed["restarts"] != Alive {
		t.Errorf("departed %v", departed)
	}
	list := r.members()
	if len(list) != 5 || list[0].State.Gone() || list[1].State.Gone() || list[2].State.Gone() {
		t.Fatalf("%+v", list)
	}
	if m := list[3]; m.Name != "failed" || m.State != Failed || !m.Seen.Equal(at(3)) || !m.Since.Equal(at(20)) || m.Told {
		t.Errorf("%+v", m)
	}
	if m := list[4]; m.Name != "left" || m.State != Left || !m.Seen.Equal(at(4)) {
		t.Errorf("%+v", m)
	}
	if _, lost := r.reached(at(20)); len(lost) != 1 {
		t.Errorf("%d are tried again, want the one that failed", len(lost))
	}
	r.seen("failed", gossipAddr, facts(2), at(30))
	if list = r.members(); len(list) != 5 || list[0].Name != "failed" || list[0].State != Alive {
		t.Errorf("one that is back: %+v", list)
	}
}

func TestNumbersAreNobodyElses(t *testing.T) {
	r := testRoster()
	for _, name := range []string{"a", "b"} {
		r.seen(name, gossipAddr, facts(1), at(0))
	}
	events, _ := r.settle(at(0))
	if len(events) != 2 || events[0].member.Number == events[1].member.Number {
		t.Fatalf("%+v", events)
	}
	a := events[0].member
	r.seen(a.Name, gossipAddr, facts(2), at(1))
	events, _ = r.settle(at(1))
	if len(events) != 2 || events[0].join || events[0].member.Number != a.Number || events[1].member.Number != 2 {
		t.Fatalf("a number was given to the next before its leave was told: %+v", events)
	}
	r.freed(a.Number)
	r.seen("c", gossipAddr, facts(1), at(1))
	if events, _ = r.settle(at(1)); len(events) != 1 || events[0].member.Number != a.Number {
		t.Fatalf("the least free number is not taken: %+v", events)
	}
}

func TestARosterThatIsFullTakesNobodyElse(t *testing.T) {
	r := testRoster()
	name := func(i int) string { return fmt.Sprintf("n%d", i) }
	for i := range MaxMembers {
		must(t, r.room(name(i)))
		r.seen(name(i), gossipAddr, facts(1), at(0))
	}
	if err := r.room("late"); err == nil {
		t.Error("there is room for one more")
	}
	if err := r.room(name(7)); err != nil {
		t.Errorf("one that is here already: %v", err)
	}
	r.seen("late", gossipAddr, facts(1), at(0))
	if events, _ := r.settle(at(0)); len(events) != MaxMembers {
		t.Fatalf("%d joins", len(events))
	}
	// All restart at once: the leaves have to be told before there are numbers again.
	for i := range MaxMembers {
		r.seen(name(i), gossipAddr, facts(2), at(1))
	}
	leaves, next := r.settle(at(1))
	if len(leaves) != MaxMembers || !next.Equal(at(1)) {
		t.Fatalf("%d events, next look at %v", len(leaves), next)
	}
	for _, e := range leaves {
		r.freed(e.member.Number)
	}
	if joins, _ := r.settle(at(1)); len(joins) != MaxMembers {
		t.Errorf("%d of %d came back", len(joins), MaxMembers)
	}
	// And all die, which leaves some of their addresses.
	for i := range MaxMembers {
		r.lost(name(i), at(2))
	}
	r.settle(at(20))
	if here, lost := r.reached(at(20)); len(here) != 0 || len(lost) != maxGone {
		t.Errorf("%d here, %d lost", len(here), len(lost))
	}
	if list := r.members(); len(list) != maxGone || list[0].State != Failed {
		t.Errorf("%d are listed", len(list))
	}
	if _, lost := r.reached(at(20).Add(rejoinLife + 1)); len(lost) != 0 {
		t.Errorf("%d are tried for ever", len(lost))
	}
	if r.reached(at(20).Add(goneLife + 1)); len(r.members()) != 0 {
		t.Errorf("%d are remembered for ever", len(r.members()))
	}
	if _, refused := r.counts(); refused != 2 {
		t.Errorf("%d refused", refused)
	}
}

func TestAPingTellsHowFarAClockIsOff(t *testing.T) {
	r := testRoster()
	r.seen("a", gossipAddr, facts(1), at(0))
	r.pinged("a", 2*time.Second, at(3600), at(1))
	r.pinged("nobody", time.Second, at(0), at(1))
	if m := r.members()[0]; m.RTT != 2*time.Second || m.ClockAhead != time.Hour {
		t.Errorf("RTT %v, ahead %v", m.RTT, m.ClockAhead)
	}
}
