package tiertest

import (
	"context"
	"math/rand/v2"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Subject is a tier, or several tiers on top of each other. Its methods may be called
// concurrently, except Close and the methods of Restarter.
type Subject interface {
	Traits() Traits
	// Begin reserves room for an object. It returns errors of package tier. If the subject
	// already has the object, or is receiving it, Begin returns ErrExists or joins.
	Begin(o *Object) (Filling, error)
	// Find looks up an object without I/O. It does not count as a use.
	Find(o *Object) (Entry, bool)
	// Get reads all ranks of an object and counts a use. The error is ErrGone if the
	// subject does not have the object, ErrBusy if it cannot be read now.
	Get(ctx context.Context, o *Object) (*Content, error)
	// Remove removes a segment for an operator; false if there is none.
	Remove(o *Object) bool
	// Used returns the bytes charged to a tenant, including objects that were begun.
	Used(t tier.TenantID) int64
	// Settle waits until the subject's background work is done.
	Settle()
	// Close ends the subject. Values that it returned earlier are no longer valid.
	Close() error
}

// Filling is an object that was begun. One of its methods is called, once.
type Filling interface {
	// Finish passes the bytes of the object. It waits until the object has the requested
	// level, or cannot reach it, and returns the level reached. Without an error the
	// object is found. The caller may reuse the bytes after Finish has returned.
	Finish(ctx context.Context, level tier.Level) (tier.Level, error)
	Cancel()
}

// Tenant owns objects.
type Tenant struct {
	ID         tier.TenantID
	Name       string
	Salt       []byte // part of the keys of its segments
	QuotaBytes int64  // for all tiers of a subject together; 0 = no quota
}

// Traits describes the differences between subjects.
type Traits struct {
	Lowest, Highest tier.Level // levels that Finish supports
	Budget          int64      // maximum bytes of all tenants together, as Holder counts them or else as charged
	MaxBegun        int        // maximum objects begun and not finished; the next one is ErrBusy
}

// Entry is the result of Find.
type Entry struct {
	Bytes int64      // charged to its tenant, over all tiers
	Level tier.Level // durability of the object
}

// Content is the result of Get.
type Content struct {
	Bytes   [][]byte   // by rank
	Digests [][]uint64 // by rank, of each chunk of each part
	Tokens  []uint32   // nil if the subject does not return them
}

// Options are a story's requirements for its subject. The budgets apply to the lowest
// tier. A higher tier may be smaller, but must fit LargestBytes a few times.
type Options struct {
	Tenants                   []Tenant
	PublicBytes, PrivateBytes int64
	LargestBytes              int64 // bytes of the largest object, all ranks together
	MaxBegun                  int   // 0 = as many as fit
}

// Ending is the way in which a subject ends before it is opened again.
type Ending uint8

const (
	Closed    Ending = iota // closed in good order
	Killed                  // the process was killed: data that the kernel has received survives
	PowerLost               // only synced data survives
)

func (e Ending) String() string { return [...]string{"closed", "killed", "power lost"}[e] }

// Restarter is a subject whose objects survive its process.
type Restarter interface {
	// Endings lists the endings that Restart supports.
	Endings() []Ending
	// Restart ends the subject and opens what remains. Only for the Ending Closed does it wait
	// for an orderly end. Concurrent calls return, with any result. After a power loss,
	// unsyncedPercent of the data that was written and not synced survives.
	Restart(how Ending, unsyncedPercent int, rng *rand.Rand) error
}

// Spoiler is a subject whose bytes at rest can be changed without its knowledge.
type Spoiler interface {
	// Spoil changes some bits of a stored object. It returns false if there is none.
	Spoil(o *Object, rng *rand.Rand) (bool, error)
}

// Disturber is a subject whose lower layers can be made to fail.
type Disturber interface {
	// Disturb makes some operations fail until Calm. If the parameter lies is true,
	// acknowledged objects may also be missing without an error.
	Disturb(rng *rand.Rand, lies bool)
	// Calm ends the disturbance, and returns when the subject works again.
	Calm() error
}

// Holder is a subject whose Budget limits other bytes than the charges of tenants, since
// tenants also pay for bytes outside its pools.
type Holder interface {
	Held() int64 // bytes in the pools, of all tenants
}

// Checker is a subject that can check its own invariants.
type Checker interface {
	// Check is called when nothing else is running.
	Check() error
}

// Profiles of objects. Small and Pair have parts of odd sizes, on one and two ranks.
// Linear has only states. WideF32 and WideF16 have rows of more than a chunk. Heavy has
// states of many pages next to rows. Lenient has packed parts.
var (
	Small   = profiletest.New(small("small", 1))
	Pair    = profiletest.New(small("pair", 2))
	Linear  = profiletest.New(linear())
	WideF32 = profiletest.New(profiletest.Wide(profile.F32))
	WideF16 = profiletest.New(profiletest.Wide(profile.BF16))
	Heavy   = profiletest.New(heavy())
	Lenient = profiletest.New(lenient())
)

// ProfileOf returns the one of these profiles that has a fingerprint.
func ProfileOf(f profile.Fingerprint) (*profile.Profile, bool) {
	for _, p := range []*profile.Profile{Small, Pair, Linear, WideF32, WideF16, Heavy, Lenient} {
		if p.Fingerprint() == f {
			return p, true
		}
	}
	return nil, false
}

// lenient returns the profile of the function small with dense transitions and tolerances,
// on two ranks, so that its segments are packed.
func lenient() profile.Identity {
	id := small("lenient", 2)
	id.Tolerance, id.RowTolerance = 0.02, 0.01
	l := &id.Layers[0].Linear
	l.Family, l.KeyHeads, l.ValueHeads, l.KeyDim, l.ValueDim, l.Conv = profile.GDN, 2, 4, 32, 24, profile.Conv{}
	return id
}

// heavy is profiletest.Small with states of 64 KiB.
func heavy() profile.Identity {
	id := profiletest.Small(1)
	id.Model = "heavy"
	for i := range id.Layers {
		if l := &id.Layers[i].Linear; id.Layers[i].Kind == profile.KindLinear {
			l.KeyHeads, l.ValueHeads, l.KeyDim, l.ValueDim, l.Conv = 1, 1, 128, 128, profile.Conv{}
		}
	}
	return id
}

// small returns profiletest.Small with an empty layer in between and a second attention
// layer.
func small(name string, ranks int) profile.Identity {
	id := profiletest.Small(ranks)
	id.Model = name
	id.Layers = []profile.Layer{
		id.Layers[0],
		{Kind: profile.KindNone},
		id.Layers[1],
		{Kind: profile.KindFull, Attention: profile.Attention{KVHeads: 2, KeyDim: 10, ValueDim: 6, DType: profile.BF16, Keys: profile.AtZero}},
	}
	return id
}

func linear() profile.Identity {
	return profile.Identity{
		Model: "linear", Weights: [32]byte{2}, Tokenizer: "bytes", TPSize: 1,
		Layers: []profile.Layer{{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: profile.GLA, KeyHeads: 1, ValueHeads: 1, KeyDim: 5, ValueDim: 7, StateDType: profile.F32, TransitionDType: profile.F32,
		}}},
	}
}
