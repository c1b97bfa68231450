package connector

import (
	"context"

	"github.com/spliced-kv/spliced/connector/wire"
)

// Stat is a counter or gauge of the daemon.
type Stat struct {
	Name  string
	Value float64
}

// Stats asks the daemon for its counters, in its order.
func (c *Client) Stats(ctx context.Context) ([]Stat, error) {
	a := c.current()
	if a == nil || !a.retain() {
		c.counters.unavailable.Add(1)
		return nil, errNotAttached
	}
	defer a.release()
	k := c.call(ctx, c.opt.Timeouts.Lookup)
	defer c.put(k)
	k.op = wire.OpStats
	body, err := a.do(ctx, k, 0, &wire.StatsRequest{}, nil)
	if err != nil {
		return nil, err
	}
	var reply wire.StatsReply
	if err := a.decode(wire.OpStats, &reply, body); err != nil {
		return nil, err
	}
	out := make([]Stat, len(reply.Names))
	for i := range out {
		out[i] = Stat{reply.Names[i], reply.Values[i]}
	}
	return out, nil
}
