package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// attach opens the directory, loads its entries, and enters the resulting state. It reports
// whether the directory was opened.
func (t *core) attach() bool {
	began := time.Now()
	v, err := volume.Open(t.volume())
	var o *opening
	if err == nil {
		t.useGranule(v.Format.Granule)
		if o, err = t.load(v); err != nil {
			err = errors.Join(err, v.Close())
		}
	}
	if err != nil {
		t.trouble(refusal(err), err)
		return false
	}
	entries := len(o.index)
	for _, e := range o.index { // before the table is shared, since the index may be long
		o.publish(e, e.phase.live())
	}
	t.store = v.Format.ID
	t.mu.Lock()
	t.table, t.mount, t.models = o.table, o.mount, o.models
	t.removed = removals{}
	t.counters.Opened += uint64(entries)
	t.counters.Dropped += uint64(len(o.wrong))
	t.counters.EvictedRoom += o.evicted
	t.counters.EvictedBytes += o.evictedBytes
	t.enterLocked(StateOK, nil, t.cfg.Now())
	t.wakeLocked()
	t.mu.Unlock()
	t.log.Info().Str("tier", "disk").Str("dir", t.cfg.Dir).Int("entries", entries).Int("dropped", len(o.wrong)).
		Dur("took", time.Since(began)).Msg("disk tier is open")
	return true
}

// volume returns the options for opening the directory. If a directory was open before,
// only the same directory is accepted: an empty one at its path may be the mount point of
// a disk that is gone.
func (t *core) volume() volume.Options {
	o := t.cfg.volume()
	o.Store = t.store
	o.Existing = o.Existing || t.store != (slab.StoreID{})
	return o
}

// useGranule adopts the directory's granule, if the configuration has another.
func (t *core) useGranule(granule int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cfg.GranuleBytes = granule
	t.cfg.SlabBytes = max(t.cfg.SlabBytes&^(granule-1), 2*granule)
}

// refusal returns the state that the tier enters when opening fails with err.
func refusal(err error) State {
	switch {
	case errors.Is(err, volume.ErrLocked):
		return StateLocked
	case errors.Is(err, volume.ErrVersion), errors.Is(err, catalog.ErrVersion):
		return StateVersion
	case errors.Is(err, volume.ErrForeign), errors.Is(err, slab.ErrKind):
		return StateForeign
	case errors.Is(err, tier.ErrCorrupt), errors.Is(err, catalog.ErrStore), errors.Is(err, volume.ErrKey):
		return StateUnreadable
	case errors.Is(err, fs.ErrNotExist) && !errors.Is(err, catalog.ErrFailed):
		return StateMissing
	case noSpace(err), ioError(err): // not damaged, even if the catalogue failed
		return StateRefused
	case errors.Is(err, catalog.ErrFailed):
		return StateUnreadable
	}
	return StateMissing
}

// ioError reports whether the system refused an operation. A missing file does not count.
func ioError(err error) bool {
	var errno unix.Errno
	return errors.As(err, &errno) && errno != unix.ENOENT && errno != unix.ENOTDIR
}

// opening is a table being built from rows. It is not shared yet.
type opening struct {
	table
	mount   *mount
	models  map[profile.Fingerprint]*model
	removed map[tier.Name]uint64
	log     zerolog.Logger
	wrong   []catalog.Change // rows to drop
	doubted []catalog.Change // rows to rewrite as doubted: their bytes may not be synced

	evicted, evictedBytes uint64
}

// load creates entries from the plausible rows; it does not read their extents. It deletes
// the other rows and syncs the deletion before anything is written to their space.
func (t *core) load(v *volume.Volume) (*opening, error) {
	o := &opening{table: t.newTable(), mount: newMount(v), models: map[profile.Fingerprint]*model{}, removed: t.removed.from(v.Format.ID), log: t.log}
	profiles, unread, err := v.Profiles()
	if err != nil {
		return nil, err
	}
	for _, u := range unread {
		o.mount.dormancyOf(u.Fingerprint, u.Err)
	}
	for _, p := range profiles {
		o.models[p.Fingerprint()] = newModel(p)
	}
	rows, err := v.ReadRows()
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	if err := t.judgeKey(o, rows); err != nil { // before anything is changed
		return nil, err
	}
	if err := o.tenants(t.cfg.Eviction); err != nil {
		return nil, err
	}
	used := lastUses(rows)
	if err := o.restore(used); err != nil {
		return nil, err
	}
	beyond := o.slabs(t.cfg.PublicBytes+t.cfg.PrivateBytes, used)
	o.take(rows)
	if changes := append(o.doubted, o.wrong...); len(changes) > 0 {
		if err := v.Catalog.Commit(changes, true); err != nil {
			return nil, fmt.Errorf("catalogue: %w", err)
		}
	}
	if err := v.SyncNames(); err != nil { // a killed process may not have synced them
		return nil, err
	}
	for _, s := range beyond {
		if err := v.RemoveSlab(s.Number); err != nil {
			return nil, fmt.Errorf("slabs: %w", err)
		}
	}
	o.shrink()
	return o, nil
}

// judgeKey finds out whether KEY belongs to the store, if FORMAT does not say it: releases
// before the line "key" wrote the directory, or the line is damaged. The error is
// volume.ErrKey if KEY is another store's.
func (t *core) judgeKey(o *opening, rows []catalog.Row) error {
	v := o.mount.Volume
	if v.Bound() {
		return nil
	}
	most := payload.JudgeMost
	if t.judgeAll { // or the same entry could have the directory opened again and again
		most = len(rows)
	}
	verdict, err := payload.Judge(context.Background(), v, rows, v.Key, most, func(fp profile.Fingerprint) *profile.Profile {
		if m := o.models[fp]; m != nil {
			return m.Profile
		}
		if t.cfg.Profile == nil {
			return nil
		}
		return t.cfg.Profile(fp)
	})
	switch {
	case err != nil:
		return err
	case verdict == payload.Strange:
		return volume.ErrKey
	case verdict == payload.Own:
		return v.Bind()
	}
	o.mount.unjudged = true
	return nil
}

// lastUses returns, for each slab that rows name, the latest last use of its entries in
// nanoseconds since 1970.
func lastUses(rows []catalog.Row) map[uint32]int64 {
	used := map[uint32]int64{}
	for i := range rows {
		for _, r := range rows[i].Runs {
			used[r.Slab] = max(used[r.Slab], rows[i].Used)
		}
	}
	return used
}

// restore handles the refused slabs. It adopts a slab with a damaged header: all fields
// of a header are known from elsewhere, and the contents of a slab are checked at each
// read. It removes an unfinished slab unless rows name it. It ignores a slab of another
// store. A slab of another version or granule, or one that cannot be read now, prevents
// opening: without it, the rows of all entries in it would be deleted.
func (o *opening) restore(used map[uint32]int64) error {
	v := o.mount
	for _, r := range v.Refused() {
		o.log.Warn().Str("tier", "disk").Str("file", r.Name).Err(r.Err).Msg("a slab is not as it should be")
		_, named := used[r.Number]
		var err error
		switch {
		case errors.Is(r.Err, slab.ErrUnfinished) && !named:
			err = v.RemoveSlab(r.Number)
		case errors.Is(r.Err, slab.ErrHeader), errors.Is(r.Err, slab.ErrSize), errors.Is(r.Err, slab.ErrUnfinished):
			_, err = v.RestoreSlab(r.Number)
			if errors.Is(err, slab.ErrSize) { // too short to hold anything
				err = v.RemoveSlab(r.Number)
			}
		case errors.Is(r.Err, slab.ErrStore):
		case errors.Is(r.Err, slab.ErrVersion), errors.Is(r.Err, slab.ErrGranule):
			err = fmt.Errorf("%w: %w", r.Err, volume.ErrVersion)
		default:
			err = r.Err
		}
		if err != nil {
			return fmt.Errorf("slabs: %w", err)
		}
	}
	return nil
}

// slabs adds the slabs that fit the budget, most recently used first, and returns the
// remaining ones.
func (o *opening) slabs(budget int64, used map[uint32]int64) (beyond []slab.SlabInfo) {
	m := o.mount
	all := m.Slabs()
	slices.SortStableFunc(all, func(a, b slab.SlabInfo) int { return cmp.Compare(used[b.Number], used[a.Number]) })
	for _, s := range all {
		if m.SlabBytes()+s.Bytes > budget {
			o.log.Warn().Str("tier", "disk").Str("file", s.Name).Msg("a slab is beyond the budget and given up")
			beyond = append(beyond, s)
			continue
		}
		m.capacity += m.AddSlab(s)
		m.dirty[s.Number] = true // a killed process may not have synced it
	}
	return beyond
}

// tenants gives every account its number in the catalogue. It opens accounts for tenants that
// only the catalogue has, and assigns numbers to tenants that only the configuration has.
func (o *opening) tenants(eviction func() policy.Eviction) error {
	byName := map[string]*account{}
	for _, a := range o.accounts {
		byName[a.Name] = a
	}
	for n, name := range o.mount.Catalog.Tenants() {
		a := byName[name]
		if a == nil {
			a = o.open(Tenant{Name: name}, eviction)
		}
		a.number = n
	}
	for _, a := range o.accounts {
		if a.number != 0 {
			continue
		}
		n, err := o.mount.Catalog.TenantNumber(a.Name)
		if err != nil {
			return fmt.Errorf("catalogue: %w", err)
		}
		a.number = n
	}
	return nil
}

// take creates entries from rows, highest generation first: if two rows claim the same
// space, the entry that was written last gets it.
func (o *opening) take(rows []catalog.Row) {
	owners := map[uint32]*account{}
	for _, a := range o.accounts {
		owners[a.number] = a
	}
	slices.SortFunc(rows, func(a, b catalog.Row) int { return cmp.Compare(b.Generation, a.Generation) })
	o.mount.opened = o.mount.Synced()
	o.mount.highest = o.mount.opened
	kept := make(map[tier.Name]*entry, len(rows))
	for i := range rows {
		r := &rows[i]
		e, err := o.entry(r, owners[r.Tenant])
		if err == nil && r.Generation <= o.removed[e.name()] {
			err = fmt.Errorf("removed: %w", tier.ErrGone)
		}
		if err == nil {
			err = o.mount.Space.Take(r.Runs)
		}
		if err != nil {
			o.drop(r.Name, err)
			continue
		}
		kept[e.name()] = e
	}
	o.dropOrphans(kept)
	o.linkAll(kept)
}

// entry returns the entry of a row. It is dormant if its profile is not known, and
// suspect if its generation may not have been synced. Otherwise it is logged until the
// next sync: after a process was killed, the kernel may not have written all bytes yet.
func (o *opening) entry(r *catalog.Row, owner *account) (*entry, error) {
	if owner == nil {
		return nil, fmt.Errorf("tenant %d is not known: %w", r.Tenant, tier.ErrCorrupt)
	}
	m := o.models[r.Fingerprint]
	e := &entry{
		Row: *r, model: m, owner: owner, pool: o.pools[poolOf(tier.CheckpointKind(r.Kind))],
		bytes: slab.RunBytes(r.Runs), used: time.Unix(0, r.Used),
	}
	if m == nil {
		e.model, e.phase = o.mount.dormancyOf(r.Fingerprint, errNoProfile).model, dormant
		return e, nil
	}
	e.phase = o.mount.firstPhase(e)
	return e, fits(r, m)
}

// firstPhase returns the phase of an entry whose profile is known.
func (m *mount) firstPhase(e *entry) phase {
	if e.Generation > m.opened || e.doubted() {
		return suspect
	}
	return logged
}

// fits checks that a row's kind and lengths agree with its model. Reads rely on that.
func fits(r *catalog.Row, m *model) error {
	if !tier.CheckpointKind(r.Kind).Known(m.Profile) {
		return fmt.Errorf("kind %d is not known: %w", r.Kind, tier.ErrCorrupt)
	}
	l, err := tier.LayoutOf(m.Profile, tier.CheckpointKind(r.Kind), r.End-r.Begin, r.Packed)
	if err != nil {
		return fmt.Errorf("%w: %w", err, tier.ErrCorrupt)
	}
	if r.Ranks != m.TPSize() || r.RankBytes != l.Bytes || !r.Coded && r.PayloadBytes != extent.PayloadBytes(r.Ranks, r.RankBytes) {
		return fmt.Errorf("%d ranks of %d bytes in %d, its profile has %d of %d: %w", r.Ranks, r.RankBytes, r.PayloadBytes, m.TPSize(), l.Bytes, tier.ErrCorrupt)
	}
	return nil
}

func (o *opening) drop(name extent.Name, err error) {
	o.wrong = append(o.wrong, catalog.Change{Delete: &name})
	o.log.Debug().Str("tier", "disk").Hex("segment", name.Key[:8]).Err(err).Msg("a row is dropped")
}

// dropOrphans drops the checkpoints whose chain of parents does not end in a checkpoint
// without a parent. A chain is cut where a parent is missing. In a damaged catalogue it
// may also be a cycle.
func (o *opening) dropOrphans(kept map[tier.Name]*entry) {
	rooted := make(map[*entry]bool)
	for _, e := range kept {
		path, ok := pathToRoot(e, kept, rooted)
		for _, p := range path {
			if ok {
				rooted[p] = true
			} else if kept[p.name()] != nil {
				delete(kept, p.name())
				o.mount.Space.Free(p.Runs)
				o.drop(p.Name, fmt.Errorf("it extends %x, which is not here: %w", p.Parent.Key[:8], tier.ErrCorrupt))
			}
		}
	}
}

// pathToRoot lists an entry and its ancestors, up to a root (an entry without a parent,
// not listed) or an entry in rooted. ok is false if it reaches neither.
func pathToRoot(e *entry, kept map[tier.Name]*entry, rooted map[*entry]bool) (path []*entry, ok bool) {
	for at := e; at.Parent != (extent.Name{}) && !rooted[at]; {
		path = append(path, at)
		up := kept[tierName(at.Parent)]
		if up == nil || len(path) > len(kept) {
			return path, false
		}
		at = up
	}
	return path, true
}

// linkAll links the entries to the table and their parents, and adds them to the eviction
// policies, least recently used first.
func (o *opening) linkAll(kept map[tier.Name]*entry) {
	list := make([]*entry, 0, len(kept))
	for _, e := range kept {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *entry) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.Generation, b.Generation))
	})
	for _, e := range list {
		o.link(e, nil)
	}
	for _, e := range list {
		if e.Parent != (extent.Name{}) {
			e.join(kept[tierName(e.Parent)])
		}
	}
	for _, e := range list {
		o.rank(e)
		o.mount.highest = max(o.mount.highest, e.Generation)
		if e.phase == dormant {
			d := o.mount.dormant[e.Fingerprint]
			d.entries = append(d.entries, e)
			d.model.dormant++
		}
		if e.phase == dormant && e.Generation > o.mount.opened && !e.doubted() {
			// The entry may stay dormant for long, and syncs in the meantime advance the
			// synced generation past it. So its row says that its bytes are doubted.
			e.Level = uint8(tier.LevelMemory)
			row := e.Row
			o.doubted = append(o.doubted, catalog.Change{Row: &row})
		}
		switch {
		case e.Generation > o.mount.opened || e.doubted():
			o.suspects = append(o.suspects, e)
		case e.phase == logged:
			o.logged = append(o.logged, e)
		}
	}
	for fp, d := range o.mount.dormant {
		if len(d.entries) == 0 {
			delete(o.mount.dormant, fp)
		}
		o.log.Warn().Str("tier", "disk").Int("entries", len(d.entries)).Err(d.cause).
			Msg("a profile cannot be read: its entries are kept, and served once it can or an engine has registered it")
	}
	slices.SortFunc(o.suspects, func(a, b *entry) int {
		if a.doubted() != b.doubted() {
			if a.doubted() {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.Generation, b.Generation)
	})
}

// shrink evicts entries until the pools fit their budgets, which may be smaller than before.
func (o *opening) shrink() {
	for _, p := range o.pools {
		for p.used > p.budget {
			e := o.victim(p)
			if e == nil {
				break
			}
			o.evicted++
			o.evictedBytes += uint64(e.bytes)
			o.forget(e)
		}
	}
}
