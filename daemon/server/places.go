package server

import (
	"fmt"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/policy/profile"
)

// places divides the places of profiles: what a connection, a user and a tenant hold is
// bounded, so that none takes all. A profile counts once for each of them, however often
// it was registered.
type places struct {
	share [kindsOfHolders]int

	mu struct {
		sync.Mutex
		uses map[holder]map[profile.Fingerprint]int
	}
}

type kindOfHolder uint8

const (
	byConnection kindOfHolder = iota
	byUser
	byTenant
	kindsOfHolders
)

func (k kindOfHolder) String() string {
	return [kindsOfHolders]string{"connection", "user", "tenant"}[k]
}

// holder is a connection, a user or a tenant.
type holder struct {
	kind kindOfHolder
	id   uint64
}

type holders [kindsOfHolders]holder

// newPlaces divides so many: a connection gets a quarter of them, a user three, and a
// tenant half where there are others; each at least some (a guess at what one engine
// needs: a few models and their drafts).
func newPlaces(most, tenants int) *places {
	const some = 4
	p := &places{}
	p.share = [kindsOfHolders]int{byConnection: max(most/4, some), byUser: max(most-most/4, some), byTenant: most}
	if tenants > 1 {
		p.share[byTenant] = max(most/2, some)
	}
	p.mu.uses = map[holder]map[profile.Fingerprint]int{}
	return p
}

// take counts a registration for all its holders, or for none.
func (p *places) take(by holders, of profile.Fingerprint) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range by {
		if held := p.mu.uses[h]; held[of] == 0 && len(held) >= p.share[h.kind] {
			return codes.Refuse(wire.Busy, "%d profiles of one %v are registered, the most that it may have", len(held), h.kind)
		}
	}
	for _, h := range by {
		if p.mu.uses[h] == nil {
			p.mu.uses[h] = map[profile.Fingerprint]int{}
		}
		p.mu.uses[h][of]++
	}
	return nil
}

// giveBack ends take.
func (p *places) giveBack(by holders, of profile.Fingerprint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range by {
		held := p.mu.uses[h]
		if held[of] <= 0 {
			panic(fmt.Sprintf("server: a profile that %v %d does not hold is given back", h.kind, h.id))
		}
		if held[of]--; held[of] == 0 {
			delete(held, of)
		}
		if len(held) == 0 {
			delete(p.mu.uses, h)
		}
	}
}

// holders are those that a profile of the connection counts for: of its tenants the
// first one, whose token it has shown like those of the others.
func (a *attachment) holders() holders {
	tenant := uint64(0)
	if len(a.tenants) > 0 {
		tenant = uint64(a.tenants[0])
	}
	return holders{{byConnection, a.id}, {byUser, uint64(a.uid)}, {byTenant, tenant}}
}
