package tiering

import (
	"errors"
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// modelOf is one of several models of one shape.
func modelOf(i int) *profile.Profile {
	id := hybrid(1)
	id.Model = fmt.Sprintf("model %d", i)
	return profiletest.New(id)
}

func TestProfilesInUseAreNeverForgotten(t *testing.T) {
	b := newBench(t, hybrid(1), func(c *Config) { c.MaxProfiles = 2 })
	add := func(i int) (tier.ProfileID, error) { return b.AddProfile(modelOf(i)) }
	one, err := add(1)
	b.must(err)
	_, err = add(2)
	b.wantErr(err, tier.ErrBusy)
	if again, err := add(1); err != nil || again != one {
		t.Fatalf("the same again: %d, %v", again, err)
	}
	b.ReleaseProfile(one) // one of two uses
	_, err = add(2)
	b.wantErr(err, tier.ErrBusy)
	b.ReleaseProfile(one)
	if _, ok := b.Store.Profile(one); !ok {
		t.Error("forgotten before its place was wanted")
	}
	two, err := add(2)
	b.must(err)
	if two == one {
		t.Error("an id was given twice")
	}
	if _, ok := b.Store.Profile(one); ok {
		t.Error("a forgotten profile answers")
	}
	if _, ok := b.Store.Profile(b.id); !ok {
		t.Error("a profile in use was forgotten")
	}

	// One that is forgotten between the look-up and the reservation.
	ps, err := b.Store.cat.Profile(b.id)
	b.must(err)
	ps.Forgotten = true
	_, err = b.NewSession("late").Reserve(b.reserveQuery(b.mid(1, 40, 4), 0))
	b.wantErr(err, tier.ErrInvalid)
	ps.Forgotten = false

	// Objects hold their profile: published, and removed but leased.
	c := b.NewSession("client")
	p := b.mid(1, 40, 4)
	b.publish(c, p)
	rows, err := c.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, Keys: [][32]byte{p.key}}, nil)
	b.must(err)
	b.must(rows[0].Err)
	b.ReleaseProfile(b.id)
	_, err = add(3)
	b.wantErr(err, tier.ErrBusy)
	b.must(b.Evict(p.key))
	_, err = add(3)
	b.wantErr(err, tier.ErrBusy)
	c.Close()
	if _, err = add(3); err != nil {
		t.Errorf("with nothing left of the first: %v", err)
	}
}

func TestWhatIsHeldOfAnUnusedProfileMakesRoom(t *testing.T) {
	b := newBench(t, hybrid(1), func(c *Config) { c.MaxProfiles = 2 })
	add := func(i int) (tier.ProfileID, error) { return b.AddProfile(modelOf(i)) }
	c := b.NewSession("client")
	p := b.mid(1, 40, 4)
	b.publish(c, p)
	for n := 40; n <= 160; n += 40 { // a chain
		b.save(c, b.saveQuery(1, n, n-40, tier.Exact), n-40)
	}
	_, err := add(1)
	b.must(err)
	if infos := b.Profiles(); len(infos) != 2 || infos[0].ID != b.id || infos[0].Segments != 1 || infos[0].Checkpoints != 4 || infos[1].Segments+infos[1].Checkpoints != 0 {
		t.Fatalf("profiles %+v", infos)
	}
	full := func(why string) {
		t.Helper()
		b.ReclaimProfile(t.Context())
		if _, err := add(2); !errors.Is(err, tier.ErrBusy) {
			t.Fatalf("a third profile while the first %s: %v", why, err)
		}
	}
	full("is used")
	b.acquire(c, 0, p)
	b.ReleaseProfile(b.id)
	full("has a segment that is leased")
	c.Close()
	b.ReclaimProfile(t.Context())
	if _, err := add(2); err != nil {
		t.Fatalf("a third profile when nobody uses the first: %v", err)
	}
	if segments, nodes := b.Segments(SegmentFilter{}, nil, 9), b.Checkpoints(CheckpointFilter{}, nil, 9); len(segments)+len(nodes) != 0 {
		t.Errorf("%d segments and %d checkpoints are left of it", len(segments), len(nodes))
	}
}

// Of those that nobody uses, the one that was left last stays.
func TestTheProfileLeftFirstGoesFirst(t *testing.T) {
	b := newBench(t, hybrid(1), func(c *Config) { c.MaxProfiles = 3 })
	c := b.NewSession("client")
	var ids []tier.ProfileID
	first := b.id
	for i := range 2 {
		b.profile = modelOf(i)
		var err error
		b.id, err = b.AddProfile(b.profile)
		b.must(err)
		b.publish(c, b.mid(i+1, 40, 4))
		ids = append(ids, b.id)
	}
	c.Close()
	b.ReleaseProfile(ids[1])
	b.ReleaseProfile(ids[0])
	b.ReclaimProfile(t.Context())
	if _, err := b.AddProfile(modelOf(2)); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[tier.ProfileID]bool{first: true, ids[0]: true, ids[1]: false} {
		if _, known := b.Profile(id); known != want {
			t.Errorf("profile %d is known: %v", id, known)
		}
	}
}
