package tiering

import (
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A checkpoint that one other extends may lose its states and convolution tails:
// the child has its own, and needs no more than the rows (Marconi, section 4.3:
// eviction of a node with one child gives back its states, the child absorbs its
// rows). What is left is no hit. It becomes whole again when somebody saves its
// hash or when it is promoted, and leaves with the last that extends it.
//
//	whole ──► thin ──► whole: saved again, or promoted
//	            └────► free: its last child has left
//
// Only whole pages go; what lies on one page with rows stays, see patch.go. The extents of a
// stripped share have holes in their place, so that offsets into it stay as they
// are. Slices of extents and of digests are never changed, only replaced: answers
// and operations that name them may be on their way.
//
// Invariant: what is leased, or whose states somebody reads, is whole.

// hole is the offset of an extent that has no memory.
const hole = -1

// mayStrip tells whether a node with one child can lose its states. With a lower
// tier only what that holds may.
func (s *Store) mayStrip(o *object) bool {
	return o.statePages > 0 && o.write == nil && !o.corrupt && (s.cfg.Lower == nil || o.stored != 0)
}

// stripLocked takes an idle node's states out of memory.
func (s *Store) stripLocked(o *object, way eviction) {
	s.leftLocked(o, decision.Strip, way, o.statePages)
	s.counters.Thinned++
	s.counters.ThinnedBytes += uint64(o.stateBytes)
	s.endReadAheadLocked(o, &s.counters.ReadAheadWasted)
	s.leftHBMLocked(o, tier.ReasonEvicted)
	o.on(evStrip)
	s.rankLocked(o)
	s.freeStatesLocked(o)
	s.revalueChildLocked(o)
}

// refillLocked gives a stripped node memory for its states again, to be filled as
// want says.
func (s *Store) refillLocked(o, want *object, l *plan.PartMap, now time.Time) error {
	if want.end != o.end {
		return fmt.Errorf("%s: %d tokens, its hash stands for %d: %w", o.name(), want.end, o.end, tier.ErrInvalid)
	}
	states := object{
		key: o.key, kind: o.kind, profile: o.profile, tenant: o.tenant, pool: o.pool, end: o.end,
		size: size{bytes: o.stateBytes, pageBytes: o.statePages},
	}
	o.ops++ // so that making room does not take it, or what it extends
	s.settleLocked(o)
	err := s.makeRoomLocked(&states, spared{})
	if err == nil {
		s.allocateStatesLocked(o)
		o.fill = newFill(want, l)
		s.expectLocked(o, now)
	} else {
		s.refuseLocked(&states, err)
	}
	o.ops--
	s.settleLocked(o)
	return err
}

// allocateStatesLocked fills the holes of a stripped node with pages of any content.
func (s *Store) allocateStatesLocked(o *object) {
	ranks := int64(len(o.shares))
	for i := range o.shares {
		o.shares[i].extents = mend(o.shares[i].extents, s.allocatePagesLocked(o, o.stateBytes/ranks))
	}
	s.resizeLocked(o, o.statePages, o.stateBytes)
}

// freeStatesLocked gives them back.
func (s *Store) freeStatesLocked(o *object) {
	states := o.layout().StatePages
	for i := range o.shares {
		kept, given := punch(o.shares[i].extents, states)
		s.freePagesLocked(given)
		o.shares[i].extents = kept
	}
	s.resizeLocked(o, -o.statePages, -o.stateBytes)
}

// restoreLocked is the promotion of a stripped node, which the lower tier still has.
func (s *Store) restoreLocked(o *object, w wanted) ([]*promotion, bool) {
	if o.phase != stripped || o.fill != nil || !s.soundLocked(o) {
		return nil, false
	}
	e, held := s.belowLocked(o)
	if !held || !w.profile.fits(&e) {
		return nil, false
	}
	p := s.newPromotion(&e, w)
	p.into = o
	return []*promotion{p}, true
}

// restoreStatesLocked moves the states that a promotion has read from the object that it
// read into, which is then free, to the stripped node, behind a patch. The rows that
// were read with them are not needed: others may be reading the node's own.
func (s *Store) restoreStatesLocked(p *promotion) {
	from, o := p.object, p.into
	l := o.layout()
	for i := range o.shares {
		rest, states := punch(from.shares[i].extents, l.StatePages)
		from.shares[i].extents = rest
		o.shares[i].extents = mend(o.shares[i].extents, states)
		digests := slices.Clone(o.shares[i].digests)
		for k := range l.Parts {
			if !plan.IsRows(l.Parts[k].Kind) {
				copy(digests[l.FirstChunk[k]:l.FirstChunk[k+1]], from.shares[i].digests[l.FirstChunk[k]:])
			}
		}
		o.shares[i].digests = digests
	}
	s.resizeLocked(from, -o.statePages, -o.stateBytes)
	s.resizeLocked(o, o.statePages, o.stateBytes)
	s.counters.ThinnedPromoted++
	p.object = o
	from.fill = nil
	s.settleLocked(from)
}

// restoredLocked ends that a node is stripped; its states are there. What extends it
// can be written to the lower tier again, and is asked for at once while each node
// has one child, else after its next use.
func (s *Store) restoredLocked(o *object) {
	o.on(evRestore)
	s.revalueChildLocked(o)
	for o.children == 1 {
		o = s.objects.Get(o.kids)
		o.refused = false
		s.rankLocked(o)
	}
}

// revalueChildLocked follows what a hit on the only child of a node saves, and
// what its leaving gives back. With several children nothing is done: their
// values are right again after their next change.
func (s *Store) revalueChildLocked(o *object) {
	if o.children == 1 {
		s.revalueLocked(s.objects.Get(o.kids))
	}
}

// dropPlaceholderLocked takes out a stripped node that nothing extends any more.
func (s *Store) dropPlaceholderLocked(o *object) {
	if o.phase != stripped || o.children > 0 || o.class != classIdle {
		return
	}
	s.decideLocked(o, decision.Drop, decision.Childless, o.pageBytes)
	s.counters.ThinnedDropped++
	s.counters.ThinnedDroppedBytes += uint64(o.bytes)
	s.unlinkLocked(o, tier.ReasonEvicted)
}

// resizeLocked changes what an object costs its pool and its tenant.
func (s *Store) resizeLocked(o *object, pages, bytes int64) {
	if o.cleaning == candidate || o.ahead {
		panic(fmt.Sprintf("tiering: %s changes its size while it is dirty or read ahead", o.name()))
	}
	o.pageBytes += pages
	o.bytes += bytes
	o.pool.used += pages
	o.pool.bytes[o.class] += pages
	o.tenant.used[o.pool.number] += bytes
	if o.pins > 0 {
		o.pool.pinned += pages
		o.tenant.pinned += bytes
	}
}

// punch parts a share's extents at runs of it: kept has holes in their place,
// given is their memory. Runs are in order and of whole pages.
func punch(extents, runs []gpuipc.Extent) (kept, given []gpuipc.Extent) {
	at := int64(0) // of e in the share
	for _, e := range extents {
		for e.Len > 0 {
			for len(runs) > 0 && runs[0].Off+runs[0].Len <= at {
				runs = runs[1:]
			}
			switch {
			case len(runs) == 0 || runs[0].Off >= at+e.Len:
				kept = append(kept, e)
				at, e.Len = at+e.Len, 0
				continue
			case runs[0].Off > at:
				n := runs[0].Off - at
				kept = append(kept, gpuipc.Extent{Off: e.Off, Len: n})
				at, e.Off, e.Len = at+n, e.Off+n, e.Len-n
			}
			n := min(e.Len, runs[0].Off+runs[0].Len-at)
			given = append(given, gpuipc.Extent{Off: e.Off, Len: n})
			if last := len(kept) - 1; last >= 0 && kept[last].Off == hole {
				kept[last].Len += n
			} else {
				kept = append(kept, gpuipc.Extent{Off: hole, Len: n})
			}
			at, e.Off, e.Len = at+n, e.Off+n, e.Len-n
		}
	}
	return kept, given
}

// mend puts memory into the holes of extents, in order.
func mend(extents, memory []gpuipc.Extent) []gpuipc.Extent {
	out := make([]gpuipc.Extent, 0, len(extents)+len(memory))
	memory = slices.Clone(memory)
	for _, e := range extents {
		if e.Off != hole {
			out = append(out, e)
			continue
		}
		for left := e.Len; left > 0; {
			n := min(left, memory[0].Len)
			out = append(out, gpuipc.Extent{Off: memory[0].Off, Len: n})
			left -= n
			if memory[0].Off, memory[0].Len = memory[0].Off+n, memory[0].Len-n; memory[0].Len == 0 {
				memory = memory[1:]
			}
		}
	}
	return out
}
