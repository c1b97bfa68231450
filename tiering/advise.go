package tiering

import (
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func newAdvisor(s *Store) *advise.Advisor {
	o := advise.Options{
		Config: s.cfg.Advise, Store: forAdvice{s}, MaxProfiles: s.cfg.MaxProfiles, Log: s.decisions, Now: s.cfg.Now,
	}
	for i := range s.cfg.Tenants {
		o.Tenants = append(o.Tenants, s.cfg.Tenants[i].ID)
	}
	return advise.New(o)
}

// Advisor answers what is worth storing of a prompt. Run does what it leaves for
// later.
func (s *Store) Advisor() *advise.Advisor { return s.advisor }

// forAdvice is what the advisor sees of a Store.
type forAdvice struct{ store *Store }

func (f forAdvice) Costs(id tier.ProfileID) (*costs.Learned, error) {
	p, err := f.store.profile(id)
	if err != nil {
		return nil, err
	}
	return p.costs, nil
}

// mostShare of a pool is the most that one object should take: with less than
// two objects there is nothing to choose from.
const mostShare = 2

func (f forAdvice) Limits() (segments, checkpoints advise.Limit) {
	limit := func(p *pool) advise.Limit { return advise.Limit{MaxBytes: p.budget / mostShare, Floor: p.floorValue()} }
	return limit(f.store.pools[publicPool]), limit(f.store.pools[privatePool])
}
