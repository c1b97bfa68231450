package payload

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
)

// Verdict says whether a key is the one that sealed the extents of a store.
type Verdict uint8

// The verdicts, the weakest first.
const (
	Unknown Verdict = iota // no extent shows it
	Strange                // an intact extent has another seal, or none where the key says that there is one
	Own                    // an extent has the key's seal
)

// JudgeMost is the most extents that an opening reads to judge a key (a guess). The first
// one decides unless it is damaged or the key is another store's.
const JudgeMost = 32

// Judge reads the extents of rows until one shows that the key belongs to them. It reads the
// oldest first, since a wrong key may have sealed younger ones, and at most the given number.
// The function profileOf returns nil for an unknown profile.
func Judge(ctx context.Context, from Source, rows []catalog.Row, key *extent.Key, most int, profileOf func(profile.Fingerprint) *profile.Profile) (Verdict, error) {
	var sealed, older []*catalog.Row
	for i := range rows {
		switch r := &rows[i]; {
		case !key.Seals(r.Generation):
			older = append(older, r)
		case profileOf(r.Fingerprint) != nil:
			sealed = append(sealed, r)
		}
	}
	slices.SortFunc(sealed, func(a, b *catalog.Row) int { return cmp.Compare(a.Generation, b.Generation) })
	// What is older than the key has no seal. A seal shows that the key is not that old.
	slices.SortFunc(older, func(a, b *catalog.Row) int { return cmp.Compare(b.Generation, a.Generation) })
	verdict := Unknown
	for _, r := range slices.Concat(sealed[:min(most, len(sealed))], older[:min(most, len(older))]) {
		x, err := ReadExtent(from, r.Runs)
		if err == nil && x.Name == r.Name && x.Generation == r.Generation {
			if key.Seals(x.Generation) {
				err = x.Verify(ctx, from, profileOf(r.Fingerprint), key, runtime.GOMAXPROCS(0))
			}
			if verdict = max(verdict, x.Says(key, err)); verdict == Own {
				return Own, nil
			}
		}
		if ctx.Err() != nil {
			return Unknown, ctx.Err()
		}
	}
	return verdict, nil
}

// Says returns what the result of Verify says about a key.
func (x *Extent) Says(key *extent.Key, verified error) Verdict {
	switch {
	case errors.Is(verified, extent.ErrSeal), verified == nil && x.Sealed && !key.Seals(x.Generation):
		return Strange
	case verified == nil && key.Seals(x.Generation):
		return Own
	}
	return Unknown
}
