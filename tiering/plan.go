package tiering

import (
	"fmt"
	"math"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// planScope is for whom a plan is carried out.
type planScope struct {
	profile *profileState
	tenant  *tenant
	rank    int
}

// heldPlan is a plan whose leases have been looked up. Every object in it is
// held: its memory cannot go away until drop.
type heldPlan struct {
	planScope
	spans []heldSpan
	base  *object    // the checkpoint it begins from
	chain []heldNode // base and those it extends, from the root
	held  []*object
	rows  int  // tokens of segment spans
	seams int  // recomputed spans
	above bool // carried out in HBM
}

// heldSpan is a span and the segment that its lease names.
type heldSpan struct {
	Span
	heldNode     // object is nil when recomputed
	turn     int // prompt position of the whole segment's token 0
}

// heldNode is an object with its layout and where this rank's share lay when it
// was held: a stripped node may be filled again meanwhile.
type heldNode struct {
	object  *object
	layout  *plan.PartMap
	extents []gpuipc.Extent
}

// check refuses gaps and overlaps: each span begins where the one before ended.
func (pl *Plan) check() error {
	if pl.Begin < 0 || pl.End < pl.Begin || pl.End > profile.MaxTokens {
		return fmt.Errorf("plan of tokens [%d, %d): %w", pl.Begin, pl.End, tier.ErrInvalid)
	}
	at := pl.Begin
	for i := range pl.Spans {
		sp := &pl.Spans[i]
		if sp.Kind != SpanSegment && sp.Kind != SpanRecompute {
			return fmt.Errorf("span %d: kind %d: %w", i, sp.Kind, tier.ErrInvalid)
		}
		if sp.Count < 1 || sp.Start != at || sp.Count > pl.End-at {
			return fmt.Errorf("span %d: %d tokens at %d, expected at %d of [%d, %d): %w",
				i, sp.Count, sp.Start, at, pl.Begin, pl.End, tier.ErrInvalid)
		}
		at += sp.Count
	}
	if at != pl.End {
		return fmt.Errorf("plan of tokens [%d, %d) ends at %d: %w", pl.Begin, pl.End, at, tier.ErrInvalid)
	}
	return nil
}

// shape counts what the sizes of answers depend on.
func (pl *Plan) shape() (rows, seams int) {
	for i := range pl.Spans {
		if pl.Spans[i].Kind == SpanSegment {
			rows += pl.Spans[i].Count
		} else {
			seams++
		}
	}
	return rows, seams
}

// hold looks up the leases of a plan and holds what they name. The caller drops
// the plan when its last read of memory has ended.
// It runs where they lie, or where its answer goes if there are none.
func (c *Session) hold(sc planScope, from From, pl *Plan, answer gpuipc.Region) (*heldPlan, error) {
	if err := pl.check(); err != nil {
		return nil, err
	}
	h := &heldPlan{planScope: sc, spans: make([]heldSpan, len(pl.Spans))}
	h.rows, h.seams = pl.shape()
	now := c.store.cfg.Now()
	c.store.mu.Lock()
	err := c.holdLocked(h, from, pl, answer, now)
	c.store.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for i := range h.chain {
		h.chain[i].layout = h.chain[i].object.layout()
	}
	for i := range h.spans {
		if n := &h.spans[i].heldNode; n.object != nil {
			n.layout = n.object.layout()
		}
	}
	return h, nil
}

func (c *Session) holdLocked(h *heldPlan, from From, pl *Plan, answer gpuipc.Region, now time.Time) error {
	if err := c.openLocked(); err != nil {
		return err
	}
	if err := c.resolveLocked(h, from, pl, now); err != nil {
		return err
	}
	if err := c.store.oneDeviceOf(h, answer); err != nil {
		return err
	}
	c.store.running.Add(1)
	for _, o := range h.held {
		o.ops++
		c.store.settleLocked(o)
	}
	return nil
}

func (c *Session) resolveLocked(h *heldPlan, from From, pl *Plan, now time.Time) error {
	if from.Kind == FromCheckpoint {
		if err := c.resolveBaseLocked(h, from.Lease, pl, now); err != nil {
			return err
		}
	}
	whole := 0 // end of the last whole segment
	for i := range pl.Spans {
		sp := &h.spans[i]
		sp.Span = pl.Spans[i]
		if sp.Kind == SpanRecompute {
			continue
		}
		l, err := c.useLeaseLocked(sp.Lease, &h.planScope, now)
		if err != nil {
			return fmt.Errorf("span %d: %w", i, err)
		}
		if whole, err = sp.place(l.object, whole); err != nil {
			return fmt.Errorf("span %d: %w", i, err)
		}
		sp.extents = l.object.shares[h.rank].extents
		h.held = append(h.held, l.object)
	}
	return nil
}

// place checks that a segment can stand at its span and answers the end of the
// whole segment. Tokens before whole belong to another segment.
func (sp *heldSpan) place(o *object, whole int) (int, error) {
	switch {
	case o.kind != 0:
		return 0, fmt.Errorf("lease %d is of a checkpoint: %w", sp.Lease, tier.ErrInvalid)
	case sp.Count != o.tokens():
		return 0, fmt.Errorf("%d tokens for %s, whose interior has %d: %w", sp.Count, o.name(), o.tokens(), tier.ErrInvalid)
	case o.spec.Role == profile.RoleFirst && sp.Start != 0:
		return 0, fmt.Errorf("%s was captured to stand first, not at %d: %w", o.name(), sp.Start, tier.ErrInvalid)
	}
	sp.object = o
	sp.turn = sp.Start - o.begin
	if sp.turn < whole {
		return 0, fmt.Errorf("%s begins at %d with its head of %d tokens, before %d: %w", o.name(), sp.turn, o.begin, whole, tier.ErrInvalid)
	}
	return sp.turn + o.spec.Tokens, nil
}

// resolveBaseLocked finds the checkpoint that a plan begins from.
func (c *Session) resolveBaseLocked(h *heldPlan, id tier.LeaseID, pl *Plan, now time.Time) error {
	l, err := c.useLeaseLocked(id, &h.planScope, now)
	if err != nil {
		return err
	}
	o := l.object
	if o.kind == 0 || o.end != pl.Begin {
		return fmt.Errorf("%s as the first %d tokens: %w", o.name(), pl.Begin, tier.ErrInvalid)
	}
	h.base = o
	h.held = append(h.held, o)
	h.chain = make([]heldNode, o.depth)
	for i := o.depth - 1; i >= 0; i-- {
		h.chain[i].object, h.chain[i].extents = o, o.shares[h.rank].extents
		o = o.parent
	}
	return nil
}

// drop lets go of what hold has held, and counts the operation if it succeeded.
func (s *Store) drop(h *heldPlan, counter *uint64, err *error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *err == nil {
		*counter++
	}
	for _, o := range h.held {
		o.ops--
		s.settleLocked(o)
	}
	s.running.Done()
}

// turns computes the rotations of one call, each (rope, distance) once.
type turns struct {
	profile *profileState
	known   map[turnKey]*gpuipc.Rotation
}

type turnKey struct{ rope, by int }

// by is the turn of a layer's keys by a distance in tokens; nil = none. Angles
// are computed in float64: at position 10^6 a float32 angle is off by 0.06.
func (t *turns) by(layer, distance int) *gpuipc.Rotation {
	rope := t.profile.rope[layer]
	if rope < 0 || distance == 0 {
		return nil
	}
	key := turnKey{rope, distance}
	if r := t.known[key]; r != nil {
		return r
	}
	spec := &t.profile.turns[rope]
	n := len(spec.invFreq)
	r := &gpuipc.Rotation{Dims: spec.dims, Interleaved: spec.interleaved, Cos: make([]float32, n), Sin: make([]float32, n)}
	for i, f := range spec.invFreq {
		sin, cos := math.Sincos(float64(distance) * f)
		r.Cos[i], r.Sin[i] = float32(cos), float32(sin)
	}
	if t.known == nil {
		t.known = map[turnKey]*gpuipc.Rotation{}
	}
	t.known[key] = r
	return r
}

// part names one tensor of a rank's share to the device.
func (s *Store) part(n *heldNode, rank, layer int, kind profile.PartKind) (gpuipc.Ref, profile.Part) {
	part, ok := n.layout.Part(layer, kind)
	if !ok {
		panic(fmt.Sprintf("tiering: %s has no part %d of layer %d", n.object.name(), kind, layer))
	}
	ref := gpuipc.Ref{Region: s.regionOf(n.object), Extents: n.extents}.Slice(part.Off, part.Len)
	for _, e := range ref.Extents {
		if e.Off == hole {
			panic(fmt.Sprintf("tiering: part %d of layer %d of %s is not in memory", kind, layer, n.object.name()))
		}
	}
	return ref, part
}
