package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A removal of many objects first lists them page by page, and removes them in small batches, so
// that clients are served meanwhile. It may or may not remove objects that are stored meanwhile.

// removalPage is the number of rows listed at once. It is large, because the disk tier scans all
// its entries for each page.
const removalPage = 4096

// mostChecked is the largest number of checkpoints that one removal lists. All of them are listed
// first, since chains are removed from their ends. For more checkpoints, several removals are
// needed.
const mostChecked = 1 << 18

// selection is the parsed filter of a removal.
type selection struct {
	tenant   *tier.TenantID
	profile  tier.ProfileID
	prefix   string
	before   time.Time // select objects last used before this time; zero = all
	below    disk.Filter
	hasBelow bool
}

func (v *listing) selection(q *api.RemovalQuery) (s selection, err error) {
	if s.tenant, err = v.filterTenant(q.Tenant); err != nil {
		return s, err
	}
	var ok bool
	if s.profile, ok = profileFilter(q.Profile); ok && s.profile != 0 {
		_, ok = v.o.Store.Profile(s.profile)
	}
	if !ok {
		return s, api.NotFound("no profile %d is registered", *q.Profile)
	}
	s.prefix = q.Prefix
	if q.OlderThan > 0 {
		s.before = v.now().Add(-q.OlderThan)
	}
	s.below, s.hasBelow = v.below(s.tenant, s.profile)
	s.below.Prefix = s.prefix
	return s, nil
}

func (v *base) now() time.Time {
	if v.o.Now != nil {
		return v.o.Now()
	}
	return time.Now()
}

// old reports whether an object was last used before s.before.
func (s *selection) old(used, created time.Time) bool {
	if used.Before(created) {
		used = created
	}
	return s.before.IsZero() || used.Before(s.before)
}

// RemoveSegments implements api.Remover.
func (v *operator) RemoveSegments(ctx context.Context, q api.RemovalQuery) (r api.Removed, err error) {
	if !v.removing.TryLock() {
		return r, fmt.Errorf("another removal by filter is running: %w", api.ErrBusy)
	}
	defer v.removing.Unlock()
	s, err := v.selection(&q)
	if err != nil {
		return r, err
	}
	pinned := map[tier.Name]bool{}
	for _, p := range v.o.Store.Pins() {
		pinned[p.Name] = true
	}
	f := tiering.SegmentFilter{Tenant: s.tenant, Profile: s.profile, Prefix: s.prefix}
	prints := v.fingerprints()
	var after *profile.SegmentKey
	for more := true; more && ctx.Err() == nil; {
		page := v.o.Store.Segments(f, after, removalPage)
		if more = len(page) == removalPage; len(page) > 0 {
			after = &page[len(page)-1].Key
		}
		var list []*node
		for i := range page {
			x := &page[i]
			w := tier.Want{Name: tier.Name{Key: x.Key}, Fingerprint: prints[x.Profile], Tenant: x.Tenant}
			if s.old(x.LastUsed, x.Created) {
				list = append(list, &node{Want: w, bytes: x.Bytes, busy: !x.Published && !x.Promoting || pinned[w.Name]})
			}
		}
		v.discard(ctx, list, q.Dry, &r)
	}
	s.below.Kinds = func(k tier.CheckpointKind) bool { return k == 0 }
	var from *tier.Name
	for more := s.hasBelow; more && ctx.Err() == nil; {
		page := v.o.Disk.List(s.below, from, removalPage)
		if more = len(page) == removalPage; len(page) > 0 {
			from = &page[len(page)-1].Name
		}
		var list []*node
		for i := range page {
			x := &page[i]
			if _, inMemory := v.o.Store.Segment(x.Key); !inMemory && s.old(x.LastUsed, x.Created) {
				w := tier.Want{Name: x.Name, Fingerprint: x.Fingerprint, Tenant: x.Tenant}
				list = append(list, &node{Want: w, bytes: x.RankBytes * int64(x.Ranks)})
			}
		}
		v.discard(ctx, list, q.Dry, &r)
	}
	v.tellControl(q.Dry, nil, "%d of %d segments were removed, %d bytes", r.Removed, r.Matched, r.Bytes)
	return r, ended(ctx)
}

// ended returns the error of a removal that was cut short; nil = it was complete.
func ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the daemon is stopping: not all objects were removed: %w", api.ErrUnavailable)
	}
	return nil
}

// fingerprints returns the fingerprints of the registered profiles, by id.
func (v *base) fingerprints() map[tier.ProfileID]profile.Fingerprint {
	prints := map[tier.ProfileID]profile.Fingerprint{}
	for _, p := range v.o.Store.Profiles() {
		prints[p.ID] = p.Profile.Fingerprint()
	}
	return prints
}

// node is an object to remove, in memory, on disk or both. The fields after busy are for
// checkpoints only.
type node struct {
	tier.Want
	bytes    int64
	busy     bool
	end      int
	thinned  bool // evicted from memory together with the last checkpoint that extends it
	parents  [2]tier.Name
	children [2]int
	used     time.Time
	created  time.Time
	row      func() api.Checkpoint // returns the row shown to operators
}

// Indices of parents and children.
const (
	inMemory = 0
	onDisk   = 1
)

// nodes returns the selected checkpoints without duplicates. A checkpoint comes after its
// extensions.
func (v *listing) nodes(ctx context.Context, s *selection) []*node {
	known := map[tier.Want]*node{}
	prints, ids := v.fingerprints(), v.profileIDs()
	f := tiering.CheckpointFilter{Tenant: s.tenant, Profile: s.profile, Prefix: s.prefix}
	var after *profile.PrefixHash
	for more := true; more && ctx.Err() == nil && len(known) < mostChecked; {
		page := v.o.Store.Checkpoints(f, after, removalPage)
		if more = len(page) >= removalPage; len(page) > 0 {
			after = &page[len(page)-1].Hash
		}
		for i := range page {
			c := &page[i]
			n := &node{
				Want: tier.Want{Name: tier.Name{Kind: c.Kind, Key: c.Hash}, Fingerprint: prints[c.Profile], Tenant: c.Tenant},
				end:  c.Tokens, bytes: c.Bytes, busy: !c.Published || c.Promoting, thinned: c.Stripped, used: c.LastUsed, created: c.Created,
				row: func() api.Checkpoint { return v.checkpoint(c) },
			}
			n.children[inMemory] = c.Children
			if c.Parent != (profile.PrefixHash{}) {
				n.parents[inMemory] = tier.Name{Kind: c.ParentOf, Key: c.Parent}
			}
			known[n.Want] = n
		}
	}
	below := s.below
	below.Kinds = func(k tier.CheckpointKind) bool { return k != 0 }
	var from *tier.Name
	for more := s.hasBelow; more && ctx.Err() == nil && len(known) < mostChecked; {
		page := v.o.Disk.List(below, from, removalPage)
		if more = len(page) == removalPage; len(page) > 0 {
			from = &page[len(page)-1].Name
		}
		for i := range page {
			x := &page[i]
			w := tier.Want{Name: x.Name, Fingerprint: x.Fingerprint, Tenant: x.Tenant}
			n := known[w]
			if n == nil {
				n = &node{
					Want: w, bytes: x.RankBytes * int64(x.Ranks), end: x.End, used: x.LastUsed, created: x.Created,
					row: func() api.Checkpoint { return diskCheckpoint(x, ids) },
				}
				known[w] = n
			}
			n.parents[onDisk], n.children[onDisk] = x.Parent, x.Children
		}
	}
	for _, p := range v.o.Store.Pins() {
		w := tier.Want{Name: p.Name, Fingerprint: prints[p.Profile], Tenant: p.Tenant}
		if n := known[w]; n != nil {
			n.busy = true
		}
	}
	list := make([]*node, 0, len(known))
	for _, n := range known {
		if s.old(n.used, n.created) {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b *node) int {
		return cmp.Or(cmp.Compare(b.end, a.end), slices.Compare(a.Key[:], b.Key[:]), cmp.Compare(kindName(a.Kind), kindName(b.Kind)),
			cmp.Compare(a.Tenant, b.Tenant), slices.Compare(a.Fingerprint[:], b.Fingerprint[:]))
	})
	return list
}

// RemoveCheckpoints implements api.Remover.
func (v *operator) RemoveCheckpoints(ctx context.Context, q api.RemovalQuery) (r api.Removed, err error) {
	if !v.removing.TryLock() {
		return r, fmt.Errorf("another removal by filter is running: %w", api.ErrBusy)
	}
	defer v.removing.Unlock()
	s, err := v.selection(&q)
	if err != nil {
		return r, err
	}
	v.discard(ctx, v.nodes(ctx, &s), q.Dry, &r)
	v.tellControl(q.Dry, nil, "%d of %d checkpoints were removed, %d bytes", r.Removed, r.Matched, r.Bytes)
	return r, ended(ctx)
}

// discard removes the objects of list in order. A checkpoint must come after its extensions. If the
// parameter dry is true, discard only counts what it would remove.
func (v *operator) discard(ctx context.Context, list []*node, dry bool, r *api.Removed) {
	r.Matched += len(list)
	count := func(i int, err error) {
		switch n := list[i]; {
		case err == nil, errors.Is(err, tier.ErrGone) && n.thinned:
			r.Removed++
			r.Bytes += n.bytes
		case errors.Is(err, tier.ErrBusy):
			r.Busy++
		}
	}
	if dry {
		taken := [2]map[tier.Want]int{{}, {}} // for each node, how many of its children are removed
		for i, n := range list {
			var err error
			for place := range taken {
				if n.busy || n.children[place] > taken[place][n.Want] {
					err = tier.ErrBusy
				}
			}
			if err == nil {
				for place := range taken {
					taken[place][tier.Want{Name: n.parents[place], Fingerprint: n.Fingerprint, Tenant: n.Tenant}]++
				}
			}
			count(i, err)
		}
		return
	}
	wants := make([]tier.Want, len(list))
	for i, n := range list {
		wants[i] = n.Want
	}
	v.o.Store.Discard(ctx, wants, count)
}

// named returns the checkpoints that a name selects. The result others is the number of further
// checkpoints with the same hash.
func (v *listing) named(ctx context.Context, name *api.CheckpointName) (list []*node, others int, err error) {
	s, err := v.selection(&api.RemovalQuery{Tenant: name.Tenant, Profile: name.Profile, Prefix: name.Hash.String()})
	if err != nil {
		return nil, 0, err
	}
	all := selection{prefix: s.prefix}
	all.below, all.hasBelow = v.below(nil, 0)
	all.below.Prefix = s.prefix
	found, print := v.nodes(ctx, &all), v.fingerprints()[s.profile]
	for _, n := range found {
		if (s.tenant == nil || *s.tenant == n.Tenant) && (s.profile == 0 || print == n.Fingerprint) &&
			(name.Kind == "" || strings.EqualFold(name.Kind, kindName(n.Kind))) {
			list = append(list, n)
		}
	}
	if len(list) == 0 {
		return nil, 0, api.NotFound("no such checkpoint")
	}
	return list, len(found) - 1, nil
}

// Checkpoint implements api.Remover.
func (v *listing) Checkpoint(name api.CheckpointName) (api.CheckpointDetail, error) {
	list, others, err := v.named(context.Background(), &name)
	if err != nil {
		return api.CheckpointDetail{}, err
	}
	return api.CheckpointDetail{Checkpoint: list[0].row(), Others: others}, nil
}

// RemoveCheckpoint implements api.Remover.
func (v *operator) RemoveCheckpoint(name api.CheckpointName, dry bool) (r api.Removed, err error) {
	list, _, err := v.named(context.Background(), &name)
	if err != nil {
		return r, err
	}
	v.discard(context.Background(), list, dry, &r)
	if r.Removed == 0 && r.Busy > 0 {
		return r, fmt.Errorf("it is being filled or is pinned, or another one extends it and must be removed first: %w", api.ErrBusy)
	}
	v.tellControl(dry, nil, "checkpoint %v was removed, %d bytes", name.Hash, r.Bytes)
	return r, nil
}
