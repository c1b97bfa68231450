package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
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
	t.counters.Opened += uint64(len(o.index))
	t.counters.Dropped += uint64(o.dropped)
	t.logged = o.logged
	t.state, t.stateCause, t.stateSince = StateOK, nil, t.cfg.Now()
	for _, n := range o.dirty {
		v.dirty[n] = true
	}
	t.shrinkLocked()
	t.wakeLocked()
	t.mu.Unlock()
	t.log.Info().Str("tier", "disk").Str("dir", t.cfg.Dir).Int("entries", len(o.index)).Int("dropped", o.dropped).
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
	case errors.Is(err, catalog.ErrFailed), errors.Is(err, tiering.ErrCorrupt), errors.Is(err, catalog.ErrStore):
		return StateUnreadable
	case errors.Is(err, fs.ErrNotExist):
		return StateMissing
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
	if err := o.slabs(t, v); err != nil {
		return nil, err
	}
	if err := o.tenants(t, v); err != nil {
		return nil, err
	}
	rows, err := readRows(v.catalog)
	if err != nil {
		return nil, fmt.Errorf("disk: catalogue: %w", err)
	}
	o.take(t, v, rows)
	if len(o.doom) > 0 {
		if err := v.catalog.Commit(o.doom, true); err != nil {
			return nil, fmt.Errorf("disk: catalogue: %w", err)
		}
	}
	return o, nil
}

// slabs adds the slabs that can be used. Files that were never finished, that are
// damaged or that belong elsewhere are removed: no row of ours can be right about
// them. Those of another version, or that could not be read, stay as they are.
// Slabs beyond the budget are given up with their entries.
func (o *opening) slabs(t *Tier, v *volume) error {
	for _, r := range v.set.Refused() {
		t.log.Warn().Str("tier", "disk").Str("file", r.Name).Err(r.Err).Msg("a slab is not used")
		if errors.Is(r.Err, slab.ErrUnfinished) || errors.Is(r.Err, slab.ErrHeader) || errors.Is(r.Err, slab.ErrSize) {
			if err := v.set.Remove(r.Number); err != nil {
				return fmt.Errorf("disk: slabs: %w", err)
			}
		}
	}
	for _, s := range v.set.Slabs() {
		if v.slabBytes.Load()+s.Bytes > t.cfg.PublicBytes+t.cfg.PrivateBytes {
			t.log.Warn().Str("tier", "disk").Str("file", s.Name).Msg("a slab is beyond the budget and given up")
			if err := v.set.Remove(s.Number); err != nil {
				return fmt.Errorf("disk: slabs: %w", err)
			}
			continue
		}
		v.space.AddSlab(s.Number, s.Bytes)
		v.addSlab(s)
		o.dirty = append(o.dirty, s.Number)
	}
	return nil
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
	kept := make(map[tiering.Name]*entry, len(rows))
	for i := range rows {
		r := &rows[i]
		e, err := o.entry(r, numbers[r.Tenant])
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
	if m == nil || owner == nil || r.Kind > uint8(tiering.Spliced) {
		return nil, fmt.Errorf("profile %x, tenant %d or kind %d is not known: %w", r.Fingerprint[:8], r.Tenant, r.Kind, tiering.ErrCorrupt)
	}
	name := tierName(r.Name)
	e := &entry{
		Name: name, generation: r.Generation, model: m, owner: owner, pool: o.pools[poolOf(name.Kind)],
		spec: r.Spec, begin: r.Begin, end: r.End, parentName: tierName(r.Parent), created: time.Unix(0, r.Created),
		runs: r.Runs, headerBytes: int64(r.HeaderBytes), payload: r.PayloadBytes, coded: r.Coded,
		ranks: r.Ranks, rankBytes: r.RankBytes, manifestSum: r.ManifestSum,
		bytes: slab.RunBytes(r.Runs), phase: live, level: tiering.LevelLogged, used: time.Unix(0, r.Used),
	}
	return e, nil
}

func (o *opening) drop(t *Tier, name extent.Name, err error) {
	o.dropped++
	o.doom = append(o.doom, catalog.Change{Delete: &name})
	t.log.Debug().Str("tier", "disk").Hex("segment", name.Key[:8]).Err(err).Msg("a row is dropped")
}

// dropOrphans drops checkpoints whose roots are not there, and those that extend
// them. Chains cannot be rings in a catalogue that we wrote; in one that is
// damaged they are orphans.
func (o *opening) dropOrphans(t *Tier, v *volume, kept map[tiering.Name]*entry) {
	rooted := make(map[*entry]bool)
	for _, e := range kept {
		var path []*entry
		ok := true
		for at := e; ; {
			if at.parentName == (tiering.Name{}) || rooted[at] {
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
				o.drop(t, extentName(p.Name), fmt.Errorf("it extends %x, which is not here: %w", p.parentName.Key[:8], tiering.ErrCorrupt))
			}
		}
	}
}

// linkAll counts entries and ranks them, those used longest ago first.
func (o *opening) linkAll(kept map[tiering.Name]*entry) {
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
		if e.parentName != (tiering.Name{}) {
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
