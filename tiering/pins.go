package tiering

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/internal/serve"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// pins is the part of a store that keeps objects in memory for operators. A pin counts as
// an operation that reads its object. No client reads under a pin, so its expiry frees the
// object at once, without quarantine, and it may last longer than clients' leases.
//
// An object that is only in the lower tier is read into memory to be pinned, and stays in
// memory even if the lower tier evicts it. Pins are not persisted: a restart ends them. An
// object that turns out to be corrupt is unpinned.
type pins struct {
	cat      *catalog.Catalog
	sessions *serve.Sessions // read objects into memory

	// Guarded by the store's lock.
	pinned  map[*objects.Object]*pin // by object
	held    [objects.PoolCount]int64 // bytes of pages, ancestors included; an ancestor shared by two pins counts twice
	charged map[tier.TenantID]int64  // bytes that pinned objects charge to tenants' quotas
	corrupt uint64                   // value of CorruptInMemory when corrupt objects were last unpinned
}

// pin is the pin of one object.
type pin struct {
	object *objects.Object
	by     string
	bytes  int64 // of pages, ancestors included
	charge int64
	until  deadline.Deadline[any]
}

// Bounds of pins.
const (
	MaxPinTTL = 7 * 24 * time.Hour
	maxPins   = 4096 // a guess, far more than operators set by hand
	// pinShare limits pins to 1/pinShare of a pool. The remaining bytes are for objects
	// that clients lease and publish.
	pinShare = 2
)

// PinQuery asks for pins on all objects of a key: a segment, or all checkpoints of a hash.
type PinQuery struct {
	Key [32]byte
	TTL time.Duration // at most MaxPinTTL
	By  string        // who asked for it, for display
	Dry bool          // only report what would be pinned
}

// PinInfo is one pin.
type PinInfo struct {
	tier.Name
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Bytes   int64 // bytes of pages that it keeps in memory, ancestors included
	Expires time.Time
	By      string
}

func newPins(c *catalog.Catalog, s *serve.Sessions) *pins {
	return &pins{cat: c, sessions: s, pinned: map[*objects.Object]*pin{}, charged: map[tier.TenantID]int64{}}
}

// Pin keeps the objects of a key in memory for a time, or renews their pins. Objects that
// are only in the lower tier are read first, within ctx. Errors: ErrGone if no tier of
// this node has the key; ErrBusy if the object is being filled, or if no engine has
// registered its profile since the start; ErrFull if pins would take more than half a pool;
// ErrQuota if they would exceed the tenant's quota; ErrUnavailable if the object could not be
// read into memory.
func (pins *pins) Pin(ctx context.Context, q PinQuery) ([]PinInfo, error) {
	if q.TTL <= 0 || q.TTL > MaxPinTTL {
		return nil, fmt.Errorf("pin %x for %v, at most %v: %w", q.Key[:8], q.TTL, MaxPinTTL, tier.ErrInvalid)
	}
	list, err := pins.tryPin(&q)
	if err == nil || !errors.Is(err, errBelow) {
		return list, err
	}
	release, err := pins.bring(ctx, &q)
	if err != nil {
		return nil, err
	}
	defer release()
	return pins.tryPin(&q)
}

// errBelow is the error for an object that has to be read into memory first.
var errBelow = fmt.Errorf("it lies in the lower tier only: %w", tier.ErrUnavailable)

// errNotRegistered is the error for an object whose size in memory is not known yet.
var errNotRegistered = fmt.Errorf("no engine has registered the object's model since the start: pin it when one is attached: %w", tier.ErrBusy)

// tryPin pins all objects of a key that are in memory, or none.
func (pins *pins) tryPin(q *PinQuery) ([]PinInfo, error) {
	pins.cat.Mu.Lock()
	defer pins.cat.Mu.Unlock()
	if pins.cat.Closed {
		return nil, catalog.ErrClosed
	}
	found, pending := pins.keyedLocked(&q.Key)
	if len(found) == 0 {
		below, unknown := pins.belowLocked(&q.Key)
		switch {
		case pending:
			return nil, fmt.Errorf("%x is being filled: %w", q.Key[:8], tier.ErrBusy)
		case len(below) == 0 && unknown:
			return nil, errNotRegistered
		case len(below) == 0:
			return nil, fmt.Errorf("%x: %w", q.Key[:8], tier.ErrGone)
		case !q.Dry:
			return nil, errBelow
		}
		return pins.wouldPinLocked(q, below)
	}
	if err := pins.mayPinLocked(found); err != nil {
		return nil, err
	}
	end := pins.cat.Config.Now().Add(q.TTL)
	var list []PinInfo
	for _, o := range found {
		if !q.Dry {
			pins.setPinLocked(o, end, q.By)
		}
		n, _ := pins.keptBy(o)
		list = append(list, PinInfo{o.Label(), o.Profile.ID, o.Tenant.ID, n, end, q.By})
	}
	return list, nil
}

// keyedLocked finds the published objects of a key in memory. The second result is true if
// an object of the key is being filled.
func (pins *pins) keyedLocked(key *[32]byte) (found []*objects.Object, pending bool) {
	add := func(o *objects.Object) {
		switch {
		case o.Fill != nil:
			pending = true
		case pins.cat.Objects.Names.Promotable(o):
			found = append(found, o)
		}
	}
	if o := pins.cat.Objects.Names.Segments.Find(key); o != nil {
		add(o)
	}
	for o := pins.cat.Objects.Names.Checkpoints.Find(key); o != nil; o = o.Sibling {
		add(o)
	}
	return found, pending
}

// lowerEntry is an entry of the lower tier whose profile and tenant are known here.
type lowerEntry struct {
	tier.Entry
	profile *objects.Profile
	tenant  *objects.Tenant
}

// belowLocked finds the readable entries of a key in the lower tier. The second result is
// true if there are others, whose profile is not registered.
func (pins *pins) belowLocked(key *[32]byte) (found []lowerEntry, unknown bool) {
	if pins.cat.Config.Lower == nil {
		return nil, false
	}
	for _, kind := range [...]tier.CheckpointKind{0, tier.Exact, tier.Rows, tier.Spliced} {
		e := pins.cat.Objects.Below.Entry(tier.Name{Kind: kind, Key: *key})
		if e == nil || pins.cat.Objects.Below.Deleting[e.Name] > 0 {
			continue
		}
		t, p := pins.cat.Objects.Tenants[e.Tenant], pins.cat.Registered(e.Fingerprint)
		switch {
		case t == nil: // no longer configured
		case p == nil:
			unknown = true
		default:
			found = append(found, lowerEntry{*e, p, t})
		}
	}
	return found, unknown
}

// wouldPinLocked returns the pins that entries of the lower tier would get.
func (pins *pins) wouldPinLocked(q *PinQuery, entries []lowerEntry) (list []PinInfo, err error) {
	for i := range entries {
		e := &entries[i]
		n := pins.pagesInMemoryLocked(e)
		if err := pins.fitsPinsLocked(e.Name, e.tenant, n, n); err != nil {
			return nil, err
		}
		list = append(list, PinInfo{e.Name, e.profile.ID, e.tenant.ID, n, pins.cat.Config.Now().Add(q.TTL), q.By})
	}
	return list, nil
}

// pagesInMemoryLocked returns the bytes that an entry and its ancestors take in memory.
func (pins *pins) pagesInMemoryLocked(e *lowerEntry) int64 {
	if e.Kind != 0 {
		return pins.cat.ChainPagesLocked(&e.Entry, e.profile, e.tenant)
	}
	return pins.cat.Objects.Memory.SizeOf(e.profile, e.profile.PartsOf(&e.Entry), e.Spec.Tokens).PageBytes
}

// mayPinLocked checks that objects may be pinned in addition to the existing pins.
func (pins *pins) mayPinLocked(list []*objects.Object) error {
	var held [objects.PoolCount]int64
	charged := map[*objects.Tenant]int64{}
	more := 0
	for _, o := range list {
		if pins.isPinnedLocked(o) {
			continue // only the expiry of its pin changes
		}
		n, charge := pins.keptBy(o)
		held[o.Pool.Number] += n
		charged[o.Tenant] += charge
		more++
		if err := pins.fitsPinsLocked(o.Label(), o.Tenant, held[o.Pool.Number], charged[o.Tenant]); err != nil {
			return err
		}
	}
	if len(pins.pinned)+more > maxPins {
		return fmt.Errorf("%d pins, at most %d: %w", len(pins.pinned)+more, maxPins, tier.ErrFull)
	}
	return nil
}

// fitsPinsLocked returns an error if pins may not keep another object in memory. The
// parameter bytes is the number of bytes that the object takes of its pool, and the
// parameter charge is the number that it takes of the tenant's quota.
func (pins *pins) fitsPinsLocked(n tier.Name, t *objects.Tenant, bytes, charge int64) error {
	p := pins.cat.Objects.Pools[objects.PoolNumber(n.Kind)]
	if most := p.Budget / pinShare; pins.held[p.Number]+bytes > most {
		return fmt.Errorf("pin %v: %d bytes beside %d that are pinned, pins may take %d of the %s pool: %w",
			n, bytes, pins.held[p.Number], most, p.Name, tier.ErrFull)
	}
	if t.QuotaBytes > 0 && pins.charged[t.ID]+charge > t.QuotaBytes {
		return fmt.Errorf("pin %v: %d bytes beside %d that are pinned, tenant %q may hold %d: %w",
			n, charge, pins.charged[t.ID], t.Name, t.QuotaBytes, tier.ErrQuota)
	}
	return nil
}

// keptBy returns the bytes that a pin of an object keeps in memory: its own and those of
// its ancestors, as pages and as charge to the quota.
func (pins *pins) keptBy(o *objects.Object) (pages, charge int64) {
	for ; o != nil; o = o.Parent {
		pages += o.PageBytes
		charge += o.Charge()
	}
	return pages, charge
}

// setPinLocked is the only function that changes pins. It pins an object until a time, or
// changes the time of its pin. The zero time removes the pin.
func (pins *pins) setPinLocked(o *objects.Object, until time.Time, by string) {
	p := pins.pinned[o]
	if until.IsZero() {
		if p != nil {
			delete(pins.pinned, o)
			pins.held[o.Pool.Number] -= p.bytes
			pins.charged[o.Tenant.ID] -= p.charge
			pins.cat.Objects.Deadlines.Remove(&p.until)
			pins.cat.Objects.Unuse(o)
		}
		return
	}
	if p == nil {
		p = &pin{object: o}
		p.bytes, p.charge = pins.keptBy(o)
		pins.pinned[o] = p
		pins.held[o.Pool.Number] += p.bytes
		pins.charged[o.Tenant.ID] += p.charge
		pins.cat.Objects.Use(o)
	}
	p.by = by
	pins.cat.Objects.Deadlines.Remove(&p.until)
	p.until = deadline.Deadline[any]{At: until, Order: pins.cat.LeaseIDs.Add(1), Of: p}
	pins.cat.Objects.Deadlines.Add(&p.until)
}

// sweepPins removes pins of objects that are known to be corrupt. No lookup finds such an
// object, and a client that computes it again needs its room and name.
func (pins *pins) sweepPins() {
	pins.cat.Mu.Lock()
	defer pins.cat.Mu.Unlock()
	if pins.corrupt == pins.cat.Counters.CorruptInMemory {
		return
	}
	pins.corrupt = pins.cat.Counters.CorruptInMemory
	pins.endPinsLocked(func(o *objects.Object) bool { return !pins.cat.Objects.Names.Promotable(o) })
}

// endPinsLocked removes the pins of the objects that match.
func (pins *pins) endPinsLocked(which func(*objects.Object) bool) {
	for o := range pins.pinned {
		if which(o) {
			pins.setPinLocked(o, time.Time{}, "")
		}
	}
}

// bring reads the objects of a query from the lower tier into memory and keeps them there
// until the caller calls the returned function release.
func (pins *pins) bring(ctx context.Context, q *PinQuery) (release func(), err error) {
	pins.cat.Mu.Lock()
	entries, _ := pins.belowLocked(&q.Key)
	_, err = pins.wouldPinLocked(q, entries)
	pins.cat.Mu.Unlock()
	if err != nil {
		return nil, err
	}
	c := pins.sessions.NewSession("pins")
	for i := range entries {
		if err := entries[i].read(ctx, c); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c.Close, nil
}

// read reads the object of an entry of the lower tier into memory and leases it.
func (e *lowerEntry) read(ctx context.Context, c *Session) error {
	var hit bool
	var why tier.Reason
	if e.Kind == 0 {
		rows, err := c.AwaitAcquire(ctx, &AcquireQuery{Profile: e.profile.ID, Tenant: e.tenant.ID, Near: true, Keys: [][32]byte{e.Key}}, nil)
		if err == nil {
			err = rows[0].Err
		}
		if err != nil {
			return err
		}
		hit, why = rows[0].Hit, rows[0].Reason
	} else {
		got, err := c.AwaitLoad(ctx, &LoadQuery{Profile: e.profile.ID, Tenant: e.tenant.ID, Accept: e.Kind, Near: true, Hash: e.Key})
		if err != nil {
			return err
		}
		hit, why = got.Hit, got.Reason
	}
	if !hit {
		return fmt.Errorf("%v cannot be read into memory now (reason %d): %w", e.Name, why, tier.ErrUnavailable)
	}
	return nil
}

// Unpin removes the pins of a key and returns them. If the parameter dry is true, it only
// returns them. The error is ErrGone if the key has no pin.
func (pins *pins) Unpin(key [32]byte, dry bool) ([]PinInfo, error) {
	pins.cat.Mu.Lock()
	defer pins.cat.Mu.Unlock()
	var list []PinInfo
	for o, p := range pins.pinned {
		if o.Key == key {
			list = append(list, p.info())
		}
	}
	if !dry {
		pins.endPinsLocked(func(o *objects.Object) bool { return o.Key == key })
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("pin of %x: %w", key[:8], tier.ErrGone)
	}
	sortPins(list)
	return list, nil
}

// Pins lists all pins by key.
func (pins *pins) Pins() []PinInfo {
	pins.cat.Mu.Lock()
	defer pins.cat.Mu.Unlock()
	list := make([]PinInfo, 0, len(pins.pinned))
	for o, p := range pins.pinned {
		if pins.cat.Objects.Names.Promotable(o) { // otherwise the next sweep removes it
			list = append(list, p.info())
		}
	}
	sortPins(list)
	return list
}

func (p *pin) info() PinInfo {
	o := p.object
	return PinInfo{o.Label(), o.Profile.ID, o.Tenant.ID, p.bytes, p.until.At, p.by}
}

func sortPins(list []PinInfo) {
	slices.SortFunc(list, func(a, b PinInfo) int { return cmp.Or(bytes.Compare(a.Key[:], b.Key[:]), cmp.Compare(a.Kind, b.Kind)) })
}

// isPinnedLocked reports whether an operator has pinned an object.
func (pins *pins) isPinnedLocked(o *objects.Object) bool {
	return pins.pinned[o] != nil
}
