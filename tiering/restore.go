package tiering

import (
	"context"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
)

// Stripping frees the pages of a checkpoint's states, except states that share a page with
// rows. These leftover states are not valid. A client may have started to save the node
// again, from another run, and the copy in the lower tier may be of another run than the copy
// that was in memory. Restoring a node therefore writes all of its states: a save writes them
// by commits, a promotion writes those that share a page by a patch.
//
// While a patch runs, the node counts as being filled by the promotion, even if the promotion
// ends meanwhile. No other writer may write to the node, and its memory stays allocated.

// restoreLocked returns a promotion that restores the states of a stripped node o. The second
// result is false if the lower tier does not have the node, or if the node cannot be restored
// now.
func (pro *promotions) restoreLocked(o *objects.Object, w wanted) ([]*promotion, bool) {
	if o.Phase != objects.Stripped || o.Fill != nil || !pro.objects.Names.Sound(o) {
		return nil, false
	}
	e, held := pro.objects.Below.Of(o)
	if !held || !w.profile.Fits(&e) {
		return nil, false
	}
	p := pro.newPromotion(&e, w)
	p.into = o
	return []*promotion{p}, true
}

// restoreStatesLocked moves the state pages that a promotion has read into the stripped
// node, after the patch. It takes them from the placeholder object p.object, and then
// frees that object. The rows of the placeholder are not used, since others may be reading
// the rows of the node.
func (pro *promotions) restoreStatesLocked(p *promotion) {
	from, o := p.object, p.into
	l := o.Layout()
	for i := range o.Shares {
		rest, states := objects.Punch(from.Shares[i].Extents, l.StatePages)
		from.Shares[i].Extents = rest
		o.Shares[i].Extents = objects.Mend(o.Shares[i].Extents, states)
		digests := slices.Clone(o.Shares[i].Digests)
		for k := range l.Parts {
			if !plan.IsRows(l.Parts[k].Kind) {
				copy(digests[l.FirstChunk[k]:l.FirstChunk[k+1]], from.Shares[i].Digests[l.FirstChunk[k]:])
			}
		}
		o.Shares[i].Digests = digests
	}
	pro.objects.Accounts.Resize(from, -o.StatePages, -o.StateBytes)
	pro.objects.Accounts.Resize(o, o.StatePages, o.StateBytes)
	pro.counters.StrippedPromoted++
	p.object = o
	from.Fill = nil
	pro.objects.Account(from)
}

// patch copies the states that share pages with rows, from the memory that a promotion has
// read into to its stripped node.
func (pro *promotions) patch(ctx context.Context, p *promotion) error {
	pro.mu.Lock()
	from, to := pro.beginPatchLocked(p)
	o := p.into
	pro.mu.Unlock()
	if len(from) == 0 {
		return nil
	}
	var err error
	for rank := range from {
		if err = pro.plans.Memory.Copy(ctx, to[rank], from[rank]); err != nil {
			break
		}
	}
	pro.mu.Lock()
	pro.endPatchLocked(o)
	pro.mu.Unlock()
	return err
}

// beginPatchLocked returns the ranges to copy, by rank. It returns none if the promotion
// is not of a stripped node or if no states share a page with rows.
func (pro *promotions) beginPatchLocked(p *promotion) (from, to []gpuipc.Ref) {
	o := p.into
	if o == nil {
		return nil, nil
	}
	edges := o.Layout().StateEdges
	if len(edges) == 0 {
		return nil, nil
	}
	for i := range o.Shares {
		from = append(from, objects.Gather(pro.objects.Memory.Ref(&p.object.Shares[i]), edges))
		to = append(to, objects.Gather(pro.objects.Memory.Ref(&o.Shares[i]), edges))
	}
	o.Fill = &objects.Fill{Promoted: true, Copying: 1}
	pro.objects.Account(o)
	return from, to
}

func (pro *promotions) endPatchLocked(o *objects.Object) {
	o.Fill = nil
	pro.objects.Account(o)
}
