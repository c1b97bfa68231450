package serve

import (
	"context"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Known finds cached segments in a prompt by its tokens. It searches memory and the lower
// tier. Like Match it does no I/O and takes no lease. Each segment in the result is also
// confirmed by a lookup of the key of its tokens.
func (look *Lookup) Known(ctx context.Context, q *KnownQuery, dst *Known) error {
	dst.Segments, dst.Untried = dst.Segments[:0], 0
	p, t, err := look.cat.Scope(q.Profile, q.Tenant, 0)
	if err != nil {
		return err
	}
	n := len(q.Tokens)
	switch {
	case n < 1 || n > MaxPrompt:
		return fmt.Errorf("known: a prompt of %d tokens, want 1 to %d: %w", n, MaxPrompt, tier.ErrInvalid)
	case q.Begin < 0 || q.Begin > n || q.SeamTokens < 0 || q.SeamTokens > n || q.PrimedFrom < 0:
		return fmt.Errorf("known: from token %d on with seams of %d, of %d, primed from token %d on: %w",
			q.Begin, q.SeamTokens, n, q.PrimedFrom, tier.ErrInvalid)
	}
	err = look.cat.Config.Find.Search(ctx, &find.Query{
		Scope: find.Scope{Tenant: t.ID, Profile: p.Fingerprint()}, Hash: p.RollingHash(t.Salt),
		Tokens: q.Tokens, Begin: q.Begin, Mid: midSpec(p, 0, q.SeamTokens), Primer: q.Primer, PrimedFrom: q.PrimedFrom, Either: q.Either, Pause: q.Pause,
	}, &dst.found)
	if err != nil {
		return err
	}
	spans := dst.found.Spans
	spans = spans[:min(len(spans), q.Most)]
	dst.Untried = dst.found.Untried
	if err := dst.name(ctx, q, spans, p, t.Salt); err != nil {
		return err
	}
	look.statuses(q, dst, p, t)
	for i, span := range spans {
		if dst.rows[i].Status == tier.StatusHit {
			dst.Segments = append(dst.Segments, KnownSegment{span.Start, span.Tokens, span.Primed, dst.keys[i], dst.rows[i]})
		}
	}
	look.countKnown(q, dst, len(spans))
	return nil
}

// midSpec returns the spec of segments that start after token 0.
func midSpec(p *objects.Profile, tokens, seam int) profile.SegmentSpec {
	spec, _ := p.MidSpec(tokens, seam)
	return spec
}

// name computes the keys of candidate segments. Spans do not overlap, so no token is
// hashed twice.
func (k *Known) name(ctx context.Context, q *KnownQuery, spans []find.Span, p *objects.Profile, salt []byte) error {
	k.keys = k.keys[:0]
	hashed := 0
	for _, span := range spans {
		spec := profile.FirstSpec(span.Tokens)
		if span.Start > 0 {
			spec = midSpec(p, span.Tokens, q.SeamTokens)
		}
		if span.Primed {
			spec.Primer = q.Primer
		}
		k.keys = append(k.keys, p.SegmentKey(salt, spec, q.Tokens[span.Start:span.Start+span.Tokens]))
		if hashed += span.Tokens; hashed < pauseTokens {
			continue
		}
		hashed = 0
		if err := ctx.Err(); err != nil {
			return err
		}
		if q.Pause != nil {
			q.Pause()
		}
	}
	return nil
}

// pauseTokens is the number of tokens hashed between two calls of Pause: 60 µs of SHA-256.
const pauseTokens = 16 << 10

// statuses looks up the keys as a match does.
func (look *Lookup) statuses(q *KnownQuery, dst *Known, p *objects.Profile, t *objects.Tenant) {
	dst.rows = slices.Grow(dst.rows[:0], len(dst.keys))[:len(dst.keys)]
	look.matchSegments(&MatchQuery{Keys: dst.keys, Device: q.Device, Local: true}, &MatchResult{Segments: dst.rows}, p, t)
}

// countKnown counts a search that found a number of spans. A span that is not a hit is
// rare: its segment was evicted meanwhile, or is in a tier that cannot be read now.
func (look *Lookup) countKnown(q *KnownQuery, dst *Known, spans int) {
	look.cat.Mu.Lock()
	defer look.cat.Mu.Unlock()
	n := &look.cat.Counters
	n.KnownSearches++
	n.KnownSegments += uint64(len(dst.Segments))
	n.KnownGone += uint64(spans - len(dst.Segments))
	n.KnownUntried += uint64(dst.Untried)
	for i := range dst.Segments {
		k := &dst.Segments[i]
		n.KnownTokens += uint64(k.SegmentStatus.Tokens)
		if k.Start > 0 && q.Primer != (profile.PrimerID{}) && k.Primed != (k.Start >= q.PrimedFrom) {
			n.HitSegmentsVariant++
		}
	}
}
