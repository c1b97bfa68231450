package torture

import (
	"fmt"
	"io"
	"sync"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Levels in the order of reports.
var levels = [...]tier.Level{tier.LevelMemory, tier.LevelLogged, tier.LevelSynced}

func levelText(l tier.Level) string {
	switch l {
	case tier.LevelMemory:
		return "memory"
	case tier.LevelLogged:
		return "logged"
	case tier.LevelSynced:
		return "synced"
	}
	return "none"
}

// Tally counts the items that were acknowledged at one level, and those of them that every audit
// since has found intact.
type Tally struct {
	Acked    int `json:"acked"`
	Survived int `json:"survived"`
}

// String returns the tally for display: 41/42.
func (t Tally) String() string { return fmt.Sprintf("%d/%d", t.Survived, t.Acked) }

func (t *Tally) add(o Tally) {
	t.Acked += o.Acked
	t.Survived += o.Survived
}

// Tallies are the tallies of the levels memory, logged and synced.
type Tallies struct {
	Memory Tally `json:"memory"`
	Logged Tally `json:"logged"`
	Synced Tally `json:"synced"`
}

func (t *Tallies) of(l tier.Level) *Tally {
	switch l {
	case tier.LevelSynced:
		return &t.Synced
	case tier.LevelLogged:
		return &t.Logged
	}
	return &t.Memory
}

func (t *Tallies) add(o Tallies) {
	t.Memory.add(o.Memory)
	t.Logged.add(o.Logged)
	t.Synced.add(o.Synced)
}

// record is the ledger's record of one item.
//
//	submitted ──reply──► acknowledged ──audit──► survived ──audit──► …
//	    │                     └─────────audit──► missing
//	    └── no reply: may be present or not, but only with its own bytes
type record struct {
	item    *item
	round   int        // round of the last submission
	acked   tier.Level // level in the reply; 0 = no reply
	audited bool       // the audit after its round has checked it
	missing bool       // an audit did not find it
	removed bool       // its removal was requested
	gone    bool       // the removal has ended: the daemon has answered it, or is dead
}

// ledger is the log of submissions and acknowledgements. A round is the time between two
// crashes. An acknowledgement is written to the field log only after its reply has arrived.
type ledger struct {
	mu      sync.Mutex
	log     io.Writer
	round   int
	closed  bool // the crash may have happened: acknowledgements do not count
	records map[tier.Name]*record
	order   []*record // by first submission
	rounds  []Tallies
}

func newLedger(log io.Writer) *ledger {
	return &ledger{log: log, records: map[tier.Name]*record{}, rounds: make([]Tallies, 1)}
}

// begin starts the next round.
func (l *ledger) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round++
	l.closed = false
	for _, r := range l.order {
		r.gone = r.removed
	}
	l.rounds = append(l.rounds, Tallies{})
}

// close ends a round. Acknowledgements after close do not count, because the crash may have lost
// the items.
func (l *ledger) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// submit records an item before it is sent, for the first time or again.
func (l *ledger) submit(i *item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.records[i.Name]
	if r == nil {
		r = &record{item: i}
		l.records[i.Name] = r
		l.order = append(l.order, r)
	}
	*r = record{item: i, round: l.round}
}

// acknowledge records a reply.
func (l *ledger) acknowledge(i *item, reached tier.Level) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	r := l.records[i.Name]
	if r == nil || r.acked != 0 || r.round != l.round {
		return fmt.Errorf("%s was acknowledged without being submitted", i)
	}
	switch reached {
	case tier.LevelMemory, tier.LevelLogged, tier.LevelSynced:
	default:
		return fmt.Errorf("%s was acknowledged at level %d, which there is not", i, reached)
	}
	r.acked = reached
	l.rounds[l.round].of(reached).Acked++
	_, err := fmt.Fprintf(l.log, "%d %s %s %d %x\n", l.round, levelText(reached), i.shape.profile.Identity().Model, i.number, i.Key)
	return err
}

// remove records that the removal of an item is about to be requested. From then on the item may
// be present or absent.
func (l *ledger) remove(i *item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records[i.Name].removed = true
}

// removal records the answer to the removal of an item.
func (l *ledger) removal(i *item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.records[i.Name]
	r.gone = r.removed
}

// submitted reports whether an item of that name was ever sent.
func (l *ledger) submitted(n tier.Name) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records[n] != nil
}

// audited records the result of an audit for one item. intact means that the item was present
// and all bytes that were read were right.
func (l *ledger) audited(r *record, intact bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.rounds[r.round].of(r.acked)
	switch {
	case r.acked == 0 || r.removed || r.missing:
	case intact && !r.audited:
		t.Survived++
	case !intact && r.audited:
		t.Survived--
	}
	r.audited = true
	r.missing = r.missing || !intact
}

// sift returns the records for which the function keep returns true, in order of submission.
func (l *ledger) sift(keep func(r *record) bool) []*record {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*record
	for _, r := range l.order {
		if keep(r) {
			out = append(out, r)
		}
	}
	return out
}

// totals returns the sum of the rounds.
func (l *ledger) totals() (sum Tallies) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.rounds {
		sum.add(t)
	}
	return sum
}

// current returns the tally of this round.
func (l *ledger) current() Tallies {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rounds[l.round]
}

// before reports whether an item was last submitted in an earlier round.
func (l *ledger) before(i *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records[i.Name].round < l.round
}
