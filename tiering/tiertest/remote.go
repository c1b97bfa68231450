package tiertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// RemoteSubject is a tier.Remote together with the sources that it asks. Its methods may
// be called concurrently, except Close.
type RemoteSubject interface {
	tier.Remote
	RemoteTraits() RemoteTraits
	// Put stores an object at a source. After it has returned, Find finds the object there.
	Put(ctx context.Context, source int, o *Object) error
	// Disturb makes operations of a source on an object fail as f says, until the caller calls the
	// returned function mend. The caller must call mend once. The error is ErrNoFault if the subject
	// does not support this.
	Disturb(source int, o *Object, f Fault) (mend func(), err error)
	Close() error
}

// RemoteTraits describes the differences between subjects.
type RemoteTraits struct {
	Sources int // number of sources that may have different objects; at least 1
	// Patience is the longest duration of a call whose source has stopped answering, if
	// its context does not end before.
	Patience time.Duration
	Memory   *Memory // memory of the device that Read fills
}

// ErrNoFault is returned for a fault that a subject does not support.
var ErrNoFault = errors.New("tiertest: this source cannot fail so")

// Fault is a way in which a source fails.
type Fault uint8

// The faults. With a lie the source describes the object wrongly, but sends the right bytes.
const (
	Spoilt      Fault = iota // some bytes of the object are changed
	Vanishing                // the object is removed after its first bytes were requested
	Dead                     // every request fails at once
	DeadHalfway              // every request fails, after some bytes were sent
	Stalled                  // no request is answered
	StalledHalf              // the description is right, but the bytes stop halfway
	LieBytes                 // it has other lengths
	LieShape                 // its shape is not one of the profile
	LieName                  // it is another object
	LieTokens                // it has the token ids of another segment
	LieDigests               // it has the digests of other bytes
	LieShort                 // digests are missing
)

var faultNames = [...]string{
	"spoilt", "vanishing", "dead", "dead halfway", "stalled", "stalled halfway",
	"lies about bytes", "lies about its shape", "lies about its name", "lies about token ids", "lies about digests", "lies by leaving digests out",
}

func (f Fault) String() string { return faultNames[f] }

// RemoteConformance checks the requirements for every tier.Remote. It calls the function open
// once for each story, with the tenants alice and bob of this package. It skips stories with
// faults that a subject does not support, or with more sources than it has.
func RemoteConformance(t *testing.T, open func(t testing.TB, tenants []Tenant) RemoteSubject) {
	for _, story := range []struct {
		name string
		test func(r *remoteRig)
	}{
		{"what is put is what is read", testRemoteContent},
		{"what nobody has is not found", testRemoteMiss},
		{"tenants and profiles do not see each other's", testRemoteScope},
		{"a copy may be closed unread", testRemoteUnread},
		{"memory of other lengths is refused", testRemoteLengths},
		{"wrong bytes are corrupt", testRemoteSpoilt},
		{"what lies is not believed", testRemoteLies},
		{"what goes in the middle is gone", testRemoteVanishing},
		{"a dead source costs no time", testRemoteDead},
		{"a source that stalls costs a bounded time", testRemoteStalled},
		{"an ended context ends a read", testRemoteCancel},
		{"another source with the same bytes goes on", testRemoteFailover},
		{"bytes of two sources are not mixed", testRemoteMixed},
		{"many at once", testRemoteAtOnce},
	} {
		t.Run(story.name, func(t *testing.T) {
			Leaks(t)
			seed := rand.Uint64()
			t.Logf("seed %#x", seed)
			r := &remoteRig{T: t, rig: &rig{T: t, rng: rand.New(rand.NewPCG(seed, 0)), seed: seed % (1 << 40)}}
			r.RemoteSubject = open(t, []Tenant{alice, bob})
			t.Cleanup(func() {
				if err := r.RemoteSubject.Close(); err != nil {
					t.Error(err)
				}
			})
			story.test(r)
		})
	}
}

// remoteRig is a test story with its subject. Its rig creates the objects.
type remoteRig struct {
	*testing.T
	RemoteSubject
	rig *rig
}

// WantOf returns the request for an object, from a node that lacks the object and has its parent.
func WantOf(o *Object) tier.Want {
	return tier.Want{Name: o.Name, Fingerprint: o.Profile.Fingerprint(), Tenant: o.Tenant.ID, Base: o.Parent}
}

// EntryFits returns an error unless an entry describes the object.
func (o *Object) EntryFits(e *tier.Entry) error {
	if e.Name != o.Name || e.Tenant != o.Tenant.ID || e.Fingerprint != o.Profile.Fingerprint() || e.Spec != o.Spec ||
		e.Begin != o.Begin || e.End != o.End || e.Parent != o.Parent {
		return fmt.Errorf("%v: entry %+v: %w", o, e, ErrWrong)
	}
	return nil
}

func (r *remoteRig) put(source int, list ...*Object) {
	r.Helper()
	for _, o := range list {
		if err := r.Put(context.Background(), source, o); err != nil {
			r.Fatalf("put %v: %v", o, err)
		}
	}
}

// disturb makes a source fail. It skips the story if the subject does not support the fault.
func (r *remoteRig) disturb(source int, o *Object, f Fault) (mend func()) {
	r.Helper()
	mend, err := r.Disturb(source, o, f)
	if errors.Is(err, ErrNoFault) {
		r.Skipf("a source cannot be %v", f)
	}
	if err != nil {
		r.Fatalf("%v: %v", f, err)
	}
	return mend
}

func (r *remoteRig) sources(n int) {
	r.Helper()
	if has := r.RemoteTraits().Sources; has < n {
		r.Skipf("%d sources of %d", has, n)
	}
}

// find asks for objects in one query. The caller closes the rows.
func (r *remoteRig) find(ctx context.Context, list ...*Object) ([]tier.Copy, error) {
	r.Helper()
	wants := make([]tier.Want, len(list))
	for i, o := range list {
		wants[i] = WantOf(o)
	}
	rows, err := r.Find(ctx, wants)
	if err != nil {
		return nil, err
	}
	if len(rows) != len(list) {
		r.Fatalf("%d rows for %d wants", len(rows), len(list))
	}
	for i, c := range rows {
		if c == nil {
			continue
		}
		if err := list[i].EntryFits(c.Entry()); err != nil {
			r.Error(err)
		}
	}
	return rows, nil
}

// copyOf finds one object.
func (r *remoteRig) copyOf(o *Object) tier.Copy {
	r.Helper()
	rows, err := r.find(context.Background(), o)
	if err != nil {
		r.Fatal(err)
	}
	if rows[0] == nil {
		r.Fatalf("%v is not found", o)
	}
	return rows[0]
}

func (r *remoteRig) read(ctx context.Context, c tier.Copy, o *Object) error {
	return ReadCopy(ctx, r.RemoteTraits().Memory, c, o)
}

// ReadCopy reads a copy of an object into new memory and compares everything that was read. It
// overwrites and frees the memory at once, so that a late write into it would be noticed.
func ReadCopy(ctx context.Context, m *Memory, c tier.Copy, o *Object) (err error) {
	refs, err := m.junk(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Spend(refs...)) }()
	read, err := c.Read(ctx, refs)
	if err != nil {
		return err
	}
	got := &Content{Digests: read.Digests}
	if o.Kind == 0 {
		got.Tokens = read.Tokens
	}
	for _, ref := range refs {
		b, err := m.Load(ref)
		if err != nil {
			return err
		}
		got.Bytes = append(got.Bytes, b)
	}
	return o.Compare(got)
}

// junk allocates memory for all ranks of an object and fills it with other bytes.
func (m *Memory) junk(o *Object) ([]gpuipc.Ref, error) {
	refs := make([]gpuipc.Ref, len(o.Bytes))
	for i, b := range o.Bytes {
		junk := slices.Repeat([]byte{0x5a}, len(b))
		var err error
		if refs[i], err = m.Put(junk); err != nil {
			m.free(refs[:i]...)
			return nil, err
		}
	}
	return refs, nil
}

// want expects that one query finds the objects, and that each can be read.
func (r *remoteRig) want(list ...*Object) {
	r.Helper()
	rows, err := r.find(context.Background(), list...)
	if err != nil {
		r.Fatal(err)
	}
	for i, c := range rows {
		if c == nil {
			r.Fatalf("%v is not found", list[i])
		}
		if err := r.read(context.Background(), c, list[i]); err != nil {
			r.Fatal(err)
		}
		c.Close()
	}
}

// missing expects that objects are not found.
func (r *remoteRig) missing(list ...*Object) {
	r.Helper()
	rows, err := r.find(context.Background(), list...)
	if err != nil {
		r.Fatal(err)
	}
	for i, c := range rows {
		if c != nil {
			r.Errorf("%v is found: %+v", list[i], c.Entry())
			c.Close()
		}
	}
}

// bounded runs f and expects that it takes no longer than Patience.
func (r *remoteRig) bounded(f func()) {
	r.Helper()
	began := time.Now()
	f()
	if took, most := time.Since(began), r.RemoteTraits().Patience; took > most {
		r.Errorf("took %v, at most %v", took, most)
	}
}
