package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// MaxMembers bounds the other nodes of a cluster; further ones are ignored, and counted.
// Numbers of members are below it.
const MaxMembers = 4095

// State is what is known of a member.
type State uint8

const (
	Alive       State = iota // it answers
	Unreachable              // it does not: gossip gave it up, and Config.Hold has not passed
	Leaving                  // it has said that it leaves
	Failed                   // it was unreachable for Config.Hold, or longer: it crashed, or is cut off
	Left                     // it left, after it had said so
)

func (s State) String() string {
	return [...]string{"alive", "unreachable", "leaving", "failed", "left"}[s]
}

// Gone reports whether the node is no member any more and only remembered.
func (s State) Gone() bool { return s == Failed || s == Left }

// Member is a node of the cluster, as it was when it was asked for.
type Member struct {
	Name string
	Self bool
	// Number is below MaxMembers and no other member's between OnJoin and OnLeave, and
	// means nothing else.
	Number uint16
	State  State
	Since  time.Time // of the state
	// Seen is when gossip last heard of it.
	Seen time.Time
	// Unusable says why a member that is there is not worked with; empty if it is, or
	// could be. OnJoin has been called for members that are Told.
	Unusable string
	Told     bool

	Gossip netip.AddrPort
	Peer   netip.AddrPort // the peers' port
	Plain  bool           // which has no TLS

	Version     string // of the program
	Protocol    uint16
	Incarnation uint64 // differs from one start of the node to the next
	Started     time.Time

	// RTT is that of the last ping, by gossip; 0 = none yet. ClockAhead is by how much
	// its clock was ahead of ours then, give or take half of RTT.
	RTT        time.Duration
	ClockAhead time.Duration
}

// same reports whether a member that was told of is still the one it was.
func (m *Member) same(other *Member) bool {
	return m.Incarnation == other.Incarnation && m.Peer == other.Peer && m.Plain == other.Plain
}

// event is a call of OnJoin or OnLeave. The state of a member that leaves says why: Failed,
// Left, or Alive if it was replaced by itself (restarted, moved) or became unusable.
type event struct {
	join   bool
	member Member
}

// row is what the roster knows of a node.
type row struct {
	Member
	up   bool
	gone time.Time // when it will have been held for long enough, while it is not up
	told *Member   // what OnJoin was given
	lost bool      // that it does not answer was told since then
}

// Nodes that are gone are remembered for operators, and failed ones are tried again for a
// while, which heals a cut.
const (
	maxGone    = 256
	goneLife   = 72 * time.Hour
	rejoinLife = time.Hour
)

// roster turns what gossip says into who is a member, with time to flap. What gossip
// says is taken in as states, so there is no queue: settle tells what has changed since.
//
// Invariant: between a join and the leave of the same member nothing else is told of it.
type roster struct {
	self string
	hold time.Duration
	// unfit says why a node that is there cannot be worked with.
	unfit func(*metadata) string

	mu struct {
		sync.Mutex
		rows    map[string]*row   // at most MaxMembers
		numbers [MaxMembers]bool  // given
		gone    map[string]Member // Failed or Left; at most maxGone
		flaps   uint64            // came back within hold
		refused uint64            // found no room
	}
}

func newRoster(self string, hold time.Duration, unfit func(*metadata) string) *roster {
	r := &roster{self: self, hold: hold, unfit: unfit}
	r.mu.rows, r.mu.gone = map[string]*row{}, map[string]Member{}
	return r
}

// room is an error for a node that must be ignored.
func (r *roster) room(name string) error {
	if !settings.ValidNode(name) {
		return fmt.Errorf("%.64q is not a name for a node", name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.rows[name] == nil && name != r.self && len(r.mu.rows) >= MaxMembers {
		r.mu.refused++
		return fmt.Errorf("there are %d members already", MaxMembers)
	}
	return nil
}

// seen notes that a node is there, or what it says of itself now.
func (r *roster) seen(name string, gossip netip.AddrPort, meta *metadata, now time.Time) {
	if name == r.self {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.mu.rows[name]
	if n == nil {
		if len(r.mu.rows) >= MaxMembers {
			r.mu.refused++
			return
		}
		n = &row{}
		r.mu.rows[name] = n
	} else if !n.up && n.told != nil && n.Incarnation == meta.Incarnation {
		r.mu.flaps++
	}
	state := Alive
	if meta.Leaving {
		state = Leaving
	}
	if !n.up || n.State != state || n.Incarnation != meta.Incarnation {
		n.State, n.Since = state, now
	}
	delete(r.mu.gone, name)
	n.Seen = now
	n.up, n.Name, n.Gossip, n.Peer, n.Plain = true, name, gossip, meta.Peer, meta.Plain
	n.Version, n.Protocol, n.Incarnation, n.Started = meta.Version, meta.Protocol, meta.Incarnation, meta.Started
	n.Unusable = r.unfit(meta)
}

// lost notes that gossip gave a node up, or that it left: the two look alike, so a node
// says before that it leaves.
func (r *roster) lost(name string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.mu.rows[name]
	if n == nil || !n.up {
		return
	}
	n.up, n.gone = false, now.Add(r.hold)
	if n.State == Alive {
		n.State, n.Since = Unreachable, now
	}
}

// pinged notes a measurement. clock is zero when the node did not say.
func (r *roster) pinged(name string, rtt time.Duration, clock, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.mu.rows[name]
	if n == nil {
		return
	}
	n.RTT, n.Seen = rtt, now
	if !clock.IsZero() {
		n.ClockAhead = clock.Add(rtt / 2).Sub(now)
	}
}

// settle tells what has changed by now, and when to look again if nothing happens: zero =
// not before something does. Numbers of those that leave are given back by freed.
func (r *roster) settle(now time.Time) (events []event, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, n := range r.mu.rows {
		held := !n.up && n.State != Leaving && now.Before(n.gone)
		good := (n.up || held) && n.State != Leaving && n.Unusable == ""
		if n.told != nil && (!good || !n.told.same(&n.Member)) {
			was := *n.told
			was.State = n.departure(held)
			events = append(events, event{false, was})
			n.told, n.Told, n.lost = nil, false, false
		}
		switch {
		case n.up && good && n.told == nil:
			number, ok := r.numberLocked()
			if !ok {
				next = now // once those that leave have given theirs back
				continue
			}
			n.Number, n.Told = number, true
			told := n.Member
			n.told = &told
			events = append(events, event{true, told})
		case held && (next.IsZero() || n.gone.Before(next)):
			next = n.gone
		case !n.up && !held:
			n.State, n.Since = n.departure(held), now
			n.Told = false
			r.rememberLocked(n.Member, now)
			delete(r.mu.rows, name)
		}
	}
	return events, next
}

// departure returns the state of a node that is no member any more; Alive = it is there, but
// not as it was.
func (n *row) departure(held bool) State {
	switch {
	case n.State == Leaving:
		return Left
	case !n.up && !held:
		return Failed
	}
	return Alive
}

// doubts are the members that were told of, and that do not answer since doubts was called
// last, or do again.
func (r *roster) doubts() (changed []Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.mu.rows {
		if lost := n.State == Unreachable; n.told != nil && lost != n.lost {
			n.lost = lost
			changed = append(changed, n.Member)
		}
	}
	return changed
}

// freed gives back the number of a member whose leave was told.
func (r *roster) freed(number uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.numbers[number] = false
}

// numberLocked gives the least number that is free. There may be none while the leaves of
// others are being told.
func (r *roster) numberLocked() (uint16, bool) {
	i := slices.Index(r.mu.numbers[:], false)
	if i < 0 {
		return 0, false
	}
	r.mu.numbers[i] = true
	return uint16(i), true
}

// rememberLocked keeps a node that is gone. When there are too many, one that left is
// forgotten before one that failed, and the oldest first.
func (r *roster) rememberLocked(m Member, now time.Time) {
	r.forgetLocked(now)
	if len(r.mu.gone) >= maxGone {
		var worst *Member
		for _, other := range r.mu.gone {
			if worst == nil || other.State > worst.State || other.State == worst.State && other.Since.Before(worst.Since) {
				worst = &other
			}
		}
		delete(r.mu.gone, worst.Name)
	}
	r.mu.gone[m.Name] = m
}

func (r *roster) forgetLocked(now time.Time) {
	for name, m := range r.mu.gone {
		if now.Sub(m.Since) > goneLife {
			delete(r.mu.gone, name)
		}
	}
}

// reached gives the gossip addresses of nodes that are there, and those of nodes that
// were lost and may come back.
func (r *roster) reached(now time.Time) (here map[netip.AddrPort]bool, lost []netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	here = map[netip.AddrPort]bool{}
	for _, n := range r.mu.rows {
		if n.up {
			here[n.Gossip] = true
		} else if n.State != Leaving {
			lost = append(lost, n.Gossip)
		}
	}
	r.forgetLocked(now)
	for _, m := range r.mu.gone {
		if m.State == Failed && now.Sub(m.Since) <= rejoinLife {
			lost = append(lost, m.Gossip)
		}
	}
	return here, lost
}

// members lists the other nodes by name, those that are gone behind the others.
func (r *roster) members() []Member {
	r.mu.Lock()
	list := make([]Member, 0, len(r.mu.rows)+len(r.mu.gone))
	for _, n := range r.mu.rows {
		list = append(list, n.Member)
	}
	for _, m := range r.mu.gone {
		list = append(list, m)
	}
	r.mu.Unlock()
	slices.SortFunc(list, func(a, b Member) int {
		switch {
		case a.State.Gone() == b.State.Gone():
			return strings.Compare(a.Name, b.Name)
		case a.State.Gone():
			return 1
		}
		return -1
	})
	return list
}

// counts are how often members came back within the hold, and found no room.
func (r *roster) counts() (flaps, refused uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.flaps, r.mu.refused
}
