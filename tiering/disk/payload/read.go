package payload

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
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/codec"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// pieceBytes is the size of one disk read. Smaller reads cost more calls; with larger
// ones, less of the verification overlaps with reads (a guess: fio's usual block size).
const pieceBytes = 1 << 20

// Source reads runs like slab.Set.Read.
type Source interface {
	Read(runs []slab.Run, off int64, bufs [][]byte) error
}

// ErrUnread reports that the disk has failed to read. The bytes on it may be right.
var ErrUnread = fmt.Errorf("cannot be read: %w", tier.ErrUnavailable)

// Reading says which entry to read, and into which memory.
type Reading struct {
	From    Source
	Row     *catalog.Row
	Profile *profile.Profile // profile of the row
	Key     *extent.Key      // key of the store, to verify the seal; nil = do not verify it
	Device  gpuipc.Device
	To      []gpuipc.Ref // destination by rank
	Workers int
	// Piece is the size of one read of From in bytes, whole blocks; 0 = a size that suits
	// a disk.
	Piece int64
}

// piece returns the size of one read. Small payloads with a seal get smaller pieces, so
// that digests and tags are computed while other pieces are still being read.
func (r *reading) piece(total int64) int64 {
	switch {
	case r.Piece != 0:
		return r.Piece
	case total <= 4*pieceBytes && len(r.seal.units) > 0:
		return pieceBytes / 4
	}
	return pieceBytes
}

// Read fills the memory with an entry's bytes and verifies every digest. If there is a key,
// it also verifies the seal. tier.ErrCorrupt means that the bytes differ from those that
// were written, and ErrUnread that the disk has failed. After an error the contents of the
// memory are undefined.
func Read(ctx context.Context, what Reading) (*extent.Manifest, error) {
	row := what.Row
	r := &reading{Reading: what, header: slab.AlignedBuffer(row.HeaderBytes)}
	defer r.close()
	for i := range r.To {
		view, err := openView(ctx, r.Device, r.To[i], true)
		if view != nil {
			r.views = append(r.views, view)
		}
		if err != nil {
			return nil, tier.Unavailable(fmt.Errorf("rank %d: %w", i, err))
		}
	}
	layout, err := tier.LayoutOf(r.Profile, tier.CheckpointKind(row.Kind), row.End-row.Begin, row.Packed)
	if err != nil {
		return nil, Corrupt(err)
	}
	if layout.Bytes != row.RankBytes {
		return nil, fmt.Errorf("%d bytes a rank, its profile says %d: %w", row.RankBytes, layout.Bytes, tier.ErrCorrupt)
	}
	r.chunks = chunksOf(&layout, row.Ranks)
	r.digests = make([]uint64, len(r.chunks))
	if r.Key.Seals(row.Generation) {
		r.seal = newTags(r.chunks)
	}
	var m *extent.Manifest
	if row.Coded {
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
	return m, r.found.Proven(r.Key, r.found.Stored, r.seal.ofChunks(r.Key))
}

// reading is one read of an entry.
type reading struct {
	Reading
	views   []*view
	header  []byte
	chunks  []chunk
	digests []uint64 // digests of the bytes now in memory, by chunk
	seal    tags     // tags of the same bytes
	found   *Extent  // set by manifest
}

func (r *reading) close() {
	for _, v := range r.views {
		v.close()
	}
}

// transfer reads from the entry's runs.
func (r *reading) transfer(off int64, bufs [][]byte) error {
	return readRuns(r.From, r.Row.Runs, off, bufs)
}

// readRuns reads runs. Its error is tier.ErrCorrupt for bytes that are lost, and
// ErrUnread for a disk that fails.
func readRuns(from Source, runs []slab.Run, off int64, bufs [][]byte) error {
	err := from.Read(runs, off, bufs)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, tier.ErrInvalid):
		// The slab was truncated, or does not exist: its bytes are lost for good.
		return Corrupt(err)
	}
	return fmt.Errorf("%w: %w", err, ErrUnread)
}

// Corrupt marks an error as tier.ErrCorrupt.
func Corrupt(err error) error {
	if errors.Is(err, tier.ErrCorrupt) {
		return err
	}
	return fmt.Errorf("%w: %w", err, tier.ErrCorrupt)
}

// parallel runs do(i) for each i in [0, n) in up to workers goroutines. After the first
// error it makes no more calls and returns that error. It waits for all goroutines, since
// they use the caller's memory.
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

// plain reads header and payload of an entry that is not coded, in one pass. The goroutine
// that has read the last missing piece of a chunk computes its digest, while others read.
func (r *reading) plain(ctx context.Context) (*extent.Manifest, error) {
	all := append(make([]piece, 0, 8), piece{b: r.header})
	for _, v := range r.views {
		all = append(all, v.pieces...)
	}
	c := cutter{rest: all}
	total := int64(r.Row.HeaderBytes) + r.Row.PayloadBytes
	size := r.piece(total)
	n := int((total + size - 1) / size)
	parts := make([][]piece, n)
	for i := range parts {
		parts[i] = c.next(min(size, total-int64(i)*size))
	}
	digests, units := r.arrivals(r.chunks, size, n), r.arrivals(r.seal.units, size, n)
	err := parallel(ctx, n, r.Workers, func(i int) error {
		if err := r.transfer(int64(i)*size, buffers(parts[i])); err != nil {
			return err
		}
		for _, p := range parts[i] {
			copy(p.home, p.b)
		}
		if r.staged() {
			return nil
		}
		_ = units.arrived(i, func(u int) error { r.tagUnit(u); return nil })
		return digests.arrived(i, func(k int) error { return r.digest(ctx, k) })
	})
	if err == nil && r.staged() {
		err = r.store(ctx)
	}
	if err != nil {
		return nil, err
	}
	return r.manifest()
}

// arrivals tracks a transfer of ranges (chunks or units) in pieces: which ranges have
// bytes in each piece, and how many pieces of each range have not arrived yet.
type arrivals struct {
	byPiece []span
	missing []atomic.Int32
}

// The method arrivals returns the state before a transfer of the given number of pieces, of
// size bytes each. The ranges are in the order of their offsets.
func (r *reading) arrivals(ranges []chunk, size int64, pieces int) *arrivals {
	a := &arrivals{byPiece: make([]span, pieces), missing: make([]atomic.Int32, len(ranges))}
	for k := range ranges {
		c := &ranges[k]
		at := int64(r.Row.HeaderBytes) + extent.RankOffset(c.rank, r.Row.RankBytes) + c.off
		first, last := int(at/size), int((at+c.n-1)/size)
		a.missing[k].Store(int32(last - first + 1))
		for i := first; i <= last; i++ {
			if a.byPiece[i].end == 0 {
				a.byPiece[i].first = k
			}
			a.byPiece[i].end = k + 1
		}
	}
	return a
}

// arrived records that piece i has arrived. It calls the function do for each range of
// which this was the last missing piece.
func (a *arrivals) arrived(i int, do func(k int) error) error {
	for k := a.byPiece[i].first; k < a.byPiece[i].end; k++ {
		if a.missing[k].Add(-1) == 0 {
			if err := do(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// digest computes the digest of chunk k in the destination.
func (r *reading) digest(ctx context.Context, k int) error {
	c := &r.chunks[k]
	if v := r.views[c.rank]; v.staged == nil {
		if runs := v.window(c.off, c.n); len(runs) == 1 {
			r.digests[k] = gpuipc.DigestBytes(runs[0])
			return nil
		}
	}
	if err := r.Device.Digests(ctx, r.To[c.rank].Slice(c.off, c.n), r.digests[k:k+1]); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return tier.Unavailable(err)
	}
	return nil
}

// staged reports whether some transfers go to a copy instead of the destination.
func (r *reading) staged() bool {
	for _, v := range r.views {
		if v.staged != nil {
			return true
		}
	}
	return false
}

// store copies staged bytes to their destination and computes all digests there.
func (r *reading) store(ctx context.Context) error {
	for _, v := range r.views {
		if v.staged == nil {
			continue
		}
		if err := r.Device.Store(ctx, v.ref, v.staged); err != nil {
			return tier.Unavailable(err)
		}
	}
	for k := range r.chunks {
		if err := r.digest(ctx, k); err != nil {
			return err
		}
		r.tagChunk(k)
	}
	return nil
}

// manifest parses the header, checks that it belongs to the row, and returns its manifest.
func (r *reading) manifest() (*extent.Manifest, error) {
	x, err := parse(r.header)
	if err != nil {
		return nil, err
	}
	r.found = x
	row, m := r.Row, x.Manifest
	if x.Name != row.Name || x.Generation != row.Generation || x.Coded != row.Coded || x.ManifestSum != row.ManifestSum ||
		x.HeaderBytes != row.HeaderBytes || x.PayloadBytes != row.PayloadBytes {
		return nil, fmt.Errorf("header of %v, generation %d, where %d is expected: %w", x.Name, x.Generation, row.Generation, tier.ErrCorrupt)
	}
	if m.Packed != row.Packed {
		return nil, fmt.Errorf("manifest of other packed parts than its row's: %w", tier.ErrCorrupt)
	}
	if len(m.Digests) != row.Ranks || m.RankBytes != row.RankBytes || len(m.Digests)*len(m.Digests[0]) != len(r.chunks) {
		return nil, fmt.Errorf("manifest of %d ranks of %d bytes with %d digests each, where %d, %d and %d in all are expected: %w",
			len(m.Digests), m.RankBytes, len(m.Digests[0]), row.Ranks, row.RankBytes, len(r.chunks), tier.ErrCorrupt)
	}
	return m, nil
}

// compare compares every digest with the manifest.
func (r *reading) compare(m *extent.Manifest) error {
	for k, got := range r.digests {
		if err := compareDigest(m, k, got); err != nil {
			return err
		}
	}
	return nil
}

// compareDigest compares the digest of the k-th chunk of all ranks with the manifest's.
func compareDigest(m *extent.Manifest, k int, got uint64) error {
	per := len(m.Digests[0])
	if want := m.Digests[k/per][k%per]; got != want {
		return fmt.Errorf("rank %d, chunk %d has the digest %016x, not %016x: %w", k/per, k%per, got, want, tier.ErrCorrupt)
	}
	return nil
}

// coded reads a coded entry. It reads the header first, since only the header says where
// each chunk is, and then decodes chunks as they arrive.
func (r *reading) coded(ctx context.Context, l *profile.Layout) (*extent.Manifest, error) {
	if err := r.transfer(0, [][]byte{r.header}); err != nil {
		return nil, err
	}
	m, err := r.manifest()
	if err != nil {
		return nil, err
	}
	list, err := codedChunks(m, l)
	if err != nil {
		return nil, Corrupt(err)
	}
	groups := grouped(list, max(r.Piece, pieceBytes))
	err = parallel(ctx, len(groups), r.Workers, func(i int) error {
		return r.group(ctx, list[groups[i].first:groups[i].end], groups[i].first)
	})
	if err == nil && r.staged() {
		// The bytes between parts are not stored. They are zero in the copy, as in the
		// object that was written.
		err = r.store(ctx)
	}
	return m, err
}

// group reads the blocks with some neighboring chunks, and copies or decodes each chunk to
// its place. The parameter first is the index of list[0] among all chunks.
func (r *reading) group(ctx context.Context, list []storedChunk, first int) error {
	last := &list[len(list)-1]
	begin := list[0].at &^ (slab.BlockBytes - 1)
	buf := slab.AlignedBuffer(int(blocks(last.at + last.bytes - begin)))
	if err := r.transfer(int64(r.Row.HeaderBytes)+begin, [][]byte{buf}); err != nil {
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
			return Corrupt(fmt.Errorf("chunk at %d: %w", c.at, err))
		}
		if len(runs) > 1 {
			scatter(runs, to)
		}
		if !r.staged() {
			if err := r.digest(ctx, first+i); err != nil {
				return err
			}
			r.tagChunk(first + i)
		}
	}
	return nil
}
