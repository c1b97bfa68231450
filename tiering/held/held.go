// Package held keeps the names of what a node has, in whichever tiers, and tells its
// listeners of each that comes and of each that has left all of them: the feed of an index
// that others see.
//
// Everybody who holds an object says so with Add, once, and with Remove, once, as they do
// to the index of segments (package find). All methods may run at once, and may be called
// with any lock held but a listener's. The names of a million objects take some 64 MB
// (48 bytes each, and what a map leaves free).
//
// Invariant: each listener was told Added once more often than Removed of each name that
// somebody holds, and as often of all others.
package held

import (
	"fmt"
	"iter"
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Listener hears what comes and goes, in order for each name, from several goroutines and
// with locks held: it must not wait, nor call back.
type Listener interface {
	Added(w tier.Want)
	Removed(w tier.Want)
}

// Set is what a node holds. A nil Set is told nothing and has nothing.
type Set struct {
	listeners []Listener // fixed after New
	shards    [shards]shard

	scopeMu sync.RWMutex
	scopes  map[scope]uint32 // numbered; one for each profile and tenant that ever was, few
	byScope []scope
}

// shards is how many locks and maps there are: All holds one of them at a time.
const shards = 64

type shard struct {
	mu   sync.Mutex
	held map[name]uint8 // by how many
}

type name struct {
	tier.Name
	scope uint32
}

type scope struct {
	fingerprint profile.Fingerprint
	tenant      tier.TenantID
}

// New makes an empty set. Each name is told to the listeners in their order.
func New(listeners ...Listener) *Set {
	s := &Set{listeners: listeners, scopes: map[scope]uint32{}}
	for i := range s.shards {
		s.shards[i].held = map[name]uint8{}
	}
	return s
}

// Add says that one more holds an object.
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

// Remove says that one who held an object does not any more.
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

// Has tells whether somebody holds an object.
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

// Len is how many names are held.
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

// All are the names that are held, in no order. It takes copies, a 64th at a time: what
// comes or goes meanwhile may or may not be among them, and no lock is held by whoever
// gets them.
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

// known is the number of a scope, if it has one.
func (s *Set) known(at scope) (uint32, bool) {
	s.scopeMu.RLock()
	defer s.scopeMu.RUnlock()
	n, ok := s.scopes[at]
	return n, ok
}

// number is that of a scope, which begins with its first name.
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
