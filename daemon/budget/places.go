package budget

import (
	"fmt"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Places divides the places for profiles. It limits the share of a connection, a user and a tenant,
// so that none can take all. For each of these, a profile counts once, however often it is
// registered.
type Places struct {
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

// Holders are the connection, user and tenant that a profile counts for.
type Holders [kindsOfHolders]holder

// NewPlaces divides the given number of places. A connection may have a quarter of them and a user
// three quarters. A tenant may have half, or all if it is the only tenant. Any connection, user or
// tenant may have at least 4 places, a guess at the need of one engine: a few models and their
// drafts.
func NewPlaces(most, tenants int) *Places {
	const some = 4
	p := &Places{}
	p.share = [kindsOfHolders]int{byConnection: max(most/4, some), byUser: max(most-most/4, some), byTenant: most}
	if tenants > 1 {
		p.share[byTenant] = max(most/2, some)
	}
	p.mu.uses = map[holder]map[profile.Fingerprint]int{}
	return p
}

// Take counts a registration for all its holders. If one of them is at its limit, it counts none.
func (p *Places) Take(by Holders, of profile.Fingerprint) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range by {
		if held := p.mu.uses[h]; held[of] == 0 && len(held) >= p.share[h.kind] {
			return codes.Refuse(wire.Busy, "%d profiles of one %v are registered, its maximum", len(held), h.kind)
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

// GiveBack undoes Take.
func (p *Places) GiveBack(by Holders, of profile.Fingerprint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range by {
		held := p.mu.uses[h]
		if held[of] <= 0 {
			panic(fmt.Sprintf("budget: a profile that %v %d does not hold is given back", h.kind, h.id))
		}
		if held[of]--; held[of] == 0 {
			delete(held, of)
		}
		if len(held) == 0 {
			delete(p.mu.uses, h)
		}
	}
}

// HoldersOf returns the connection, user and tenant that a profile registered by a connection
// counts for. A client may have shown the tokens of several tenants. The profile then counts for
// the first of them.
func HoldersOf(connection uint64, uid uint32, tenants []uint32) Holders {
	tenant := uint64(0)
	if len(tenants) > 0 {
		tenant = uint64(tenants[0])
	}
	return Holders{{byConnection, connection}, {byUser, uint64(uid)}, {byTenant, tenant}}
}
