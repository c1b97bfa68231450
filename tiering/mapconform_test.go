package tiering

import (
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// mapSubject is a mapTier as tiertest wants it.
type mapSubject struct {
	tiertest.Tier
	tier *mapTier
}

func newMapSubject(t testing.TB, o tiertest.Options) tiertest.Subject {
	dev := tiertest.NewDevice(t)
	m := newMapTier(t, dev, o.PublicBytes+o.PrivateBytes)
	m.queue, m.checks = 64, true
	if o.MaxBegun > 0 {
		m.queue = o.MaxBegun
	}
	for _, t := range o.Tenants {
		m.tenants = append(m.tenants, t.ID)
	}
	return &mapSubject{tier: m, Tier: tiertest.Tier{
		Tier: m, Memory: tiertest.NewMemory(t, dev, 32<<20),
		Trait: tiertest.Traits{Lowest: tier.LevelLogged, Highest: tier.LevelSynced, Budget: m.capacity, MaxBegun: m.queue},
	}}
}

func (s *mapSubject) Settle() {}

func (s *mapSubject) Close() error {
	s.tier.mu.Lock()
	defer s.tier.mu.Unlock()
	if len(s.tier.on) > 0 {
		return errors.New("writes are on their way")
	}
	return nil
}

// What the store's tests have for a lower tier is one.
func TestMapTierConforms(t *testing.T) { tiertest.Conformance(t, newMapSubject) }
