package remote

import (
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// ServedPrefix reports to the daemon a prompt of a number of tokens that was served from
// the last loaded checkpoint, which covers the first reused ones, 0 = none. first is the
// time to its first token.
func (s *Store) ServedPrefix(tokens, reused int, first time.Duration) error {
	q := connector.Served{Way: wire.WayRecompute, Tokens: tokens, Prefix: reused, PrefixReason: s.found.PrefixReason, First: first}
	if reused > 0 {
		q.Way, q.PrefixTier = wire.WayPrefix, s.found.PrefixTier
	}
	_, err := s.model.Served(s.ctx, &q)
	return err
}

// ServedSplice reports to the daemon a prompt of a number of tokens whose segments were
// matched last. first is the time to its first token. The engine computed the tokens before
// the segments itself.
func (s *Store) ServedSplice(tokens int, r *refengine.Result, first time.Duration) error {
	q := connector.Served{Way: wire.WayRecompute, Tokens: tokens, Engine: r.Plan.Begin, First: first}
	for i, p := range r.Parts {
		row := connector.ServedSegment{Begin: p.Begin, Tokens: p.Tokens, At: p.At, Reused: p.Reused, Key: p.Key}
		if i < len(s.found.Segments) {
			row.Tier, row.Reason = s.found.Segments[i].Tier, s.found.Segments[i].Reason
		}
		if p.Reused > 0 {
			q.Way = wire.WaySplice
		}
		q.Segments = append(q.Segments, row)
	}
	_, err := s.model.Served(s.ctx, &q)
	return err
}
