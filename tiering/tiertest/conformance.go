package tiertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Conformance checks the requirements for every tier. The function open is called once for each
// story. Stories for which a subject lacks a method are skipped.
func Conformance(t *testing.T, open func(t testing.TB, o Options) Subject) {
	for _, story := range []struct {
		name string
		test func(r *rig)
	}{
		{"what is put is what is got", testContent},
		{"nothing is found before it is whole", testBegun},
		{"what does not fit its digests is not served", testSpoiltBefore},
		{"what extends nothing is refused", testOrphans},
		{"accounts are exact", testAccounts},
		{"the least recently used leaves first", testEviction},
		{"a chain leaves from its end", testChains},
		{"what cannot fit evicts nothing", testTooLarge},
		{"a tenant keeps its quota to the byte", testQuota},
		{"too much at once is busy", testBusy},
		{"what is removed is gone", testRemove},
		{"an ended context costs nothing", testContext},
		{"many at once", testAtOnce},
		{"a restart in good order keeps all", testRestartClosed},
		{"a killed process keeps what is logged", testRestartKilled},
		{"a loss of power keeps what is synced", testRestartPower},
		{"use is remembered over a restart", testRestartOrder},
		{"changed bytes at rest are a miss", testSpoiltAtRest},
	} {
		t.Run(story.name, func(t *testing.T) {
			Leaks(t)
			seed := rand.Uint64()
			t.Logf("seed %#x", seed)
			r := &rig{T: t, factory: open, rng: rand.New(rand.NewPCG(seed, 0)), seed: seed % (1 << 40)}
			story.test(r)
		})
	}
}

// The tenants of stories, without quotas.
var (
	alice = Tenant{ID: 1, Name: "alice", Salt: []byte("a")}
	bob   = Tenant{ID: 2, Name: "bob", Salt: []byte("b")}
)

// rig is a test story with its subject.
type rig struct {
	*testing.T
	Subject
	factory func(t testing.TB, o Options) Subject
	rng     *rand.Rand
	seed    uint64 // seed of the last object
}

// open opens the subject. With zero budgets it sets budgets that fit everything in a story.
func (r *rig) open(o Options) {
	r.Helper()
	if len(o.Tenants) == 0 {
		o.Tenants = []Tenant{alice, bob}
	}
	if o.PublicBytes+o.PrivateBytes == 0 {
		o.PublicBytes, o.PrivateBytes = 24<<20, 24<<20
	}
	o.LargestBytes = cmp.Or(o.LargestBytes, 64<<10)
	s := r.factory(r, o)
	r.Subject = s
	r.Cleanup(func() {
		s.Settle()
		r.check()
		if err := s.Close(); err != nil {
			r.Error(err)
		}
	})
}

func (r *rig) check() {
	r.Helper()
	if c, ok := r.Subject.(Checker); ok {
		if err := c.Check(); err != nil {
			r.Error(err)
		}
	}
}

// errNotReached means that an object was put, but not at the requested level.
var errNotReached = errors.New("tiertest: not the level asked for")

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) next() uint64 {
	r.seed++
	return r.seed
}

// segment returns a small segment of a tenant. All segments that it returns have the same size.
func (r *rig) segment(t Tenant) *Object { return Segment(Small, t, r.next(), 40) }

// try puts an object at a level.
func (r *rig) try(o *Object, level tier.Level) error {
	f, err := r.Begin(o)
	if err != nil {
		return err
	}
	reached, err := f.Finish(context.Background(), level)
	if err == nil && reached < level {
		return fmt.Errorf("%v reached level %v of %v: %w", o, reached, level, errNotReached)
	}
	return err
}

// put puts an object at the lowest level.
func (r *rig) put(list ...*Object) {
	r.Helper()
	for _, o := range list {
		r.must(r.try(o, r.Traits().Lowest))
	}
}

// want expects that objects are found and served with the right bytes.
func (r *rig) want(list ...*Object) {
	r.Helper()
	for _, o := range list {
		if _, ok := r.Find(o); !ok {
			r.Fatalf("%v is not found", o)
		}
		c, err := r.Get(context.Background(), o)
		r.must(err)
		r.must(o.Compare(c))
	}
}

// gone expects that an object is neither found nor served.
func (r *rig) gone(o *Object) {
	r.Helper()
	if e, ok := r.Find(o); ok {
		r.Fatalf("%v is found: %+v", o, e)
	}
	if _, err := r.Get(context.Background(), o); !errors.Is(err, tier.ErrGone) {
		r.Fatalf("%v: %v, want %v", o, err, tier.ErrGone)
	}
}

func (r *rig) wantErr(err error, kinds ...error) {
	r.Helper()
	for _, k := range kinds {
		if errors.Is(err, k) {
			return
		}
	}
	r.Fatalf("error %v, want one of %v", err, kinds)
}

// wantUsed expects that a tenant is charged this number of bytes.
func (r *rig) wantUsed(t Tenant, bytes int64) {
	r.Helper()
	if got := r.Used(t.ID); got != bytes {
		r.Fatalf("tenant %q is charged %d bytes, want %d", t.Name, got, bytes)
	}
}

// balanced expects that, once all transfers have ended, each tenant is charged the sum of
// the objects that are found.
func (r *rig) balanced(list []*Object) {
	r.Helper()
	if err := balanced(r.Subject, list, 20*time.Second); err != nil {
		r.Fatal(err)
	}
}

func balanced(s Subject, list []*Object, patience time.Duration) (err error) {
	Wait(patience, func() bool {
		if err = unbalanced(s, list); err != nil {
			s.Settle()
		}
		return err == nil
	})
	return err
}

func unbalanced(s Subject, list []*Object) error {
	rest := map[tier.TenantID]int64{}
	for _, o := range list {
		rest[o.Tenant.ID] = s.Used(o.Tenant.ID)
	}
	for _, o := range list {
		if e, ok := s.Find(o); ok {
			rest[o.Tenant.ID] -= e.Bytes
		}
	}
	for id, bytes := range rest {
		if bytes != 0 {
			return fmt.Errorf("tenant %d is charged %d bytes more than the sum of what is found: %w", id, bytes, ErrWrong)
		}
	}
	return nil
}

// found reports for each object whether it is found.
func (r *rig) found(list []*Object) (found []bool) {
	for _, o := range list {
		_, ok := r.Find(o)
		found = append(found, ok)
	}
	return found
}
