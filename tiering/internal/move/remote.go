package move

import (
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Remote is the part of a store that finds objects outside this node. Guarded by the
// store's lock.
//
// An object that is neither in memory nor in the lower tier may be at a tier.Remote. A
// match asks for hints only, which read memory. An acquire, load or read-ahead of an
// object that is only hinted starts a search (search.go) for all such keys together. It
// finds where the objects are, and their entries:
//
//	hinted ──► searching ──► located ──► fetching ──► in memory
//	   ▲          │           │          │
//	   └ AnswerTTL└► absent ◄─┘ (corrupt, gone, unavailable, not worth its bytes)
//
// An object that was found and is worth its bytes is promoted like an entry of the lower
// tier, by the same engine, which reads the copy that was found. An absent object is not
// looked up again until AnswerTTL has passed, whatever the hints say.
//
// Invariant: a tier.Copy that was found belongs to one of Remote.Lookups, to one promotion
// or to Remote.discarded, and is closed once.
type Remote struct {
	cat *catalog.Catalog
	// What an object that was found is passed to, and whether an object is already on its way
	// into memory. Both are called with the lock held.
	promote func(w Wanted)
	coming  func(n tier.Name) bool

	Engine    *transfer.Engine[*search] // nil without a Remote
	Learner   tier.Learner              // the Remote, if it is a Learner
	Preparer  tier.Preparer             // the Remote, if it is a Preparer
	prepared  []tier.Want               // what the running match will ask the Remote for, in order; at most as many as one critical section matches
	asked     int                       // index into prepared: entries before it were asked for already
	Lookups   map[objects.Identity]*remoteLookup
	answers   []answer // in order of expiry
	discarded []tier.Copy
	want      tier.Want // argument of the last call of the Remote's Hint
	Hint      tier.Hint // result of the last call of the Remote's Hint
}

// remoteLookup is an object with a remote lookup, running or answered.
type remoteLookup struct {
	id      objects.Identity
	search  *search        // the running search; nil once it has an answer
	urgent  bool           // a client asked for it
	planned bool           // as in AcquireQuery
	base    tier.Name      // as in Wanted
	devices []RankOnDevice // ranks that also want the object in HBM
	until   time.Time
	copy    tier.Copy // the copy that was found and is not yet promoted; nil = absent
	Entry   tier.Entry
	why     tier.Reason // why the object is absent
}

// answer is an answered lookup and the time until which the answer is valid.
type answer struct {
	of    *remoteLookup
	until time.Time
}

const (
	// AnswerTTL is the validity of an answer. It is some seconds, about the time that an
	// index takes to follow the evictions of a node (a guess).
	AnswerTTL = 5 * time.Second
	// maxAnswers is the maximum number of answers that are kept; the oldest are forgotten first.
	maxAnswers = 4096
)

// Identity returns the identity of the object.
func (w *Wanted) Identity() objects.Identity {
	return objects.Identity{Name: w.Name, Profile: w.Profile, Tenant: w.Tenant}
}

// remoteLookupLocked returns the lookup of an object if it is running or its answer is still
// valid, otherwise nil.
func (rem *Remote) remoteLookupLocked(id objects.Identity) *remoteLookup {
	if len(rem.Lookups) == 0 {
		return nil
	}
	k := rem.Lookups[id]
	if k == nil || k.search == nil && !rem.cat.Config.Now().Before(k.until) {
		return nil
	}
	return k
}

// HintLocked asks the Remote for a hint, which reads memory only.
func (rem *Remote) HintLocked(id objects.Identity) (tier.Hint, bool) {
	rem.want = tier.Want{Name: id.Name, Fingerprint: id.Profile.Fingerprint(), Tenant: id.Tenant.ID}
	for i := rem.asked; i < len(rem.prepared); i++ { // asked moves only if this object was prepared
		if w := &rem.prepared[i]; w.Name == id.Name {
			rem.want.Mark, rem.asked = w.Mark, i
			break
		}
	}
	h, ok := rem.cat.Config.Remote.Hint(&rem.want)
	rem.Hint = h
	return h, ok
}

// PrepareLocked announces to the Remote which segments a match will ask for: the keys that have
// no object in the list held, and the keys of their other variants (the list second) that have
// no object in the list others. The caller must call ForgetPreparedLocked afterwards.
func (rem *Remote) PrepareLocked(keys, second [][32]byte, held, others []*objects.Object, p *objects.Profile, t *objects.Tenant) {
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
		rem.Preparer.Prepare(rem.prepared)
	}
}

// ForgetPreparedLocked ends what PrepareLocked began.
func (rem *Remote) ForgetPreparedLocked() { rem.prepared, rem.asked = rem.prepared[:0], 0 }

// FoundLocked returns the entry of a copy that a search has found and that no promotion
// reads yet.
func (rem *Remote) FoundLocked(id objects.Identity) (tier.Entry, bool) {
	if k := rem.remoteLookupLocked(id); k != nil && k.copy != nil {
		return k.Entry, true
	}
	return tier.Entry{}, false
}

// elsewhereLocked reports whether an object was fetched and is still believed to be
// cached elsewhere. Such an object is evicted without demotion.
func (rem *Remote) elsewhereLocked(o *objects.Object) bool {
	if !o.Fetched || rem.Engine == nil {
		return false
	}
	_, ok := rem.HintLocked(o.Identity())
	return ok
}

// WorthLocked reports whether fetching the given number of bytes takes less time than computing
// tokens [begin, end). It uses the latency and speed of the hint, or those of past fetches if
// the hint has none.
func (rem *Remote) WorthLocked(id objects.Identity, begin, end int, bytes int64) bool {
	h, _ := rem.HintLocked(id)
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
func (rem *Remote) takeCopyLocked(id objects.Identity) (tier.Copy, []RankOnDevice) {
	if rem.Engine == nil {
		return nil, nil
	}
	if _, held := rem.cat.Objects.Below.Lookup(id.Name, id.Profile, id.Tenant); held {
		return nil, nil
	}
	k := rem.Lookups[id]
	found, devices := k.copy, k.devices
	k.copy = nil
	delete(rem.Lookups, id)
	return found, devices
}

// endFetchLocked records an object as absent if its copy could not be read.
func (rem *Remote) endFetchLocked(id objects.Identity, err error) {
	switch how := transfer.OutcomeOf(err); how {
	case transfer.Corrupt, transfer.Gone, transfer.Unavailable:
		rem.absentLocked(id, missReason(how))
	}
}

// absentLocked records that an object could not be fetched.
func (rem *Remote) absentLocked(id objects.Identity, why tier.Reason) {
	k := rem.Lookups[id]
	if k == nil || k.search == nil { // a running search may still find it elsewhere
		k = rem.replaceLocked(id)
		k.why = why
		rem.answerLocked(k)
	}
}

// replaceLocked replaces the record of an object that has no running search by a new one.
func (rem *Remote) replaceLocked(id objects.Identity) *remoteLookup {
	if old := rem.Lookups[id]; old != nil {
		rem.discardLocked(old.copy)
		old.copy = nil
	}
	k := &remoteLookup{id: id}
	rem.Lookups[id] = k
	return k
}

// answerLocked marks a lookup as answered, valid for AnswerTTL.
func (rem *Remote) answerLocked(k *remoteLookup) {
	now := rem.cat.Config.Now()
	k.search, k.until = nil, now.Add(AnswerTTL)
	rem.answers = append(rem.answers, answer{k, k.until})
	for len(rem.answers) > maxAnswers {
		rem.forgetAnswerLocked()
	}
}

func (rem *Remote) forgetAnswerLocked() {
	k := rem.answers[0].of
	rem.answers[0] = answer{}
	rem.answers = rem.answers[1:]
	if rem.Lookups[k.id] == k && k.search == nil {
		rem.discardLocked(k.copy)
		k.copy = nil
		delete(rem.Lookups, k.id)
	}
}

// sweepBeyond forgets expired answers.
func (rem *Remote) sweepBeyond(now time.Time) {
	if rem.Engine == nil {
		return
	}
	_ = rem.cat.InTurns(func() error {
		for n := 0; len(rem.answers) > 0 && !now.Before(rem.answers[0].until); n++ {
			if n == catalog.HoldRows {
				return objects.ErrAgain
			}
			rem.forgetAnswerLocked()
		}
		return nil
	})
	rem.closeDiscarded()
}

// discardLocked queues a copy to be closed without the lock; nil does nothing.
func (rem *Remote) discardLocked(c tier.Copy) {
	if c != nil {
		rem.discarded = append(rem.discarded, c)
	}
}

// closeDiscarded closes the copies queued by discardLocked.
func (rem *Remote) closeDiscarded() {
	if rem.cat.Config.Remote == nil {
		return
	}
	rem.cat.Mu.Lock()
	list := rem.discarded
	rem.discarded = nil
	rem.cat.Mu.Unlock()
	for _, c := range list {
		c.Close()
	}
}

// closeBeyond closes all copies that were found and not promoted.
func (rem *Remote) closeBeyond() {
	if rem.Engine == nil {
		return
	}
	rem.cat.Mu.Lock()
	for len(rem.answers) > 0 {
		rem.forgetAnswerLocked()
	}
	rem.cat.Mu.Unlock()
	rem.closeDiscarded()
}

// Wanted describes an object to be promoted and for whom.
type Wanted struct {
	Name    tier.Name
	Profile *objects.Profile
	Tenant  *objects.Tenant
	Urgent  bool      // a client waits for it; otherwise a match has named it
	Base    tier.Name // a checkpoint on this node that the object may extend; zero = unknown
	Planned bool      // as in AcquireQuery
}

// RankOnDevice is a rank of an engine and the device that the rank reads.
type RankOnDevice struct {
	Device *hbm.Cache
	Rank   int
}

// PlannedLocked prepares the fetch of an object that another node has just computed for
// this one. A running search for the object will fetch it even if computing it takes less
// time. An earlier answer that the object is absent is outdated and is dropped.
func (rem *Remote) PlannedLocked(id objects.Identity) {
	switch k := rem.Lookups[id]; {
	case k == nil:
	case k.search != nil:
		k.planned = true
	case k.copy == nil:
		delete(rem.Lookups, id)
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
