package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/codec"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// pieceBytes is one read of the disk. Smaller ones cost more calls, larger ones
// leave less to do meanwhile (guess: that of fio's usual block).
const pieceBytes = 1 << 20

// readEntry fills dst with the bytes of an entry that is held.
func (v *volume) readEntry(ctx context.Context, t *Tier, e *entry, dst []gpuipc.Ref) (*tier.Content, error) {
	r := &reading{vol: v, dev: t.cfg.Device, e: e, dst: dst, workers: t.cfg.Workers}
	r.header = slab.AlignedBuffer(int(e.headerBytes))
	defer r.close()
	for i := range dst {
		view, err := openView(ctx, r.dev, dst[i], true)
		if view != nil {
			r.views = append(r.views, view)
		}
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w: %w", i, err, tier.ErrUnavailable)
		}
	}
	layout := e.model.layout(e.Kind, e.end-e.begin)
	if layout.Bytes != e.rankBytes {
		return nil, fmt.Errorf("%d bytes a rank, its profile says %d: %w", e.rankBytes, layout.Bytes, tier.ErrCorrupt)
	}
	r.chunks = chunksOf(&layout, e.ranks)
	r.digests = make([]uint64, len(r.chunks))
	var m *extent.Manifest
	var err error
	if e.coded {
		m, err = r.coded(ctx, &layout)
	} else {
		m, err = r.plain(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := r.compare(m); err != nil {
		return nil, err
	}
	return &tier.Content{Publisher: m.Publisher, Tokens: m.Tokens, Digests: m.Digests}, nil
}

// reading is one read of an entry.
type reading struct {
	vol     *volume
	dev     gpuipc.Device
	e       *entry
	dst     []gpuipc.Ref
	views   []*view
	workers int
	header  []byte
	chunks  []chunk
	digests []uint64 // of what came to lie in dst, by chunk
}

func (r *reading) close() {
	for _, v := range r.views {
		v.close()
	}
}

// transfer reads from the entry's runs and sorts errors.
func (r *reading) transfer(off int64, bufs [][]byte) error {
	end := r.vol.reads.begin()
	err := r.vol.set.Read(r.e.runs, off, bufs)
	end()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		// A slab that became shorter: what was there is gone for good.
		return fmt.Errorf("%w: %w", err, tier.ErrCorrupt)
	}
	return fmt.Errorf("%w: %w", err, errDisk)
}

// parallel calls do for 0 to n-1 in several goroutines until one fails. All have
// ended when it returns, since they use the caller's memory.
func parallel(ctx context.Context, n, workers int, do func(i int) error) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	work := func() {
		for {
			i := int(next.Add(1) - 1)
			if i >= n || failed.Load() != nil {
				return
			}
			err := ctx.Err()
			if err == nil {
				err = do(i)
			}
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		}
	}
	var others sync.WaitGroup
	for range min(n, workers) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// plain reads header and payload in one pass to where they belong. Each digest is
// made by whoever brought the last piece of its chunk, while others still read.
func (r *reading) plain(ctx context.Context) (*extent.Manifest, error) {
	all := append(make([]piece, 0, 8), piece{b: r.header})
	for _, v := range r.views {
		all = append(all, v.pieces...)
	}
	c := cutter{rest: all}
	total := r.e.headerBytes + r.e.payload
	n := int((total + pieceBytes - 1) / pieceBytes)
	parts := make([][]piece, n)
	for i := range parts {
		parts[i] = c.next(min(pieceBytes, total-int64(i)*pieceBytes))
	}
	byPiece, missing := r.arrivals(n)
	err := parallel(ctx, n, r.workers, func(i int) error {
		if err := r.transfer(int64(i)*pieceBytes, buffers(parts[i])); err != nil {
			return err
		}
		for _, p := range parts[i] {
			copy(p.home, p.b)
		}
		if r.staged() {
			return nil
		}
		for k := byPiece[i].first; k < byPiece[i].end; k++ {
			if missing[k].Add(-1) == 0 {
				if err := r.digest(ctx, k); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil && r.staged() {
		err = r.store(ctx)
	}
	if err != nil {
		return nil, err
	}
	return r.manifest()
}

// span is a range of chunks.
type span struct{ first, end int }

// arrivals tells which chunks have bytes in each piece, and in how many pieces
// each chunk has bytes. Chunks are in the order in which they lie.
func (r *reading) arrivals(pieces int) (byPiece []span, missing []atomic.Int32) {
	byPiece, missing = make([]span, pieces), make([]atomic.Int32, len(r.chunks))
	for k := range r.chunks {
		c := &r.chunks[k]
		at := r.e.headerBytes + extent.RankOffset(c.rank, r.e.rankBytes) + c.off
		first, last := int(at/pieceBytes), int((at+c.n-1)/pieceBytes)
		missing[k].Store(int32(last - first + 1))
		for i := first; i <= last; i++ {
			if byPiece[i].end == 0 {
				byPiece[i].first = k
			}
			byPiece[i].end = k + 1
		}
	}
	return byPiece, missing
}

// digest makes the digest of a chunk where it lies now.
func (r *reading) digest(ctx context.Context, k int) error {
	c := &r.chunks[k]
	if v := r.views[c.rank]; v.staged == nil {
		if runs := v.window(c.off, c.n); len(runs) == 1 {
			r.digests[k] = gpuipc.DigestBytes(runs[0])
			return nil
		}
	}
	if err := r.dev.Digests(ctx, within(r.dst[c.rank], c.off, c.n), r.digests[k:k+1]); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: %w", err, tier.ErrUnavailable)
	}
	return nil
}

// staged says whether transfers do not reach the destination itself.
func (r *reading) staged() bool {
	for _, v := range r.views {
		if v.staged != nil {
			return true
		}
	}
	return false
}

// store brings what was staged to its destination and makes all digests there.
func (r *reading) store(ctx context.Context) error {
	for _, v := range r.views {
		if v.staged == nil {
			continue
		}
		if err := r.dev.Store(ctx, v.ref, v.staged); err != nil {
			return fmt.Errorf("%w: %w", err, tier.ErrUnavailable)
		}
	}
	for k := range r.chunks {
		if err := r.digest(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// manifest decides whether the header is the one that the row speaks of.
func (r *reading) manifest() (*extent.Manifest, error) {
	h, err := extent.Parse(r.header)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, tier.ErrCorrupt)
	}
	e := r.e
	if h.Name != extentName(e.Name) || h.Generation != e.generation || h.Coded != e.coded || h.ManifestSum != e.manifestSum ||
		int64(h.HeaderBytes) != e.headerBytes || h.PayloadBytes != e.payload {
		return nil, fmt.Errorf("header of %v, generation %d, where %d is expected: %w", h.Name, h.Generation, e.generation, tier.ErrCorrupt)
	}
	stored, err := h.Manifest(r.header)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, tier.ErrCorrupt)
	}
	m, err := extent.Decode(stored)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, tier.ErrCorrupt)
	}
	if m.Coded != e.coded || m.PayloadBytes() != e.payload || len(m.Digests) != e.ranks || m.RankBytes != e.rankBytes || len(m.Digests)*len(m.Digests[0]) != len(r.chunks) {
		return nil, fmt.Errorf("manifest of %d ranks of %d bytes with %d digests each, where %d, %d and %d in all are expected: %w",
			len(m.Digests), m.RankBytes, len(m.Digests[0]), e.ranks, e.rankBytes, len(r.chunks), tier.ErrCorrupt)
	}
	return m, nil
}

// compare checks every digest.
func (r *reading) compare(m *extent.Manifest) error {
	per := len(m.Digests[0])
	for k, got := range r.digests {
		if want := m.Digests[k/per][k%per]; got != want {
			return fmt.Errorf("rank %d, chunk %d has the digest %016x, not %016x: %w", k/per, k%per, got, want, tier.ErrCorrupt)
		}
	}
	return nil
}

// coded reads the header first, which alone tells what lies where, and then
// decodes chunks as they come.
func (r *reading) coded(ctx context.Context, l *profile.Layout) (*extent.Manifest, error) {
	if err := r.transfer(0, [][]byte{r.header}); err != nil {
		return nil, err
	}
	m, err := r.manifest()
	if err != nil {
		return nil, err
	}
	list, err := storedChunks(m, l)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, tier.ErrCorrupt)
	}
	groups := grouped(list)
	err = parallel(ctx, len(groups), r.workers, func(i int) error {
		return r.group(ctx, list[groups[i].first:groups[i].end], groups[i].first)
	})
	if err == nil {
		err = r.storeCoded(ctx)
	}
	return m, err
}

// grouped puts neighbouring chunks together that are read at once.
func grouped(list []storedChunk) (groups []span) {
	for i := 0; i < len(list); {
		g := span{i, i + 1}
		for g.end < len(list) && list[g.end].at+list[g.end].bytes-list[i].at <= pieceBytes {
			g.end++
		}
		groups = append(groups, g)
		i = g.end
	}
	return groups
}

// group reads the blocks around some chunks and puts each where it belongs.
func (r *reading) group(ctx context.Context, list []storedChunk, first int) error {
	last := &list[len(list)-1]
	begin := list[0].at &^ (slab.BlockBytes - 1)
	buf := slab.AlignedBuffer(int(blocks(last.at + last.bytes - begin)))
	if err := r.transfer(r.e.headerBytes+begin, [][]byte{buf}); err != nil {
		return err
	}
	var scratch []byte
	for i := range list {
		c := &list[i]
		runs := r.views[c.rank].window(c.off, c.n)
		to := runs[0]
		if len(runs) > 1 {
			scratch = append(scratch[:0], make([]byte, c.n)...)
			to = scratch
		}
		from := buf[c.at-begin : c.at-begin+c.bytes]
		if c.codec == codec.None {
			copy(to, from)
		} else if err := codec.Decode(to, from, kernel.DType(c.part.DType), codec.Options{Workers: 1}); err != nil {
			return fmt.Errorf("chunk at %d: %w: %w", c.at, err, tier.ErrCorrupt)
		}
		if len(runs) > 1 {
			scatter(runs, to)
		}
		if !r.staged() {
			if err := r.digest(ctx, first+i); err != nil {
				return err
			}
		}
	}
	return nil
}

// storeCoded is store, where something was staged. What lies between parts was
// not stored; it is zero in staging, as in an object's first life.
func (r *reading) storeCoded(ctx context.Context) error {
	if r.staged() {
		return r.store(ctx)
	}
	return nil
}
