package connector

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// A Checkpoint is a saved prefix leased for reading: a chain of nodes from the start of the
// prompt to its last token.
type Checkpoint struct {
	held
	Kind   Accept // Exact, Spliced or Rows
	Tokens int    // tokens covered
	Nodes  []Node
}

// A Node is one link of a checkpoint: the attention rows of tokens [Begin, End). Only the last
// node's states and convolution tails are used. The states of other nodes may be missing from
// memory; Part and Read then refuse them. A node of kind Rows has rows of linear layers instead
// of states (profile.EdgeLayout).
type Node struct {
	object
	Kind       Accept
	Begin, End int
}

// States returns the number of tokens covered by the checkpoint's stored states. States of
// later tokens are rebuilt from rows, by ReplayRows.
func (c *Checkpoint) States() int {
	for i := len(c.Nodes) - 1; i >= 0; i-- {
		if c.Nodes[i].Kind != Rows {
			return c.Nodes[i].End
		}
	}
	return 0
}

// ReplayRows returns the states and convolution tails after the given number of tokens of a
// checkpoint of kind Rows; token is between c.States() and c.Tokens. The result has the layout
// profile.CheckpointLayout(0) and is bit-identical to decoding token by token. into has the
// meaning of ComposeQuery.Into.
func (m *Model) ReplayRows(ctx context.Context, c *Checkpoint, token int, into *Slot) (*Slot, error) {
	if c.Kind != Rows || token < c.States() || token > c.Tokens {
		return nil, invalid("replay to token %d of a checkpoint with states of %d and %d tokens", token, c.States(), c.Tokens)
	}
	r, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer r.a.Release()
	lease, err := c.lease(r.a)
	if err != nil {
		return nil, err
	}
	return m.replay(ctx, r, &wire.ReplayRequest{Buffer: lease, Token: uint32(token)}, into, func(error) {})
}

// Release releases the checkpoint; see Lease.Release.
func (c *Checkpoint) Release() {
	if c != nil {
		c.release()
	}
}

// Valid is Lease.Valid for a checkpoint.
func (c *Checkpoint) Valid() bool { return c != nil && c.valid() }

// Last returns the node whose states and convolution tails are the checkpoint's.
func (c *Checkpoint) Last() *Node { return &c.Nodes[len(c.Nodes)-1] }

// Load leases the checkpoint of a prefix. It returns false if no checkpoint of an accepted kind
// exists.
func (m *Model) Load(ctx context.Context, hash profile.PrefixHash, accept Accept, o AcquireOptions) (*Checkpoint, bool, error) {
	r, k, err := m.begin(ctx, wire.OpLoad, m.client.timeout(o))
	if err != nil {
		return nil, false, err
	}
	defer r.end(k)
	k.Late.GiveBack = true
	until := o.until()
	q := &wire.LoadRequest{
		Profile: r.profile, Rank: uint32(m.binding.Rank), Accept: uint8(accept.known(r.a)),
		TTLMs: milliseconds(o.TTL), Digests: flag(o.Digests), Hash: hash,
	}
	var reply wire.LoadReply
	switch err := r.ask(ctx, k, q, &reply); {
	case errors.Is(err, ErrMiss):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	point, err := m.checkpoint(r, &reply)
	if err != nil {
		r.a.BrokeProtocol(err)
		return nil, false, fmt.Errorf("load: %v: %w", err, ErrUnavailable)
	}
	point.until = until
	return point, true, nil
}

// checkpoint converts a reply into a Checkpoint. It checks that the nodes together cover [0,
// tokens) without gaps and that each node has the size of its layout.
func (m *Model) checkpoint(r *registration, reply *wire.LoadReply) (*Checkpoint, error) {
	kinds := reply.Rows.Kinds
	if !reply.Rows.Present { // all nodes have states
		kinds = slices.Repeat([]uint8{reply.Kind}, len(reply.NodeBegin))
	}
	c := &Checkpoint{
		held: held{a: r.a, tenant: r.tenant, id: reply.Lease},
		Kind: Accept(reply.Kind), Tokens: int(reply.Tokens), Nodes: make([]Node, len(reply.NodeBegin)),
	}
	at, extent, digest := uint32(0), uint32(0), uint32(0)
	for i := range c.Nodes {
		begin, end := reply.NodeBegin[i], reply.NodeEnd[i]
		if begin != at || end <= begin || end > profile.MaxTokens {
			return nil, fmt.Errorf("node %d covers [%d, %d), want it to begin at %d", i, begin, end, at)
		}
		n := &c.Nodes[i]
		n.Kind, n.Begin, n.End = Accept(kinds[i]), int(begin), int(end)
		layout := m.layoutOf(n.Kind, n.End-n.Begin)
		last := extent + reply.ExtentCount[i]
		inner := i < len(c.Nodes)-1 && n.Kind != Rows && Accept(kinds[i+1]) != Rows // a Rows node is rebuilt from the states of its parent
		e, err := newExtents(reply.ExtentOff[extent:last], reply.ExtentLen[extent:last], uint64(layout.Bytes), len(r.a.Arena.Bytes()), inner)
		if err == nil && inner {
			err = e.rows(&layout)
		}
		if err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
		if n.object, err = newObject(&c.held, layout, e, reply.Digest[digest:digest+reply.DigestCount[i]]); err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
		at, extent, digest = end, last, digest+reply.DigestCount[i]
	}
	if n := len(c.Nodes); n > 0 && c.Nodes[n-1].Kind != c.Kind {
		return nil, fmt.Errorf("a checkpoint of kind %d ends with a node of kind %d", c.Kind, c.Nodes[n-1].Kind)
	}
	if at != reply.Tokens || at == 0 {
		return nil, fmt.Errorf("nodes cover %d tokens, want %d", at, reply.Tokens)
	}
	if !r.a.Retain() {
		return nil, fmt.Errorf("the mappings are gone")
	}
	return c, nil
}

// layoutOf returns the layout of a node of this kind with this many rows.
func (m *Model) layoutOf(kind Accept, rows int) profile.Layout {
	if kind == Rows {
		return m.profile.EdgeLayout(rows)
	}
	return m.profile.CheckpointLayout(rows)
}

// rows returns an error if some attention rows of a node are not in memory.
func (e extents) rows(layout *profile.Layout) error {
	for i := range layout.Parts {
		if p := &layout.Parts[i]; (p.Kind == profile.PartK || p.Kind == profile.PartV) && !e.held(p.Off, p.Len) {
			return fmt.Errorf("part %d of layer %d is not in memory", p.Kind, p.Layer)
		}
	}
	return nil
}
