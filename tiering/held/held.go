// Package held tracks the names of a node's objects over all tiers. It notifies its
// listeners when an object is added, and when it has left all tiers. The index that other
// nodes receive is built from these notifications.
//
// Each holder of an object (memory, the lower tier) calls Add once and Remove once, as for
// the index of segments (package find). All methods may be called concurrently, and with
// any lock held except a listener's. The names of a million objects take about 64 MB: 48
// bytes each, and the free space of a map.
//
// Invariant: for each name that is present, a listener has received Added once more often
// than Removed. For all other names it has received both equally often.
package held

import (
	"fmt"
	"iter"
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Listener receives changes. The changes of one name arrive in order. They come from
// several goroutines and with locks held, so a listener must not block or call the Set.
type Listener interface {
	Added(w tier.Want)
	Removed(w tier.Want)
}

// Set is the set of a node's names. A nil Set ignores changes and is empty.
type Set struct {
	listeners []Listener // fixed after New
	shards    [shards]shard

	scopeMu sync.RWMutex
	scopes  map[scope]uint32 // number of each scope; there is one per pair of profile and tenant ever seen
	byScope []scope
}

// shards is the number of shards, each with a lock and a map.
const shards = 64

type shard struct {
	mu   sync.Mutex
	held map[name]uint8 // number of holders
}

type name struct {
	tier.Name
	scope uint32
}

type scope struct {
	fingerprint profile.Fingerprint
	tenant      tier.TenantID
}

// New returns an empty set, which calls the listeners in their order.
func New(listeners ...Listener) *Set {
	s := &Set{listeners: listeners, scopes: map[scope]uint32{}}
	for i := range s.shards {
		s.shards[i].held = map[name]uint8{}
	}
	return s
}

// Add adds a holder of an object.
func (s *Set) Add(w tier.Want) {
	if s == nil {
		return
	}
	n := name{w.Name, s.number(scope{w.Fingerprint, w.Tenant})}
	sh := s.shard(&n)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.held[n]++
	if sh.held[n] == 1 {
		for _, l := range s.listeners {
			l.Added(w)
		}
	}
}

// Remove removes a holder of an object.
func (s *Set) Remove(w tier.Want) {
	if s == nil {
		return
	}
	n := name{w.Name, s.number(scope{w.Fingerprint, w.Tenant})}
	sh := s.shard(&n)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch sh.held[n] {
	case 0:
		panic(fmt.Sprintf("held: %v is removed that was not added", w.Name))
	case 1:
		delete(sh.held, n)
		for _, l := range s.listeners {
			l.Removed(w)
		}
	default:
		sh.held[n]--
	}
}

// Has reports whether an object is present.
func (s *Set) Has(w tier.Want) bool {
	if s == nil {
		return false
	}
	number, ok := s.known(scope{w.Fingerprint, w.Tenant})
	if !ok {
		return false
	}
	n := name{w.Name, number}
	sh := s.shard(&n)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.held[n] > 0
}

// Len returns the number of names.
func (s *Set) Len() (n int) {
	if s == nil {
		return 0
	}
	for i := range s.shards {
		s.shards[i].mu.Lock()
		n += len(s.shards[i].held)
		s.shards[i].mu.Unlock()
	}
	return n
}

// All returns the names, in no order. It copies the names of one shard at a time, and
// holds no lock while the caller handles them. Names that are added or removed meanwhile
// may or may not be included.
func (s *Set) All() iter.Seq[tier.Want] {
	return func(yield func(tier.Want) bool) {
		if s == nil {
			return
		}
		var names []name
		for i := range s.shards {
			names = s.shards[i].names(names[:0])
			for _, n := range names {
				if !yield(s.want(n)) {
					return
				}
			}
		}
	}
}

func (sh *shard) names(dst []name) []name {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for n := range sh.held {
		dst = append(dst, n)
	}
	return dst
}

func (s *Set) want(n name) tier.Want {
	s.scopeMu.RLock()
	defer s.scopeMu.RUnlock()
	at := s.byScope[n.scope]
	return tier.Want{Name: n.Name, Fingerprint: at.fingerprint, Tenant: at.tenant}
}

func (s *Set) shard(n *name) *shard { return &s.shards[n.Key[0]%shards] }

// known returns the number of a scope, if it has one.
func (s *Set) known(at scope) (uint32, bool) {
	s.scopeMu.RLock()
	defer s.scopeMu.RUnlock()
	n, ok := s.scopes[at]
	return n, ok
}

// number returns the number of a scope, and assigns one to a scope without a number.
func (s *Set) number(at scope) uint32 {
	n, ok := s.known(at)
	if ok {
		return n
	}
	s.scopeMu.Lock()
	defer s.scopeMu.Unlock()
	if n, ok = s.scopes[at]; !ok {
		n = uint32(len(s.byScope))
		s.scopes[at] = n
		s.byScope = append(s.byScope, at)
	}
	return n
}
