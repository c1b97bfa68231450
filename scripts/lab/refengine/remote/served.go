package remote

import (
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// ServedPrefix reports to the daemon how a prompt was served. tokens is the number of tokens of
// the prompt. reused is the number of its leading tokens that came from the last loaded
// checkpoint; 0 = no checkpoint. first is the time to the first token.
func (s *Store) ServedPrefix(tokens, reused int, first time.Duration) error {
	q := connector.Served{Way: wire.WayRecompute, Tokens: tokens, Prefix: reused, PrefixReason: s.found.PrefixReason, First: first}
	if reused > 0 {
		q.Way, q.PrefixTier = wire.WayPrefix, s.found.PrefixTier
	}
	_, err := s.model.Served(s.ctx, &q)
	return err
}

// ServedSplice reports to the daemon how a prompt of the given number of tokens was served. The
// prompt has the segments of the last Match. first is the time to the first token. The tokens
// before the segments count as reused from the engine's own cache.
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
