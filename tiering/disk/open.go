package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// attach opens the directory and takes up its entries, and enters the state that
// comes of it.
func (t *Tier) attach() bool {
	began := time.Now()
	v, err := openVolume(&t.cfg)
	var o *opening
	if err == nil {
		t.useGranule(v.format.granule)
		if o, err = t.load(v); err != nil {
			err = errors.Join(err, v.close())
		}
	}
	if err != nil {
		t.trouble(refusal(err), err)
		return false
	}
	t.mu.Lock()
	t.catalogue, t.vol = o.catalogue, v
	t.models = o.models
	entries := len(o.index)
	t.counters.Opened += uint64(entries)
	t.counters.Dropped += uint64(o.dropped)
	t.logged, t.removed = o.logged, map[tier.Name]uint64{}
	t.state, t.stateCause, t.stateSince = StateOK, nil, t.cfg.Now()
	for _, n := range o.dirty {
		v.dirty[n] = true
	}
	t.shrinkLocked()
	t.wakeLocked()
	t.mu.Unlock()
	t.log.Info().Str("tier", "disk").Str("dir", t.cfg.Dir).Int("entries", entries).Int("dropped", o.dropped).
		Dur("took", time.Since(began)).Msg("disk tier is open")
	return true
}

// useGranule divides the budget anew, where the directory has another granule than
// the configuration.
func (t *Tier) useGranule(granule int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cfg.GranuleBytes = granule
	t.cfg.SlabBytes = max(t.cfg.SlabBytes&^(granule-1), 2*granule)
	t.budgets = budgets(&t.cfg)
}

// refusal is the state that a failed opening leads to.
func refusal(err error) State {
	switch {
	case errors.Is(err, ErrLocked):
		return StateLocked
	case errors.Is(err, ErrVersion), errors.Is(err, catalog.ErrVersion):
		return StateVersion
	case errors.Is(err, tier.ErrCorrupt), errors.Is(err, catalog.ErrStore):
		return StateUnreadable
	case errors.Is(err, fs.ErrNotExist) && !errors.Is(err, catalog.ErrFailed):
		return StateMissing
	case noSpace(err), errors.Is(err, unix.EROFS), errors.Is(err, unix.EIO): // no damage, even where the catalogue failed
		return StateRefused
	case errors.Is(err, catalog.ErrFailed):
		return StateUnreadable
	}
	return StateMissing
}

// opening is a catalogue being made from rows.
type opening struct {
	catalogue
	models  map[profile.Fingerprint]*model
	dropped int
	dirty   []uint32
	doom    []catalog.Change
}

// load takes up what the rows say, as far as it can be true: nothing is read of
// the entries themselves. Rows that are dropped are deleted, and that is synced,
// before anything is written where they point.
//
// All entries count as logged until the next sync: after a process was killed,
// the kernel may not have written everything yet.
func (t *Tier) load(v *volume) (*opening, error) {
	o := &opening{catalogue: t.newCatalogue(), models: map[profile.Fingerprint]*model{}}
	profiles, bad, err := readProfiles(v.index, v.dir)
	if err != nil {
		return nil, err
	}
	for _, err := range bad {
		t.log.Warn().Str("tier", "disk").Err(err).Msg("a profile cannot be read")
	}
	for _, p := range profiles {
		m := newModel(p)
		m.stored = true
		o.models[p.Fingerprint()] = m
	}
	if err := o.tenants(t, v); err != nil {
		return nil, err
	}
	rows, err := readRows(v.catalog)
	if err != nil {
		return nil, fmt.Errorf("disk: catalogue: %w", err)
	}
	mark := v.catalog.Counters()[markName]
	used := lastUses(rows)
	if err := o.restore(t, v, used); err != nil {
		return nil, err
	}
	beyond := o.slabs(t, v, used)
	o.take(t, v, rows)
	o.suspectBeyond(v, mark)
	if len(o.doom) > 0 {
		if err := v.catalog.Commit(o.doom, true); err != nil {
			return nil, fmt.Errorf("disk: catalogue: %w", err)
		}
	}
	// A process that was killed may have left names that were not synced.
	if err := errors.Join(v.slabs.Sync(), syncDir(v.index, v.path(profileDir))); err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	for _, s := range beyond {
		if err := v.set.Remove(s.Number); err != nil {
			return nil, fmt.Errorf("disk: slabs: %w", err)
		}
	}
	return o, nil
}

// suspectBeyond marks what may have lost its bytes; the rest counts as logged.
func (o *opening) suspectBeyond(v *volume, mark uint64) {
	v.highest = mark
	all := o.logged
	o.logged = nil
	for _, e := range all {
		v.highest = max(v.highest, e.generation)
		if e.suspect = e.generation > mark; e.suspect {
			o.suspect = append(o.suspect, e)
		} else {
			o.logged = append(o.logged, e)
		}
	}
}

// lastUses is when something in each slab was used last, by slabs that rows name.
func lastUses(rows []catalog.Row) map[uint32]int64 {
	used := map[uint32]int64{}
	for i := range rows {
		for _, r := range rows[i].Runs {
			used[r.Slab] = max(used[r.Slab], rows[i].Used)
		}
	}
	return used
}

// restore takes up slabs whose header was damaged: everything in a header is known
// from elsewhere, and what is in the slab is checked at each read. A slab that was
// never finished holds nothing, unless rows say otherwise. One of another store is
// somebody else's, and left alone; one of another version or granule, or that
// cannot be read now, stands in the way of opening, since going on would delete
// the rows of all that is in it.
func (o *opening) restore(t *Tier, v *volume, used map[uint32]int64) error {
	for _, r := range v.set.Refused() {
		t.log.Warn().Str("tier", "disk").Str("file", r.Name).Err(r.Err).Msg("a slab is not as it should be")
		_, named := used[r.Number]
		var err error
		switch {
		case errors.Is(r.Err, slab.ErrUnfinished) && !named:
			err = v.set.Remove(r.Number)
		case errors.Is(r.Err, slab.ErrHeader), errors.Is(r.Err, slab.ErrSize), errors.Is(r.Err, slab.ErrUnfinished):
			_, err = v.set.Restore(r.Number)
			if errors.Is(err, slab.ErrSize) { // too short to hold anything
				err = v.set.Remove(r.Number)
			}
		case errors.Is(r.Err, slab.ErrStore):
		case errors.Is(r.Err, slab.ErrVersion), errors.Is(r.Err, slab.ErrGranule):
			err = fmt.Errorf("%w: %w", r.Err, ErrVersion)
		default:
			err = r.Err
		}
		if err != nil {
			return fmt.Errorf("disk: %s: %w", r.Name, err)
		}
	}
	return nil
}

// slabs adds the slabs that fit the budget, and answers those beyond it, which are
// those that were used longest ago.
func (o *opening) slabs(t *Tier, v *volume, used map[uint32]int64) (beyond []slab.SlabInfo) {
	all := v.set.Slabs()
	slices.SortStableFunc(all, func(a, b slab.SlabInfo) int { return cmp.Compare(used[b.Number], used[a.Number]) })
	for _, s := range all {
		if v.slabBytes.Load()+s.Bytes > t.cfg.PublicBytes+t.cfg.PrivateBytes {
			t.log.Warn().Str("tier", "disk").Str("file", s.Name).Msg("a slab is beyond the budget and given up")
			beyond = append(beyond, s)
			continue
		}
		v.space.AddSlab(s.Number, s.Bytes)
		v.addSlab(s)
		o.dirty = append(o.dirty, s.Number)
	}
	return beyond
}

// tenants gives configured tenants their numbers.
func (o *opening) tenants(t *Tier, v *volume) error {
	for n, name := range v.catalog.Tenants() {
		o.owner(name, t.cfg.Eviction).number = n
	}
	for _, a := range o.names {
		if a.number != 0 {
			continue
		}
		n, err := v.catalog.TenantNumber(a.Name)
		if err != nil {
			return fmt.Errorf("disk: catalogue: %w", err)
		}
		a.number = n
	}
	return nil
}

func readRows(c *catalog.Catalog) (rows []catalog.Row, err error) {
	err = c.Load(func(r catalog.Row) error {
		rows = append(rows, r)
		return nil
	})
	return rows, err
}

// take makes entries of rows: the younger first, so that where two say that they
// own the same space, the one that was written last keeps it.
func (o *opening) take(t *Tier, v *volume, rows []catalog.Row) {
	numbers := map[uint32]*account{}
	for _, a := range o.names {
		numbers[a.number] = a
	}
	slices.SortFunc(rows, func(a, b catalog.Row) int { return cmp.Compare(b.Generation, a.Generation) })
	kept := make(map[tier.Name]*entry, len(rows))
	for i := range rows {
		r := &rows[i]
		e, err := o.entry(r, numbers[r.Tenant])
		if err == nil && r.Generation <= t.removed[e.Name] {
			err = fmt.Errorf("removed: %w", tier.ErrGone)
		}
		if err == nil {
			err = v.space.Take(r.Runs)
		}
		if err != nil {
			o.drop(t, r.Name, err)
			continue
		}
		kept[e.Name] = e
	}
	o.dropOrphans(t, v, kept)
	o.linkAll(kept)
}

// entry makes the entry of a row.
func (o *opening) entry(r *catalog.Row, owner *account) (*entry, error) {
	m := o.models[r.Fingerprint]
	if m == nil || owner == nil || r.Kind > uint8(tier.Spliced) {
		return nil, fmt.Errorf("profile %x, tenant %d or kind %d is not known: %w", r.Fingerprint[:8], r.Tenant, r.Kind, tier.ErrCorrupt)
	}
	name := tierName(r.Name)
	if err := fits(r, m); err != nil {
		return nil, err
	}
	e := &entry{
		Name: name, generation: r.Generation, model: m, owner: owner, pool: o.pools[poolOf(name.Kind)],
		spec: r.Spec, begin: r.Begin, end: r.End, parentName: tierName(r.Parent), created: time.Unix(0, r.Created),
		runs: r.Runs, headerBytes: int64(r.HeaderBytes), payload: r.PayloadBytes, coded: r.Coded,
		ranks: r.Ranks, rankBytes: r.RankBytes, manifestSum: r.ManifestSum,
		bytes: slab.RunBytes(r.Runs), phase: live, level: tier.LevelLogged, used: time.Unix(0, r.Used),
	}
	return e, nil
}

// fits says whether a row's lengths are those of its model. Reading trusts them.
func fits(r *catalog.Row, m *model) error {
	l := m.layout(tier.CheckpointKind(r.Kind), r.End-r.Begin)
	if r.Ranks != m.TPSize() || r.RankBytes != l.Bytes || !r.Coded && r.PayloadBytes != extent.PayloadBytes(r.Ranks, r.RankBytes) {
		return fmt.Errorf("%d ranks of %d bytes in %d, its profile has %d of %d: %w", r.Ranks, r.RankBytes, r.PayloadBytes, m.TPSize(), l.Bytes, tier.ErrCorrupt)
	}
	return nil
}

func (o *opening) drop(t *Tier, name extent.Name, err error) {
	o.dropped++
	o.doom = append(o.doom, catalog.Change{Delete: &name})
	t.log.Debug().Str("tier", "disk").Hex("segment", name.Key[:8]).Err(err).Msg("a row is dropped")
}

// dropOrphans drops checkpoints whose roots are not there, and those that extend
// them. Chains cannot be rings in a catalogue that we wrote; in one that is
// damaged they are orphans.
func (o *opening) dropOrphans(t *Tier, v *volume, kept map[tier.Name]*entry) {
	rooted := make(map[*entry]bool)
	for _, e := range kept {
		var path []*entry
		ok := true
		for at := e; ; {
			if at.parentName == (tier.Name{}) || rooted[at] {
				break
			}
			path = append(path, at)
			up := kept[at.parentName]
			if up == nil || len(path) > len(kept) {
				ok = false
				break
			}
			at = up
		}
		for _, p := range path {
			if ok {
				rooted[p] = true
			} else if kept[p.Name] != nil {
				delete(kept, p.Name)
				v.space.Free(p.runs)
				o.drop(t, extentName(p.Name), fmt.Errorf("it extends %x, which is not here: %w", p.parentName.Key[:8], tier.ErrCorrupt))
			}
		}
	}
}

// linkAll counts entries and ranks them, those used longest ago first.
func (o *opening) linkAll(kept map[tier.Name]*entry) {
	list := make([]*entry, 0, len(kept))
	for _, e := range kept {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *entry) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.generation, b.generation))
	})
	for _, e := range list {
		o.link(e, nil)
	}
	for _, e := range list {
		if e.parentName != (tier.Name{}) {
			e.adopt(kept[e.parentName])
		}
	}
	for _, e := range list {
		o.settle(e)
	}
	o.logged = list
}

// shrinkLocked evicts what is over budgets that were made smaller.
func (t *Tier) shrinkLocked() {
	for _, p := range t.pools {
		for p.used > p.budget {
			victim := t.victim(p)
			if victim == nil {
				break
			}
			t.evictLocked(victim, &t.counters.EvictedRoom)
		}
	}
}
