package tiertest

import (
	"context"
	"math/rand/v2"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Subject is a tier, or several on top of each other. Its methods may be called
// at once, apart from Close and from what Restarter adds.
type Subject interface {
	Traits() Traits
	// Begin takes room for an object. Errors are of the kinds of package tier; what
	// the subject has already, or is getting, is ErrExists or joined.
	Begin(o *Object) (Filling, error)
	// Find answers what is known of an object without I/O. It is not a use.
	Find(o *Object) (Entry, bool)
	// Get reads an object of all ranks and counts a use. ErrGone: it is not
	// there. ErrBusy: not now.
	Get(ctx context.Context, o *Object) (*Content, error)
	// Remove forgets a segment that an operator removed; false when there is none.
	Remove(o *Object) bool
	// Used is how many bytes a tenant holds, what was begun included.
	Used(t tier.TenantID) int64
	// Settle waits until the subject has done what it does on its own.
	Settle()
	// Close ends the subject. What it gave out is gone.
	Close() error
}

// Filling is an object that was begun. One of its methods is called, once.
type Filling interface {
	// Finish hands the bytes over, which are the caller's again when it returns,
	// and waits until the object is as safe as asked for, or cannot be. The
	// object is found if there is no error; the level is what it has reached.
	Finish(ctx context.Context, level tier.Level) (tier.Level, error)
	Cancel()
}

// Tenant owns objects.
type Tenant struct {
	ID         tier.TenantID
	Name       string
	Salt       []byte // of the keys of its segments
	QuotaBytes int64  // that it may hold in all of a subject; 0 = no quota
}

// Traits is what differs from subject to subject.
type Traits struct {
	Lowest, Highest tier.Level // that Finish can be asked for
	Budget          int64      // bytes that all tenants together hold at most, as Holder has it
	MaxBegun        int        // objects begun and not finished at most; the next is ErrBusy
}

// Entry is what Find answers.
type Entry struct {
	Bytes int64      // that its tenant is charged for it, over all tiers
	Level tier.Level // how safe it is
}

// Content is what Get answers.
type Content struct {
	Bytes   [][]byte   // by rank
	Digests [][]uint64 // by rank, of each chunk of each part
	Tokens  []uint32   // nil where the subject does not tell
}

// Options is what a story wants of its subject. Budgets are of the lowest tier;
// one above may be smaller, but must hold LargestBytes a few times.
type Options struct {
	Tenants                   []Tenant
	PublicBytes, PrivateBytes int64
	LargestBytes              int64 // of an object's ranks together
	MaxBegun                  int   // 0 = as many as there is room for
}

// Ending is how a subject ends before it is opened again.
type Ending uint8

const (
	Closed    Ending = iota // in good order
	Killed                  // its process: what the kernel was given lasts
	PowerLost               // only what was synced lasts
)

func (e Ending) String() string { return [...]string{"closed", "killed", "power lost"}[e] }

// Restarter is a subject that outlives its process.
type Restarter interface {
	// Endings are those that Restart can play.
	Endings() []Ending
	// Restart ends the subject, at once unless it is Closed, and opens what is
	// left. Calls that run meanwhile return, whatever they answer. Of what was
	// written and not synced, unsyncedPercent survives a loss of power.
	Restart(how Ending, unsyncedPercent int, rng *rand.Rand) error
}

// Spoiler is a subject whose bytes at rest can be changed behind its back.
type Spoiler interface {
	// Spoil changes some bits of what is kept of an object; false when nothing is.
	Spoil(o *Object, rng *rand.Rand) (bool, error)
}

// Disturber is a subject whose ground can be made to fail.
type Disturber interface {
	// Disturb has some operations go wrong until Calm: with errors that somebody
	// is told of, or, with lies, also so that what was acknowledged may not be
	// there after all.
	Disturb(rng *rand.Rand, lies bool)
	// Calm ends that, and returns when the subject works again.
	Calm() error
}

// Holder is a subject whose budget does not bound what tenants are charged, since they
// pay for more than its pools hold.
type Holder interface {
	Held() int64 // by the pools, of all tenants
}

// Checker is a subject that knows invariants of its own.
type Checker interface {
	// Check is called when nothing else is going on.
	Check() error
}

// Profiles that objects are of: parts of odd sizes, one and two ranks; states only;
// rows of more than a chunk; states of many pages beside rows; packed parts.
var (
	Small   = profiletest.New(small("small", 1))
	Pair    = profiletest.New(small("pair", 2))
	Linear  = profiletest.New(linear())
	WideF32 = profiletest.New(profiletest.Wide(profile.F32))
	WideF16 = profiletest.New(profiletest.Wide(profile.BF16))
	Heavy   = profiletest.New(heavy())
	Lenient = profiletest.New(lenient())
)

// lenient is small with dense transitions and tolerances, on two ranks: its segments are packed.
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

// small is profiletest.Small with a layer of nothing between and a second attention layer.
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
