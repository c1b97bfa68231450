package fill

import (
	"context"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Commit copies chunks of one part into place and compares the digests of the written
// bytes with the client's digests. The commit that completes the last rank publishes the
// object, and starts its write to the lower tier if one of its commits asked for that.
// Commits of one reservation may run concurrently.
//
// A digest mismatch is ErrCorrupt. It aborts the object for all ranks, since the other
// chunks cannot be trusted either. A device failure aborts it too. A chunk that was
// committed before, or that its part does not have, is ErrInvalid and changes nothing. A
// commit whose context ended changes nothing and may be repeated. ErrGone means that the
// reservation does not exist any more, or ended during the copy.
func (c *Reservations) Commit(ctx context.Context, item CommitItem) (Committed, error) {
	s := c.fills
	s.cat.Mu.Lock()
	w, err := c.beginCommitLocked(&item)
	s.cat.Mu.Unlock()
	if err != nil {
		return Committed{}, err
	}
	defer s.cat.Running.Done()

	if !w.rows {
		began := s.cat.Config.Now()
		if err = w.copy(ctx, s.cat.Device, &item); err == nil {
			if item.own {
				item.Digests = w.got
			}
			w.filler.Object.Profile.Costs.Did(cost.JobPublish, w.dst.Len(), s.cat.Config.Now().Sub(began))
		}
	}

	s.cat.Mu.Lock()
	complete, err := s.endCommitLocked(w, &item, err)
	var answer Committed
	if complete && !packs(w.filler.Object) {
		answer, complete = s.publishLocked(w), false
	}
	s.cat.Mu.Unlock()
	if complete {
		answer, err = s.packAndPublish(ctx, w)
	}
	s.cat.Launch()
	return answer, err
}

// packAndPublish packs a complete segment and publishes it. The segment's memory stays
// allocated while it is packed.
func (fills *Fills) packAndPublish(ctx context.Context, w *writing) (Committed, error) {
	o := w.filler.Object
	digests := make([][]uint64, len(w.fill.Ranks))
	for i := range w.fill.Ranks {
		digests[i] = w.fill.Ranks[i].Digests // all digests are set, and no commit writes them any more
	}
	began := fills.cat.Config.Now()
	p, err := fills.pack(ctx, o, digests)
	took := fills.cat.Config.Now().Sub(began)

	fills.cat.Mu.Lock()
	defer fills.cat.Mu.Unlock()
	w.fill.Copying--
	switch {
	case w.fill.Dead:
		if w.fill.Copying == 0 {
			fills.unfillLocked(o)
		}
		return Committed{}, fmt.Errorf("%s: aborted while it was packed: %w", o.Name(), tier.ErrGone)
	case err != nil:
		fills.KillLocked(o, stats.CauseDevice)
		return Committed{}, err
	}
	n := fills.cat.Of(o.Profile)
	n.PackNanos += uint64(max(took, 0))
	plain := o.Bytes
	if p != nil {
		for i := range w.fill.Ranks {
			w.fill.Ranks[i].Digests = p.digests[i]
		}
		fills.cat.Objects.Pack(o, p.packed, p.parts, p.digests)
		n.Packed++
		n.PackedAwayBytes += uint64(plain - o.Bytes)
	}
	o.Profile.Costs.Holds(o.RankBytes*int64(o.Profile.Ranks), o.End-o.Begin)
	return fills.publishLocked(w), nil
}

// writing is the state of a commit between its two critical sections.
type writing struct {
	filler *objects.Filler
	fill   *objects.Fill
	chunks []objects.ChunkState // being written
	first  int                  // index of chunks[0] among all chunks of the share
	rows   bool                 // the part has rows that a stripped checkpoint already has, so nothing is copied
	dst    gpuipc.Ref
	got    []uint64 // digests of the written chunks; nil if the field rows is true
	sums   []uint64 // checksums of the written chunks by the client's hash, compared with the client's digests
}

// copy writes the chunks and hashes them. For a client that uses CRC-32 it reads the
// destination twice, which is safe since only the store writes there.
func (w *writing) copy(ctx context.Context, dev gpuipc.Device, item *CommitItem) error {
	w.got = make([]uint64, len(item.Digests))
	w.sums = w.got
	if err := dev.CopyDigests(ctx, w.dst, item.Src, w.got); err != nil || !item.CRC32 {
		return err
	}
	w.sums = make([]uint64, len(item.Digests))
	return dev.Checksums(ctx, w.dst, w.sums)
}

// beginCommitLocked checks a commit and marks its chunks. Until the commit ends, no other
// commit writes these chunks and their memory stays allocated.
func (c *Reservations) beginCommitLocked(item *CommitItem) (*writing, error) {
	s := c.fills
	if err := s.cat.OpenLocked(c.client); err != nil {
		return nil, err
	}
	f := c.held[item.Reservation]
	if f == nil {
		return nil, fmt.Errorf("reservation %d: %w", item.Reservation, tier.ErrGone)
	}
	o := f.Object
	l := o.Fill.Layout
	if item.Part < 0 || item.Part >= len(l.Parts) {
		return nil, fmt.Errorf("%s: part %d of %d: %w", o.Name(), item.Part, len(l.Parts), tier.ErrInvalid)
	}
	part := l.Parts[item.Part]
	n, have := len(item.Digests), gpuipc.Chunks(part.Len)
	if item.Level > tier.LevelSynced {
		return nil, fmt.Errorf("%s: acknowledgement level %d: %w", o.Name(), item.Level, tier.ErrInvalid)
	}
	if n == 0 || item.ChunkFirst < 0 || item.ChunkFirst > have-n {
		return nil, fmt.Errorf("%s part %d: chunks [%d, +%d) of %d: %w", o.Name(), item.Part, item.ChunkFirst, n, have, tier.ErrInvalid)
	}
	off := int64(item.ChunkFirst) * gpuipc.ChunkBytes
	length := min(int64(n)*gpuipc.ChunkBytes, part.Len-off)
	if item.Src.Len() != length {
		return nil, fmt.Errorf("%s part %d: %d bytes for chunks of %d: %w", o.Name(), item.Part, item.Src.Len(), length, tier.ErrInvalid)
	}
	first := l.FirstChunk[item.Part] + item.ChunkFirst
	chunks := f.Chunks[first : first+n]
	if i := slices.IndexFunc(chunks, func(st objects.ChunkState) bool { return st != objects.ChunkAbsent }); i >= 0 {
		return nil, fmt.Errorf("%s part %d: chunk %d comes twice: %w", o.Name(), item.Part, item.ChunkFirst+i, tier.ErrInvalid)
	}
	setChunks(chunks, objects.ChunkCopying)
	o.Fill.Copying++
	s.cat.Running.Add(1)
	w := &writing{filler: f, fill: o.Fill, chunks: chunks, first: first}
	if o.Phase == objects.Stripped {
		// The layout of the writer may have other rows than the object's, but it has the
		// same parts in the same order.
		l = o.Layout()
		part, w.first, w.rows = l.Parts[item.Part], l.FirstChunk[item.Part]+item.ChunkFirst, plan.IsRows(part.Kind)
	}
	if !w.rows {
		w.dst = s.cat.Objects.Memory.Ref(&o.Shares[f.Rank]).Slice(part.Off+off, length)
	}
	return w, nil
}

// endCommitLocked ends a commit after its copy, also if the fill was aborted meanwhile. The
// result complete is true if this was the last commit of its object. If the complete object
// is to be packed, its memory stays allocated until packing has ended.
func (fills *Fills) endCommitLocked(w *writing, item *CommitItem, err error) (complete bool, _ error) {
	o := w.filler.Object
	w.fill.Copying--
	if w.fill.Dead {
		if w.fill.Copying == 0 {
			fills.unfillLocked(o)
		}
		return false, fmt.Errorf("%s: aborted during a commit: %w", o.Name(), tier.ErrGone)
	}
	if err != nil {
		return false, fills.failCommitLocked(w, err)
	}
	if i := gpuipc.FirstDifference(w.sums, item.Digests); i >= 0 {
		fills.KillLocked(o, stats.CauseCorrupt)
		return false, fmt.Errorf("%s rank %d part %d chunk %d: digest %016x, its writer says %016x: %w",
			o.Name(), w.filler.Rank, item.Part, item.ChunkFirst+i, w.sums[i], item.Digests[i], tier.ErrCorrupt)
	}
	if !w.rows {
		copy(w.filler.Digests[w.first:], w.got)
	}
	setChunks(w.chunks, objects.ChunkDone)
	n := fills.cat.Of(o.Profile)
	n.CommittedChunks += uint64(len(item.Digests))
	n.CommittedBytes += uint64(w.dst.Len())
	level := item.Level
	if level == tier.LevelDefault {
		level = fills.cat.Config.DefaultLevel
	}
	w.fill.Level = max(w.fill.Level, level)
	if w.filler.Left -= len(item.Digests); w.filler.Left > 0 {
		return false, nil
	}
	if w.fill.Left--; w.fill.Left > 0 {
		return false, nil
	}
	if packs(o) {
		w.fill.Copying++
		fills.cat.Objects.Deadlines.Remove(&o.Until) // the writer is done
	}
	return true, nil
}

// publishLocked publishes the object of a complete fill.
func (fills *Fills) publishLocked(w *writing) Committed {
	o, n := w.filler.Object, fills.cat.Of(w.filler.Object.Profile)
	for i := range w.fill.Ranks {
		f := &w.fill.Ranks[i]
		delete(f.Of, f.ID)
		o.Shares[i].Digests = f.Digests
	}
	n.Published++
	n.PublishedBytes += uint64(o.Bytes)
	why := decision.Filled
	if o.Phase == objects.Stripped {
		why = decision.FilledAgain
		fills.cat.Counters.StrippedFilled++
	}
	fills.cat.Objects.Publish(o, fills.cat.Config.Now(), why)
	durable := fills.acknowledgeLocked(o, w.fill.Level)
	fills.offloads.OffloadLocked(o, move.Published, nil)
	object := tier.Want{Name: o.Label(), Fingerprint: o.Profile.Fingerprint(), Tenant: o.Tenant.ID}
	return Committed{Published: true, Object: object, Durable: durable}
}

// acknowledgeLocked starts to write a complete object to the lower tier if its level or
// write-behind requires it. If the tier refuses now, the object stays dirty. The result is
// nil if no client has to wait.
func (fills *Fills) acknowledgeLocked(o *objects.Object, level tier.Level) *move.Durable {
	switch {
	case fills.cat.Config.Lower == nil || o.Profile.Trial:
	case level > tier.LevelMemory:
		return fills.writes.DurableLocked(o, level, true)
	case fills.cat.Objects.Policies.WriteBehind:
		_ = fills.writes.WantLocked(o, tier.LevelLogged, false)
	}
	return nil
}

// failCommitLocked handles a failed copy. A copy ended by its context may be repeated;
// after any other error the memory cannot be trusted.
func (fills *Fills) failCommitLocked(w *writing, err error) error {
	o := w.filler.Object
	if tier.ContextEnded(err) {
		setChunks(w.chunks, objects.ChunkAbsent)
	} else {
		fills.KillLocked(o, stats.CauseDevice)
	}
	return tier.DeviceError(fmt.Sprintf("%s: commit", o.Name()), err)
}

func setChunks(chunks []objects.ChunkState, to objects.ChunkState) {
	for i := range chunks {
		chunks[i] = to
	}
}
