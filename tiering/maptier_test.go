package tiering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// mapTier is a Tier out of maps. Writes end when the test says so, or at once;
// what it is asked to do it does as the interface says, and it checks that the
// store keeps to its side.
type mapTier struct {
	t        testing.TB
	dev      gpuipc.Device
	capacity int64
	store    *Store // set once the store is open
	names    *held.Set
	alone    bool // one goroutine at a time uses the store: the lock can be checked

	mu      sync.Mutex
	entries map[tier.Name]*mapEntry
	on      map[tier.Name]*mapEntry // admitted, and not there yet
	tenants []tier.TenantID         // that are known; nil = all
	used    map[tier.TenantID]int64
	clock   uint64
	given   uint64 // generations
	queue   int    // writes on their way at most

	checks  bool        // reads compare digests, as those of a tier do; the store's tests want to see what it does itself
	held    bool        // writes wait for finish
	started []*mapWrite // those that do
	refuse  error       // what Admit answers
	spoil   error       // what writes end with
	lose    bool        // entries are pushed out as soon as they are written
	unread  error       // what Read answers
	stall   chan struct{}
	reading int
	offered []*tier.Object
	removed []tier.Name
	reads   int
	lookups int
	lowered bool // quotas were, so that tenants are over them for a moment
}

type mapEntry struct {
	tier.Entry
	profile  *profile.Profile
	content  tier.Content
	bytes    [][]byte
	used     uint64
	readers  int
	children int
	writes   int // of it that have not ended: they share its room
}

func (e *mapEntry) want() tier.Want {
	return tier.Want{Name: e.Name, Fingerprint: e.Fingerprint, Tenant: e.Tenant}
}

type mapWrite struct {
	tier   *mapTier
	object *tier.Object
	entry  *mapEntry // what it is to become, or is already
	level  tier.Level
	done   func(tier.Level, error)
	over   bool
}

func newMapTier(t testing.TB, dev gpuipc.Device, capacity int64) *mapTier {
	return &mapTier{
		t: t, dev: dev, capacity: capacity, queue: 1 << 30,
		entries: map[tier.Name]*mapEntry{}, on: map[tier.Name]*mapEntry{}, used: map[tier.TenantID]int64{},
	}
}

// below sets a store up over a tier of this many bytes.
func below(lower **mapTier, capacity int64) option {
	return func(c *Config) {
		*lower = newMapTier(nil, nil, capacity)
		c.Lower = *lower
	}
}

// attach is called when the store is open.
func (m *mapTier) attach(b *bench, alone bool) {
	m.t, m.dev, m.store, m.alone, m.names = b.TB, b.dev, b.Store, alone, b.cat.Config.Held
}

// locked checks the side of the store: its lock is held, and no tenant is over
// its quota while it is.
func (m *mapTier) locked(what string) {
	s := m.store
	if s == nil {
		return
	}
	if s.cat.Mu.TryLock() {
		s.cat.Mu.Unlock()
		m.t.Errorf("%s without the store's lock", what)
		return
	}
	for id, t := range s.cat.Objects.Tenants {
		if t.QuotaBytes > 0 && !m.lowered && t.Total()+m.used[id] > t.QuotaBytes {
			m.t.Errorf("%s: tenant %q holds %d bytes in memory and %d below, quota %d", what, t.Name, t.Total(), m.used[id], t.QuotaBytes)
		}
	}
}

func (m *mapTier) unlocked(what string) {
	if m.store != nil && m.alone {
		wantUnlocked(m.t, m.store, what)
	}
}

// wantUnlocked checks that a store's lock can be had. Another goroutine may have it for a
// moment.
func wantUnlocked(t testing.TB, s *Store, what string) {
	for deadline := time.Now().Add(time.Minute); !s.cat.Mu.TryLock(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s under the store's lock", what)
			return
		}
	}
	s.cat.Mu.Unlock()
}

// bytesOf is what an object takes in this tier: more than in memory.
func (m *mapTier) bytesOf(o *tier.Object) int64 {
	n := int64(100)
	for _, s := range o.Shares {
		n += (s.Ref.Len() + 511) / 512 * 512
	}
	return n
}

func (m *mapTier) Lookup(n *tier.Name) (tier.Entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.locked("Lookup")
	m.lookups++
	e := m.entries[*n]
	if e == nil {
		return tier.Entry{}, false
	}
	entry := e.Entry
	entry.Children = e.children
	return entry, true
}

func (m *mapTier) Used(t tier.TenantID) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used[t]
}

func (m *mapTier) Touch(n *tier.Name) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.locked("Touch")
	if e := m.entries[*n]; e != nil {
		m.touch(e)
	}
}

func (m *mapTier) touch(e *mapEntry) {
	m.clock++
	e.used = m.clock
}

// Trim forgets one entry a call, so that its caller has to ask again.
func (m *mapTier) Trim(t tier.TenantID, bytes int64, spare []tier.Name) (freed int64, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if bytes <= 0 {
		m.t.Errorf("trim of %d bytes", bytes)
	}
	e := m.oldest(nil, func(e *mapEntry) bool { return e.Tenant == t && !slices.Contains(spare, e.Name) })
	if e == nil {
		return 0, false
	}
	m.forget(e)
	return e.Bytes, e.Bytes < bytes
}

// oldest is the least recently used entry that may go once others have gone.
func (m *mapTier) oldest(gone []*mapEntry, of func(*mapEntry) bool) (found *mapEntry) {
	children := map[tier.Name]int{}
	for _, e := range gone {
		children[e.Parent]++
	}
	for _, e := range m.entries {
		if of(e) && e.readers == 0 && e.children == children[e.Name] && (found == nil || e.used < found.used) && !slices.Contains(gone, e) {
			found = e
		}
	}
	return found
}

// makeRoom forgets what has to go for an object, or nothing if that does not do.
func (m *mapTier) makeRoom(o *tier.Object, bytes, room int64) error {
	var gone []*mapEntry
	total, mine := m.total()+bytes-m.capacity, m.used[o.Tenant]+bytes-room
	for total > 0 || mine > 0 {
		e := m.oldest(gone, func(e *mapEntry) bool { return e.Name != o.Parent && (mine <= 0 || e.Tenant == o.Tenant) })
		switch {
		case e == nil && mine > 0:
			return fmt.Errorf("%d of %d bytes: %w", m.used[o.Tenant], room, tier.ErrQuota)
		case e == nil:
			return fmt.Errorf("%d of %d bytes: %w", m.total(), m.capacity, tier.ErrFull)
		}
		if gone, total = append(gone, e), total-e.Bytes; e.Tenant == o.Tenant {
			mine -= e.Bytes
		}
	}
	for _, e := range gone {
		m.forget(e)
	}
	return nil
}

// forget drops an entry and, when wrong bytes force that, what extends it.
func (m *mapTier) forget(e *mapEntry) {
	for _, child := range m.entries {
		if child.Parent == e.Name {
			m.forget(child)
		}
	}
	for n, child := range m.on {
		if child.Parent == e.Name {
			delete(m.on, n)
			m.used[child.Tenant] -= child.Bytes
		}
	}
	delete(m.entries, e.Name)
	m.names.Remove(e.want())
	m.used[e.Tenant] -= e.Bytes
	m.child(e, -1)
}

func (m *mapTier) child(e *mapEntry, d int) {
	if up := m.entries[e.Parent]; up != nil {
		up.children += d
	}
}

func (m *mapTier) total() (n int64) {
	for _, used := range m.used {
		n += used
	}
	return n
}

func (m *mapTier) Admit(o *tier.Object, room int64) (tier.Write, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.offered = append(m.offered, o)
	m.locked("Admit")
	n := tier.Name{Kind: o.Kind, Key: o.Key}
	e := m.entries[n]
	if e == nil {
		e = m.on[n]
	}
	switch {
	case m.refuse != nil:
		return nil, fmt.Errorf("refused: %w", m.refuse)
	case len(m.on) >= m.queue:
		return nil, fmt.Errorf("queue: %w", tier.ErrBusy)
	case m.tenants != nil && !slices.Contains(m.tenants, o.Tenant):
		return nil, fmt.Errorf("tenant %d: %w", o.Tenant, tier.ErrInvalid)
	case o.Parent != (tier.Name{}) && m.entries[o.Parent] == nil:
		return nil, fmt.Errorf("its parent is not here: %w", tier.ErrInvalid)
	case e != nil:
		e.writes++
		return &mapWrite{tier: m, object: o, entry: e}, nil
	}
	bytes := m.bytesOf(o)
	if err := m.makeRoom(o, bytes, room); err != nil {
		return nil, err
	}
	m.given++
	e = &mapEntry{profile: o.Profile, writes: 1, Entry: tier.Entry{
		Name: n, Fingerprint: o.Profile.Fingerprint(), Tenant: o.Tenant, Spec: o.Spec, Packed: o.Packed, Begin: o.Begin, End: o.End, Parent: o.Parent,
		Bytes: bytes, Generation: m.given,
	}}
	if o.Kind == 0 {
		begin, count := o.Spec.Interior()
		e.Begin, e.End = begin, begin+count
	}
	m.used[o.Tenant] += bytes
	m.on[n] = e
	m.child(e, 1) // its parent stays
	m.locked("Admit's end")
	return &mapWrite{tier: m, object: o, entry: e}, nil
}

// ended counts the end of a write. The room of an entry that is not there goes with
// its last one.
func (m *mapTier) ended(e *mapEntry) {
	if e.writes--; e.writes > 0 || m.on[e.Name] != e {
		return
	}
	delete(m.on, e.Name)
	m.used[e.Tenant] -= e.Bytes
	m.child(e, -1)
}

func (w *mapWrite) Cancel() {
	w.tier.mu.Lock()
	w.tier.ended(w.entry)
	w.tier.mu.Unlock()
	w.end(tier.LevelMemory, errors.New("canceled"))
}

func (w *mapWrite) Start(level tier.Level, done func(tier.Level, error)) {
	m := w.tier
	m.unlocked("Start")
	m.mu.Lock()
	w.level, w.done = level, done
	held := m.held
	if held {
		m.started = append(m.started, w)
	}
	m.mu.Unlock()
	if !held {
		go w.finish(nil)
	}
}

// finish ends the i-th write that waits.
func (m *mapTier) finish(i int, err error) {
	m.mu.Lock()
	w := m.started[i]
	m.started = slices.Delete(m.started, i, i+1)
	m.mu.Unlock()
	w.finish(err)
}

// finishAll ends the writes that wait and those that follow from that.
func (m *mapTier) finishAll() {
	for m.waiting() > 0 {
		m.finish(0, nil)
	}
}

func (m *mapTier) waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.started)
}

// finish reads the object's memory, as late as can be, and answers.
func (w *mapWrite) finish(err error) {
	m := w.tier
	m.mu.Lock()
	if err == nil {
		err = m.spoil
	}
	m.mu.Unlock()
	var bytes [][]byte
	for i := range w.object.Shares {
		sh := &w.object.Shares[i]
		data := make([]byte, sh.Ref.Len())
		if e := m.dev.Load(context.Background(), data, sh.Ref); e != nil {
			m.t.Errorf("the memory of a written object: %v", e)
		}
		bytes = append(bytes, data)
	}
	reached := w.level
	if err != nil {
		reached = tier.LevelMemory
	}
	err = w.move(bytes, reached, err)
	if err != nil {
		reached = tier.LevelMemory
	}
	w.end(reached, err)
}

func (w *mapWrite) move(bytes [][]byte, reached tier.Level, err error) error {
	m, e, o := w.tier, w.entry, w.object
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.ended(e)
	switch {
	case m.entries[e.Name] != e && m.on[e.Name] != e: // it was forgotten meanwhile
		return fmt.Errorf("forgotten: %w", tier.ErrGone)
	case err != nil:
	case m.entries[e.Name] == e:
		e.Level = max(e.Level, reached)
	default:
		delete(m.on, e.Name)
		e.Level, e.bytes = reached, bytes
		e.content = tier.Content{Publisher: o.Publisher, Tokens: o.Tokens}
		for _, sh := range o.Shares {
			e.content.Digests = append(e.content.Digests, slices.Clone(sh.Digests))
		}
		m.touch(e)
		m.entries[e.Name] = e
		m.names.Add(e.want())
		if m.lose {
			m.forget(e)
		}
	}
	return err
}

func (w *mapWrite) end(reached tier.Level, err error) {
	m := w.tier
	m.mu.Lock()
	if w.over {
		m.t.Error("a write ended twice")
	}
	w.over = true
	m.mu.Unlock()
	if w.done != nil {
		w.done(reached, err)
	}
}

func (m *mapTier) Read(ctx context.Context, e *tier.Entry, dst []gpuipc.Ref) (*tier.Content, error) {
	m.unlocked("Read")
	m.mu.Lock()
	m.reads++
	m.reading++
	stall, unread := m.stall, m.unread
	have := m.entries[e.Name]
	if have != nil && have.Generation != e.Generation {
		have = nil
	}
	if have != nil {
		have.readers++
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.reading--
		if have != nil {
			have.readers--
		}
	}()
	if stall != nil {
		select {
		case <-stall:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", tier.ErrUnavailable, ctx.Err())
		}
	}
	if m.checks && unread == nil && have != nil && !have.intact() {
		unread = fmt.Errorf("not what its digests say: %w", tier.ErrCorrupt)
	}
	switch {
	case have == nil:
		return nil, tier.ErrGone
	case errors.Is(unread, tier.ErrCorrupt):
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.entries[e.Name] == have {
			m.forget(have)
		}
		return nil, unread
	case unread != nil:
		return nil, unread
	}
	for i, data := range have.bytes {
		if err := m.dev.Store(ctx, dst[i], data); err != nil {
			return nil, fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.touch(have)
	c := have.content
	return &c, nil
}

// intact compares an entry's bytes with its digests.
func (e *mapEntry) intact() bool {
	l, err := tier.LayoutOf(e.profile, e.Kind, e.End-e.Begin, e.Packed)
	if err != nil {
		return false
	}
	for rank, b := range e.bytes {
		if !intact(l.Parts, b, e.content.Digests[rank]) {
			return false
		}
	}
	return true
}

func (m *mapTier) Remove(n *tier.Name) bool {
	m.unlocked("Remove")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removed = append(m.removed, *n)
	e := m.entries[*n]
	if e != nil {
		m.forget(e)
	}
	return e != nil
}

// names of what is held, for comparison.
func (m *mapTier) holds(n tier.Name) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[n] != nil
}
