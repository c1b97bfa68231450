package connector

import (
	"context"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
)

// Stat is a counter or gauge of the daemon.
type Stat struct {
	Name  string
	Value float64
}

// Stats returns the daemon's counters, in the order in which the daemon sends them.
func (c *Client) Stats(ctx context.Context) ([]Stat, error) {
	a := c.current()
	if a == nil || !a.Retain() {
		return nil, link.ErrNotAttached
	}
	defer a.Release()
	k := a.Get(ctx, wire.OpStats, c.opt.Timeouts.Lookup)
	defer a.Put(k)
	var reply wire.StatsReply
	if err := a.Ask(ctx, k, 0, &wire.StatsRequest{}, &reply); err != nil {
		return nil, err
	}
	out := make([]Stat, len(reply.Names))
	for i := range out {
		out[i] = Stat{reply.Names[i], reply.Values[i]}
	}
	return out, nil
}
