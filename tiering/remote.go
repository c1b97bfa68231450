package tiering

import (
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// remote is the part of a store that finds objects outside this node. Guarded by the
// store's lock.
//
// An object that is neither in memory nor in the lower tier may be at a tier.Remote. A
// match asks for hints only, which read memory. An acquire, load or read-ahead of an
// object that is only hinted starts a search (search.go) for all such keys together. It
// finds where the objects are, and their entries:
//
//	hinted ──► searching ──► located ──► fetching ──► in memory
//	   ▲          │           │          │
//	   └ answerTTL└► absent ◄─┘ (corrupt, gone, unavailable, not worth its bytes)
//
// An object that was found and is worth its bytes is promoted like an entry of the lower
// tier, by the same engine, which reads the copy that was found. An absent object is not
// looked up again until answerTTL has passed, whatever the hints say.
//
// Invariant: a tier.Copy that was found belongs to one of remote.lookups, to one promotion
// or to remote.discarded, and is closed once.
type remote struct {
	*catalog
	// What an object that was found is passed to, and whether an object is already on its way
	// into memory. Both are called with the lock held.
	promote func(w wanted)
	coming  func(n tier.Name) bool

	engine    *transfer.Engine[*search] // nil without a Remote
	learner   tier.Learner              // the Remote, if it is a Learner
	preparer  tier.Preparer             // the Remote, if it is a Preparer
	prepared  []tier.Want               // what the running match will ask the Remote for, in order; at most matchRows
	asked     int                       // index into prepared: entries before it were asked for already
	lookups   map[objects.Identity]*remoteLookup
	answers   []answer // in order of expiry
	discarded []tier.Copy
	want      tier.Want // argument of the last call of the Remote's Hint
	hint      tier.Hint // result of the last call of the Remote's Hint
}

// remoteLookup is an object with a remote lookup, running or answered.
type remoteLookup struct {
	id      objects.Identity
	search  *search        // the running search; nil once it has an answer
	urgent  bool           // a client asked for it
	planned bool           // as in AcquireQuery
	base    tier.Name      // as in wanted
	devices []rankOnDevice // ranks that also want the object in HBM
	until   time.Time
	copy    tier.Copy // the copy that was found and is not yet promoted; nil = absent
	entry   tier.Entry
	why     tier.Reason // why the object is absent
}

// answer is an answered lookup and the time until which the answer is valid.
type answer struct {
	of    *remoteLookup
	until time.Time
}

const (
	// answerTTL is the validity of an answer. It is some seconds, about the time that an
	// index takes to follow the evictions of a node (a guess).
	answerTTL = 5 * time.Second
	// maxAnswers is the maximum number of answers that are kept; the oldest are forgotten first.
	maxAnswers = 4096
)

func (w *wanted) identity() objects.Identity {
	return objects.Identity{Name: w.name, Profile: w.profile, Tenant: w.tenant}
}

// remoteLookupLocked returns the lookup of an object if it is running or its answer is still
// valid, otherwise nil.
func (rem *remote) remoteLookupLocked(id objects.Identity) *remoteLookup {
	if len(rem.lookups) == 0 {
		return nil
	}
	k := rem.lookups[id]
	if k == nil || k.search == nil && !rem.cfg.Now().Before(k.until) {
		return nil
	}
	return k
}

func (rem *remote) hintLocked(id objects.Identity) (tier.Hint, bool) {
	rem.want = tier.Want{Name: id.Name, Fingerprint: id.Profile.Fingerprint(), Tenant: id.Tenant.ID}
	for i := rem.asked; i < len(rem.prepared); i++ { // asked moves only if this object was prepared
		if w := &rem.prepared[i]; w.Name == id.Name {
			rem.want.Mark, rem.asked = w.Mark, i
			break
		}
	}
	h, ok := rem.cfg.Remote.Hint(&rem.want)
	rem.hint = h
	return h, ok
}

// prepareLocked announces to the Remote which segments a match will ask for: the keys that have
// no object in the list held, and the keys of their other variants (the list second) that have
// no object in the list others. The caller must call forgetPreparedLocked afterwards.
func (rem *remote) prepareLocked(keys, second [][32]byte, held, others []*objects.Object, p *objects.Profile, t *objects.Tenant) {
	add := func(key *[32]byte) {
		rem.prepared = append(rem.prepared, tier.Want{Name: tier.Name{Key: *key}, Fingerprint: p.Fingerprint(), Tenant: t.ID})
	}
	for i := range keys {
		if held[i] != nil {
			continue
		}
		add(&keys[i])
		if len(second) > 0 && others[i] == nil && second[i] != ([32]byte{}) {
			add(&second[i])
		}
	}
	if len(rem.prepared) > 1 {
		rem.preparer.Prepare(rem.prepared)
	}
}

func (rem *remote) forgetPreparedLocked() { rem.prepared, rem.asked = rem.prepared[:0], 0 }

// foundLocked returns the entry of a copy that a search has found and that no promotion
// reads yet.
func (rem *remote) foundLocked(id objects.Identity) (tier.Entry, bool) {
	if k := rem.remoteLookupLocked(id); k != nil && k.copy != nil {
		return k.entry, true
	}
	return tier.Entry{}, false
}

// elsewhereLocked reports whether an object was fetched and is still believed to be
// cached elsewhere. Such an object is evicted without demotion.
func (rem *remote) elsewhereLocked(o *objects.Object) bool {
	if !o.Fetched || rem.engine == nil {
		return false
	}
	_, ok := rem.hintLocked(o.Identity())
	return ok
}

// worthLocked reports whether fetching the given number of bytes takes less time than computing
// tokens [begin, end). It uses the latency and speed of the hint, or those of past fetches if
// the hint has none.
func (rem *remote) worthLocked(id objects.Identity, begin, end int, bytes int64) bool {
	h, _ := rem.hintLocked(id)
	return worth(h, id.Profile, begin, end, bytes)
}

// worth reports whether fetching the given number of bytes takes less time than computing tokens
// [begin, end).
func worth(h tier.Hint, p *objects.Profile, begin, end int, bytes int64) bool {
	m := p.Costs.Model()
	link := m.Link(cost.JobLoadPeer)
	if h.Latency > 0 {
		link.Fixed = h.Latency.Seconds() * 1e3
	}
	if h.BytesPerSecond > 0 {
		link.PerByte = 1e3 / h.BytesPerSecond
	}
	return link.Millis(bytes) < m.Prefill().Marginal(begin, end)
}

// takeCopyLocked passes the copy that a search has found to the promotion that reads it, with
// the ranks that also want the object in HBM.
func (rem *remote) takeCopyLocked(id objects.Identity) (tier.Copy, []rankOnDevice) {
	if rem.engine == nil {
		return nil, nil
	}
	if _, held := rem.objects.Below.Lookup(id.Name, id.Profile, id.Tenant); held {
		return nil, nil
	}
	k := rem.lookups[id]
	found, devices := k.copy, k.devices
	k.copy = nil
	delete(rem.lookups, id)
	return found, devices
}

// endFetchLocked records an object as absent if its copy could not be read.
func (rem *remote) endFetchLocked(id objects.Identity, err error) {
	switch how := transfer.OutcomeOf(err); how {
	case transfer.Corrupt, transfer.Gone, transfer.Unavailable:
		rem.absentLocked(id, missReason(how))
	}
}

// absentLocked records that an object could not be fetched.
func (rem *remote) absentLocked(id objects.Identity, why tier.Reason) {
	k := rem.lookups[id]
	if k == nil || k.search == nil { // a running search may still find it elsewhere
		k = rem.replaceLocked(id)
		k.why = why
		rem.answerLocked(k)
	}
}

// replaceLocked replaces the record of an object that has no running search by a new one.
func (rem *remote) replaceLocked(id objects.Identity) *remoteLookup {
	if old := rem.lookups[id]; old != nil {
		rem.discardLocked(old.copy)
		old.copy = nil
	}
	k := &remoteLookup{id: id}
	rem.lookups[id] = k
	return k
}

// answerLocked marks a lookup as answered, valid for answerTTL.
func (rem *remote) answerLocked(k *remoteLookup) {
	now := rem.cfg.Now()
	k.search, k.until = nil, now.Add(answerTTL)
	rem.answers = append(rem.answers, answer{k, k.until})
	for len(rem.answers) > maxAnswers {
		rem.forgetAnswerLocked()
	}
}

func (rem *remote) forgetAnswerLocked() {
	k := rem.answers[0].of
	rem.answers[0] = answer{}
	rem.answers = rem.answers[1:]
	if rem.lookups[k.id] == k && k.search == nil {
		rem.discardLocked(k.copy)
		k.copy = nil
		delete(rem.lookups, k.id)
	}
}

// sweepBeyond forgets expired answers.
func (rem *remote) sweepBeyond(now time.Time) {
	if rem.engine == nil {
		return
	}
	_ = rem.inTurns(func() error {
		for n := 0; len(rem.answers) > 0 && !now.Before(rem.answers[0].until); n++ {
			if n == holdRows {
				return objects.ErrAgain
			}
			rem.forgetAnswerLocked()
		}
		return nil
	})
	rem.closeDiscarded()
}

// discardLocked queues a copy to be closed without the lock; nil does nothing.
func (rem *remote) discardLocked(c tier.Copy) {
	if c != nil {
		rem.discarded = append(rem.discarded, c)
	}
}

// closeDiscarded closes the copies queued by discardLocked.
func (rem *remote) closeDiscarded() {
	if rem.cfg.Remote == nil {
		return
	}
	rem.mu.Lock()
	list := rem.discarded
	rem.discarded = nil
	rem.mu.Unlock()
	for _, c := range list {
		c.Close()
	}
}

// closeBeyond closes all copies that were found and not promoted.
func (rem *remote) closeBeyond() {
	if rem.engine == nil {
		return
	}
	rem.mu.Lock()
	for len(rem.answers) > 0 {
		rem.forgetAnswerLocked()
	}
	rem.mu.Unlock()
	rem.closeDiscarded()
}

// wanted describes an object to be promoted and for whom.
type wanted struct {
	name    tier.Name
	profile *objects.Profile
	tenant  *objects.Tenant
	urgent  bool      // a client waits for it; otherwise a match has named it
	base    tier.Name // a checkpoint on this node that the object may extend; zero = unknown
	planned bool      // as in AcquireQuery
}

// rankOnDevice is a rank of an engine and the device that the rank reads.
type rankOnDevice struct {
	above *hbm.Cache
	rank  int
}

// plannedLocked prepares the fetch of an object that another node has just computed for
// this one. A running search for the object will fetch it even if computing it takes less
// time. An earlier answer that the object is absent is outdated and is dropped.
func (rem *remote) plannedLocked(id objects.Identity) {
	switch k := rem.lookups[id]; {
	case k == nil:
	case k.search != nil:
		k.planned = true
	case k.copy == nil:
		delete(rem.lookups, id)
	}
}

// missReason returns why a row is a miss after a failed transfer.
func missReason(how transfer.Outcome) tier.Reason {
	switch how {
	case transfer.Corrupt, transfer.Gone:
		return tier.ReasonEvicted
	case transfer.NoRoom:
		return tier.ReasonRefused
	}
	return tier.ReasonAborted
}
