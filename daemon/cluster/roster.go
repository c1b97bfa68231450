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

// MaxMembers is the largest number of other nodes in a cluster; it also bounds member numbers.
// Further nodes are ignored and counted.
const MaxMembers = 4095

// State is the state of a member.
type State uint8

const (
	Alive       State = iota // it answers gossip
	Unreachable              // gossip has given it up, and Config.Hold has not passed since
	Leaving                  // it has announced that it leaves
	Failed                   // unreachable for Config.Hold or longer: it crashed, or a partition separates it
	Left                     // it left, after it had announced that
)

func (s State) String() string {
	return [...]string{"alive", "unreachable", "leaving", "failed", "left"}[s]
}

// Gone reports whether the node is no longer a member and is only remembered.
func (s State) Gone() bool { return s == Failed || s == Left }

// Member is a snapshot of a node of the cluster.
type Member struct {
	Name string
	Self bool
	// Number is below MaxMembers. It belongs to this member from its OnJoin to its OnLeave, and has no
	// other meaning.
	Number uint16
	State  State
	Since  time.Time // when the member entered the state
	// Seen is the time of the last gossip from the member.
	Seen time.Time
	// Unusable is the reason why a live member is not used; "" = it is used. Told means that OnJoin was
	// called for the member, and OnLeave was not.
	Unusable string
	Told     bool

	Gossip netip.AddrPort
	Peer   netip.AddrPort // address of the peers' port
	Plain  bool           // the peers' port has no TLS

	Version     string // of the program
	Protocol    uint16
	Incarnation uint64 // identifies one start of the node
	Started     time.Time

	// RTT is the round trip of the latest gossip ping; 0 = none yet. ClockAhead is the time by which
	// the member's clock was ahead of this node's clock then, plus or minus half of RTT.
	RTT        time.Duration
	ClockAhead time.Duration
}

// same reports whether a member has the same start, address and encryption as when it was passed to
// OnJoin. Users of the member need only these to be unchanged.
func (m *Member) same(other *Member) bool {
	return m.Incarnation == other.Incarnation && m.Peer == other.Peer && m.Plain == other.Plain
}

// event is a call of OnJoin or OnLeave. If it is OnLeave, the member's state is the reason: Failed,
// Left, or Alive if the member restarted, moved or became unusable.
type event struct {
	join   bool
	member Member
}

// row is the roster's record of a node.
type row struct {
	Member
	up   bool
	gone time.Time // when its hold ends; only valid while it is not up
	told *Member   // the member as passed to OnJoin; nil = not reported
	lost bool      // doubts has reported that it stopped answering
}

// Nodes that are gone are remembered for operators: at most maxGone nodes, each for goneLife. For
// rejoinLife, this node tries to join those that failed, which heals a partition.
const (
	maxGone    = 256
	goneLife   = 72 * time.Hour
	rejoinLife = time.Hour
)

// roster derives the members from gossip. It tolerates members that are unreachable for a short
// time. It stores the latest state of each node instead of a queue of updates: settle returns the
// differences since its last call.
//
// Invariant: settle returns no other event of a member between its join and its leave.
type roster struct {
	self string
	hold time.Duration
	// unfit returns why a live node cannot be used; "" = it can.
	unfit func(*metadata) string

	mu struct {
		sync.Mutex
		rows    map[string]*row   // nodes by name, at most MaxMembers
		numbers [MaxMembers]bool  // numbers in use
		gone    map[string]Member // Failed or Left, by name; at most maxGone
		flaps   uint64            // how often a member came back within hold
		refused uint64            // how often a node was ignored for lack of room
	}
}

func newRoster(self string, hold time.Duration, unfit func(*metadata) string) *roster {
	r := &roster{self: self, hold: hold, unfit: unfit}
	r.mu.rows, r.mu.gone = map[string]*row{}, map[string]Member{}
	return r
}

// room returns an error if a node must be ignored.
func (r *roster) room(name string) error {
	if !settings.ValidNode(name) {
		return fmt.Errorf("invalid node name %.64q", name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.rows[name] == nil && name != r.self && len(r.mu.rows) >= MaxMembers {
		r.mu.refused++
		return fmt.Errorf("the cluster has %d members, the maximum", MaxMembers)
	}
	return nil
}

// seen records that gossip reports a node as up, or that its metadata has changed.
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

// lost records that gossip has given a node up, or that the node has left. Gossip reports both in
// the same way, so nodes announce in advance that they leave.
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

// pinged records the result of a ping. The parameter clock is zero if the node did not send its
// clock.
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

// settle returns the joins and leaves up to the time now. It must be called again when gossip
// reports something. Without a report, it must be called again at the time next; zero = it need not
// be. The numbers of members that leave stay in use until freed is called.
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
				next = now // retry once freed has released numbers
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

// departure returns the reason why a node is no longer a member. Alive means that the node is up,
// but has changed.
func (n *row) departure(held bool) State {
	switch {
	case n.State == Leaving:
		return Left
	case !n.up && !held:
		return Failed
	}
	return Alive
}

// doubts returns the members whose reachability has changed since the last call of doubts: they
// stopped answering, or answer again. It considers only members that were passed to OnJoin.
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

// freed releases the number of a member after OnLeave was called.
func (r *roster) freed(number uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.numbers[number] = false
}

// numberLocked returns the lowest free number. All may be in use while OnLeave is being called.
func (r *roster) numberLocked() (uint16, bool) {
	i := slices.Index(r.mu.numbers[:], false)
	if i < 0 {
		return 0, false
	}
	r.mu.numbers[i] = true
	return uint16(i), true
}

// rememberLocked remembers a node that is gone. If there are too many, it forgets one: nodes that
// left before nodes that failed, and the oldest first.
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

// reached returns the gossip addresses of nodes that are up (here), and of nodes that are lost and
// may come back (lost).
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

// members lists the other nodes by name. Nodes that are gone are last.
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

// counts returns how often members came back before their hold ended, and how often nodes were
// ignored for lack of room.
func (r *roster) counts() (flaps, refused uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.flaps, r.mu.refused
}
