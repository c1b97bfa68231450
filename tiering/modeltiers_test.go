package tiering

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Tiers below memory and beyond the node: what they hold, what fails, and what a restart keeps.

// feed is what a listener was told. It wants to be told of everything exactly once.
type feed struct {
	t    *model
	held map[tier.Name]bool
}

func (f *feed) Added(w tier.Want) {
	if f.held[w.Name] {
		f.t.Errorf("%v is added twice", w.Name)
	}
	f.held[w.Name] = true
}

func (f *feed) Removed(w tier.Want) {
	if !f.held[w.Name] {
		f.t.Errorf("%v is removed twice", w.Name)
	}
	delete(f.held, w.Name)
}

// object returns the store's object of a name. The caller has the store's lock.
func (m *model) object(o *modelObject) *objects.Object {
	p, _ := m.cat.Profile(m.id)
	return m.cat.Objects.Names.Find(o.Name, p, m.cat.Objects.Tenants[o.tenant])
}

// observe takes over from the store which objects are in memory, if other tiers move them.
func (m *model) observe() {
	if m.exact() {
		return
	}
	m.cat.Mu.Lock()
	defer m.cat.Mu.Unlock()
	for _, want := range m.names() {
		have, o := m.object(want), m.find(want.Name)
		if have != nil && !have.Published() && have.Fill.Promoted {
			have = nil
		}
		switch {
		case o != nil && (have != nil && have.Fill != nil) != (o.filling != nil):
			m.fatal("%v: being filled %v, want %v", want, have != nil && have.Fill != nil, o.filling != nil)
		case have == nil && o != nil:
			m.leave(o, tier.ReasonEvicted)
		case have != nil && o == nil:
			fresh := *want
			o = &fresh
			o.linked = true
			if o.base != (tier.Name{}) {
				if o.parent = m.find(o.base); o.parent == nil {
					m.fatal("%v is in memory without what it extends", o)
				}
				o.depth = o.parent.depth + 1
			}
			m.objects = append(m.objects, o)
		}
		if have != nil && o.filling == nil {
			o.stripped = have.Phase == objects.Stripped
		}
	}
}

// prepare sets up the tiers of an open store.
func (m *model) prepare() {
	switch {
	case m.kind == alone && m.o.refuses:
		m.refusing.attach(m.bench, true)
	case m.kind == lower:
		m.tier.capacity, m.tier.queue = m.o.capacity, m.o.queue
		if m.out != nil {
			m.out.b = m.bench
			m.Cleanup(func() { m.out.takeAll() })
		}
	case m.kind == beyond:
		m.tier.capacity = m.o.capacity
		m.publishApart()
	}
}

// publishApart publishes every third segment on the other node, and a chain of checkpoints.
func (m *model) publishApart() {
	home := m.far.far.home
	c := home.NewSession("far")
	for _, o := range m.names() {
		if !o.private && o.number%3 > 0 || o.private && o.number != 4 && o.number != 9 {
			continue
		}
		for rank := range m.o.ranks {
			var r Reservation
			var err error
			if o.private {
				r, err = c.Save(&SaveQuery{Profile: home.id, Tenant: tenantA, Rank: rank, Kind: o.Kind, Hash: o.Key, Tokens: o.end, Parent: o.base.Key})
			} else {
				r, err = c.Reserve(&ReserveQuery{Profile: home.id, Tenant: o.tenant, Rank: rank, Key: o.Key, Spec: o.spec, Tokens: o.tokens})
			}
			m.must(err)
			home.commitAll(c, r, &o.layout, m.bytesOf(o, rank))
		}
		m.far.far.believe(o.Name, true)
		m.apart[o.Name], m.live[o.Name] = true, true
	}
}

// trouble sets what goes wrong on the other node in the next step: nothing, as a rule.
func (m *model) trouble() {
	n := m.far.far
	n.spoil, n.gone, n.unread, n.unfound, n.renumber = nil, false, nil, nil, false
	some := m.described(false, 3*m.rng.IntN(m.o.segments/3))
	switch m.rng.IntN(16) {
	case 0:
		n.spoil = func(data []byte) { data[m.rng.IntN(len(data))]++ }
	case 1:
		n.gone = true
	case 2:
		n.unread = tier.ErrUnavailable
	case 3:
		n.unfound = tier.ErrUnavailable
	case 4: // it forgets something, and is still believed
		_ = n.home.Evict(some.Key)
	case 5: // it is not believed any more, or is again
		n.believe(some.Name, !n.believed[some.Name])
	case 6:
		n.renumber = true
	}
}

// settle does what the goroutines of Run do, until there is nothing left to do.
func (m *model) settle() {
	m.far.seekAll()
	m.far.fetchAll()
	m.carry()
	m.tier.finishAll()
}

// onDisk reports whether the lower tier has an object.
func (m *model) onDisk(o *modelObject) bool { return m.tier != nil && m.tier.holds(o.Name) }

// farther reports whether an object may come from the lower tier or from another node.
func (m *model) farther(o *modelObject) bool { return m.onDisk(o) || m.far != nil }

// held reports whether the lower tier has an object, or is about to.
func (m *model) held(o *modelObject) bool {
	m.cat.Mu.Lock()
	defer m.cat.Mu.Unlock()
	return m.onDisk(o) || slices.ContainsFunc(m.move.Writes.ByName[o.Name], func(o *objects.Object) bool { return !move.WriteOf(o).Removed })
}

// removed forgets a name that an operator has removed. The other node may still have it.
func (m *model) removed(n tier.Name) {
	m.live[n] = m.apart[n]
	delete(m.acked, n)
	maps.DeleteFunc(m.waits, func(_ *Durable, of tier.Name) bool { return of == n })
}

func (m *model) ended() context.Context {
	ctx, cancel := context.WithCancel(m.ctx)
	cancel()
	return ctx
}

// acknowledge notes what clients were told by now.
func (m *model) acknowledge() {
	for d, n := range m.waits {
		if level := m.reached(d); level != tier.LevelDefault {
			delete(m.waits, d)
			m.acked[n] = max(m.acked[n], level)
		}
	}
}

// refuse sets what the lower tier answers to writes from now on.
func (m *model) refuse() { m.tier.refuse = m.mood() }

// mood is what a tier answers to writes: nothing special, half of the time.
func (m *model) mood() error {
	return []error{nil, nil, nil, tier.ErrBusy, tier.ErrFull, tier.ErrUnavailable}[m.rng.IntN(6)]
}

// endWrite ends one of the writes that wait, rarely with an error, and one of the copies.
func (m *model) endWrite() {
	m.endCopy()
	if n := m.tier.waiting(); n > 0 {
		var err error
		if m.rng.IntN(8) == 0 {
			err = fmt.Errorf("EIO: %w", tier.ErrUnavailable)
		}
		m.tier.finish(m.rng.IntN(n), err)
	}
}

// endCopy ends a copy, and begins others if it is time to.
func (m *model) endCopy() {
	if m.out == nil {
		return
	}
	m.out.mu.Lock()
	m.out.refuse, m.out.spoil = m.mood(), nil
	if m.rng.IntN(6) == 0 {
		m.out.spoil = fmt.Errorf("reset: %w", tier.ErrUnavailable)
	}
	if m.rng.IntN(10) == 0 { // others delete what is there
		clear(m.out.entries)
	}
	m.out.mu.Unlock()
	m.out.take()
	m.cat.Mu.Lock()
	m.move.Offloads.SendSomeLocked()
	m.cat.Mu.Unlock()
	m.cat.Launch()
}

// finishAll ends all writes and copies.
func (m *model) finishAll() {
	m.tier.finishAll()
	if m.out != nil {
		m.out.takeAll()
	}
}

// promoteOne carries out one promotion, usually well. Writes that it waits for end meanwhile.
func (m *model) promoteOne() {
	m.tier.unread = []error{nil, nil, nil, nil, nil, nil, tier.ErrCorrupt, tier.ErrUnavailable}[m.rng.IntN(8)]
	corrupt := errors.Is(m.tier.unread, tier.ErrCorrupt)
	m.carryOne()
	m.cat.Launch()
	for m.move.Promotions.Engine.Parked() > 0 {
		if m.out != nil {
			m.out.takeAll()
		}
		if m.tier.waiting() > 0 {
			m.tier.finish(0, nil)
		} else { // for a tier that is busy for no reason
			m.tier.refuse = nil
			m.Sweep()
		}
		m.carryOne()
		m.cat.Launch()
	}
	m.tier.unread = nil
	maps.DeleteFunc(m.acked, func(n tier.Name, _ tier.Level) bool { return corrupt && !m.tier.holds(n) })
}

// loseOnDisk has the lower tier forget an entry, or write it anew. The store notices it at the
// next lookup, or sweep.
func (m *model) loseOnDisk() {
	m.unsettled = m.rng.IntN(2) == 0
	m.tier.mu.Lock()
	defer m.tier.mu.Unlock()
	var entries []*mapEntry
	for _, e := range m.tier.entries {
		if e.children == 0 && e.readers == 0 {
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 {
		return
	}
	slices.SortFunc(entries, func(a, b *mapEntry) int { return slices.Compare(a.Key[:], b.Key[:]) })
	e := entries[m.rng.IntN(len(entries))]
	if m.rng.IntN(2) == 0 {
		m.tier.forget(e)
		return
	}
	m.tier.given++
	e.Generation = m.tier.given
}

// finishUntil ends writes and copies until f has returned.
func (m *model) finishUntil(f func() error, step func()) error {
	done := later(f)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		step()
		select {
		case err := <-done:
			return err
		default:
		}
	}
	m.fatal("writes have ended for a minute, and what waits for them has not")
	return nil
}

func (m *model) restart() {
	if m.rng.IntN(2) == 0 {
		m.reopen()
	}
}

// reopen closes the store, at times after a flush, and opens another one over what the lower
// tier still has: what is logged after a kill, what is synced after a power failure.
func (m *model) reopen() {
	if m.rng.IntN(3) == 0 {
		m.tier.refuse, m.tier.alone = nil, false
		err := m.finishUntil(func() error { _, err := m.Flush(m.ctx); return err }, m.finishAll)
		if err != nil && (m.o.keeps && !m.lost() || !errors.Is(err, tier.ErrUnavailable)) {
			m.fatal("flush: %v", err)
		}
		m.tier.alone = true
	}
	m.must(m.finishUntil(m.Store.Close, func() {
		if m.tier.waiting() > 0 {
			m.endWrite()
		}
		if m.out != nil {
			m.out.takeAll()
		}
	}))
	m.acknowledge()
	if len(m.waits) > 0 || len(m.tier.on) > 0 {
		m.fatal("%d publications and %d writes outlive the store", len(m.waits), len(m.tier.on))
	}
	m.seen.add(m.Counters())
	m.seen.Restarts++
	survives := tier.LevelLogged
	if m.rng.IntN(2) == 0 {
		survives = tier.LevelSynced
	}
	for _, e := range m.tier.entries {
		if e.Level < survives && m.tier.entries[e.Name] == e {
			m.tier.forget(e)
		}
	}
	m.told = &feed{t: m, held: map[tier.Name]bool{}}
	m.cfg.Held = held.New(m.told) // of a new process, which the tier tells what it has
	m.tier.names = m.cfg.Held
	for _, e := range m.tier.entries {
		m.tier.names.Add(e.want())
	}
	store, err := Open(m.cfg)
	m.must(err)
	m.Store, m.tier.store = store, store
	m.objects = nil
	m.id, err = m.AddProfile(m.profile)
	m.must(err)
	m.open()
	for _, o := range m.names() {
		level, acked := m.acked[o.Name]
		if m.onDisk(o) && acked {
			m.seen.Returned++
		} else if m.o.keeps && acked && level >= survives {
			m.fatal("%v was acknowledged as %v and did not return", o, level)
		}
	}
	clear(m.acked)
}

// lost reports whether the lower tier has lost a stripped node, of which memory has no whole
// copy: what extends it cannot be written.
func (m *model) lost() bool {
	return slices.ContainsFunc(m.objects, func(o *modelObject) bool { return o.stripped && !m.onDisk(o) })
}
