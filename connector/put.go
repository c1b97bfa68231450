package connector

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Source provides the bytes of an object: one of the two fields is set.
type Source struct {
	// Parts holds each part of the layout, in order.
	Parts [][]byte
	// Fill writes len(dst) bytes of part p, which has index i, from offset off on into dst. dst
	// is shared memory: write each byte once and do not read it back. Calls come in order of
	// parts and offsets, for at most gpuipc.ChunkBytes at a time.
	Fill func(p profile.Part, i int, off int64, dst []byte) error
}

func (s *Source) check(layout profile.Layout) error {
	if s.Fill != nil {
		return nil
	}
	if len(s.Parts) != len(layout.Parts) {
		return invalid("%d parts, want %d", len(s.Parts), len(layout.Parts))
	}
	for i := range layout.Parts {
		if int64(len(s.Parts[i])) != layout.Parts[i].Len {
			return invalid("part %d has %d bytes, want %d", i, len(s.Parts[i]), layout.Parts[i].Len)
		}
	}
	return nil
}

func (s *Source) fill(p profile.Part, i int, off int64, dst []byte) error {
	if s.Fill != nil {
		return s.Fill(p, i, off, dst)
	}
	copy(dst, s.Parts[i][off:])
	return nil
}

// PutQuery is one rank's share of a segment to publish.
type PutQuery struct {
	Spec   profile.SegmentSpec
	Tokens []uint32   // the Spec.Tokens token ids
	Source Source     // bytes in profile.SegmentLayout of the interior
	Level  wire.Level // durability that the segment must reach before Put returns; 0 = as the daemon is configured
}

// Stored reports the effect of one rank's share.
type Stored struct {
	// Published means that this share completed the object. With several ranks, only the last
	// share completes it, and only the Level of that share counts.
	Published bool
	// Level is the level that the published object has reached. It is lower than requested if
	// the daemon has no disk, or if the disk fails or is too slow for Timeouts.Transfer. 0 =
	// this share did not publish the object.
	Level wire.Level
}

// Put publishes one rank's share of a segment. ErrExists means that another client has published
// the segment or is filling it; the caller need not do anything. It is no error if the segment
// did not reach the requested level: see Stored.
func (m *Model) Put(ctx context.Context, q *PutQuery) (Stored, error) {
	if err := m.profile.CheckSpec(q.Spec); err != nil {
		return Stored{}, fmt.Errorf("put: %v: %w", err, ErrInvalid)
	}
	if len(q.Tokens) != q.Spec.Tokens {
		return Stored{}, invalid("put: %d token ids, want %d", len(q.Tokens), q.Spec.Tokens)
	}
	_, interior := q.Spec.Interior()
	w := writer{m: m, layout: m.layouts.of(m.profile, interior), source: &q.Source, level: q.Level}
	return w.write(ctx, func() (uint64, error) { return w.reserve(ctx, q) })
}

// SaveQuery is one rank's share of a checkpoint to store.
type SaveQuery struct {
	Hash   profile.PrefixHash // of the first Tokens tokens
	Tokens int
	Kind   Accept // Exact, Spliced or Rows
	// Parent is the checkpoint that this one extends; zero = none. ParentTokens is the number of
	// tokens that the parent covers. Only rows after these tokens are stored.
	Parent       profile.PrefixHash
	ParentTokens int
	Source       Source     // bytes in profile.CheckpointLayout(Tokens - ParentTokens); in EdgeLayout for Rows
	Level        wire.Level // as in PutQuery
}

// Save stores one rank's share of a checkpoint; see Put. ErrBusy may also mean that the daemon
// is reading the parent from disk; the caller may retry a little later.
func (m *Model) Save(ctx context.Context, q *SaveQuery) (Stored, error) {
	rows := q.Tokens - q.ParentTokens
	if q.Tokens < 1 || q.Tokens > profile.MaxTokens || q.ParentTokens < 0 || rows < 1 {
		return Stored{}, invalid("save: %d tokens behind a parent of %d", q.Tokens, q.ParentTokens)
	}
	if q.Hash == (profile.PrefixHash{}) {
		return Stored{}, invalid("save: hash names no prefix: PrefixHashes needs blocks of 1 token or more")
	}
	w := writer{m: m, layout: m.layoutOf(q.Kind, rows), source: &q.Source, level: q.Level}
	return w.write(ctx, func() (uint64, error) { return w.save(ctx, q) })
}

// writer copies one object into staging and commits it, batch by batch. Two batches are in
// flight at a time: while the daemon copies one batch, the client fills the next one.
type writer struct {
	m      *Model
	r      *registration
	layout profile.Layout
	source *Source
	level  wire.Level

	reservation uint64
	part, chunk int // next chunk to write
	stored      Stored
}

// A commit carries a quarter of the object, within these bounds in bytes. That is enough to hide
// the round trip, and so little that the client can fill one batch while the daemon copies
// another, if a core is free. A chunk is never divided. Sizes from 512 KiB to 8 MiB make no
// difference on two busy cores (measured).
const (
	batchLeast = 512 << 10
	batchMost  = 2 << 20
)

// batchBytes returns the maximum size of the next commit.
func (w *writer) batchBytes() int64 {
	batch := min(max(w.layout.Bytes/4, batchLeast), batchMost)
	// Two batches are in flight at once, and other writers need room too.
	return min(batch, max(w.r.a.Staging.Size()/4, gpuipc.ChunkBytes))
}

func (w *writer) write(ctx context.Context, reserve func() (uint64, error)) (stored Stored, err error) {
	if !w.level.Known() {
		return stored, invalid("%v", w.level)
	}
	if err := w.source.check(w.layout); err != nil {
		return stored, err
	}
	if w.r, err = w.m.enter(); err != nil {
		return stored, err
	}
	defer w.r.a.Release()
	if w.reservation, err = reserve(); err != nil {
		return stored, err
	}
	committed := false
	defer func() {
		if !committed { // also if the source panics
			w.abort()
		}
	}()
	if err := w.commitAll(ctx); err != nil {
		return stored, err
	}
	committed = true
	return w.stored, nil
}

// reserve copies the token ids into staging and requests a reservation.
func (w *writer) reserve(ctx context.Context, q *PutQuery) (uint64, error) {
	primed := q.Spec.Primer != profile.PrimerID{}
	if primed && !w.r.a.HasPrimers {
		return 0, fmt.Errorf("segments after a primer: %w", ErrUnsupported)
	}
	salt := w.r.a.Grants[w.m.tenant].Salt
	key := w.m.profile.SegmentKey(salt, q.Spec, q.Tokens)
	k := w.r.a.Get(ctx, wire.OpReserve, w.m.client.opt.Timeouts.Transfer)
	defer w.r.a.Put(k)
	k.Late.GiveBack = true
	off, err := stageTokens(ctx, w.r.a, k, q.Tokens)
	if err != nil {
		return 0, fmt.Errorf("reserve: %w", err)
	}
	request := &wire.ReserveRequest{
		Profile: w.r.profile, Rank: uint32(w.m.binding.Rank), Keys: [][32]byte{key},
		Roles: []uint8{uint8(q.Spec.Role)}, Heads: []uint32{uint32(q.Spec.Head)}, Tails: []uint32{uint32(q.Spec.Tail)},
		Tokens: []uint32{uint32(q.Spec.Tokens)}, TokenOff: []uint64{off},
	}
	if primed {
		request.Primers = wire.ReservePrimers{Present: true, IDs: [][32]byte{q.Spec.Primer}}
	}
	return w.reserved(ctx, k, request)
}

func (w *writer) save(ctx context.Context, q *SaveQuery) (uint64, error) {
	if q.Kind.known(w.r.a) != q.Kind {
		return 0, fmt.Errorf("checkpoints as rows: %w", ErrUnsupported)
	}
	k := w.r.a.Get(ctx, wire.OpSave, w.m.client.opt.Timeouts.Transfer)
	defer w.r.a.Put(k)
	k.Late.GiveBack = true
	request := &wire.SaveRequest{
		Profile: w.r.profile, Rank: uint32(w.m.binding.Rank), Kind: uint8(q.Kind),
		Hashes: [][32]byte{q.Hash}, Tokens: []uint32{uint32(q.Tokens)}, Parents: [][32]byte{q.Parent},
	}
	return w.reserved(ctx, k, request)
}

// reserved sends a reserve or save request of one row and returns the reservation.
func (w *writer) reserved(ctx context.Context, k *link.Call, request wire.Message) (uint64, error) {
	a := w.r.a
	var reply wire.ReserveReply
	if err := w.r.ask(ctx, k, request, &reply); err != nil {
		return 0, err
	}
	if err := a.CheckRows(k.Op, len(reply.Codes), 1); err != nil {
		return 0, err
	}
	switch code := wire.Code(reply.Codes[0]); {
	case code == wire.Invalid && k.Op == wire.OpSave:
		return 0, invalid("save: one of Hash, Kind, Tokens, Parent and ParentTokens")
	case code == wire.Invalid:
		return 0, invalid("reserve: one of Spec and Tokens, or the rank of the binding")
	case code != wire.OK:
		return 0, fmt.Errorf("%s: %w", k.Op, link.Kind(code))
	}
	w.reservation = reply.Reservations[0]
	if reply.Bytes[0] != uint64(w.layout.Bytes) {
		w.abort()
		return 0, invalid("%s: the daemon has %d bytes, this client %d", k.Op, reply.Bytes[0], w.layout.Bytes)
	}
	return w.reservation, nil
}

// commitAll fills and commits all chunks. While one batch is in flight, the next batch does not
// wait for staging: the memory may be held by the batch in flight, whose reply this goroutine
// has yet to read.
func (w *writer) commitAll(ctx context.Context) error {
	var flying *link.Call
	defer func() {
		if flying != nil { // an error, or the source panicked
			_ = w.await(ctx, flying)
		}
	}()
	for {
		next, err := w.fill(ctx, flying == nil)
		crowded := flying != nil && errors.Is(err, errCrowded)
		if former := flying; former != nil {
			flying = nil
			if failed := w.await(ctx, former); failed != nil || crowded {
				err = failed
			}
		}
		flying = next
		if err != nil || next == nil && !crowded {
			return err
		}
	}
}

// errCrowded is returned when no staging is free now.
var errCrowded = fmt.Errorf("staging is in use: %w", ErrBusy)

// fill writes the next batch into staging and sends its commit. It returns nil after the last
// chunk.
func (w *writer) fill(ctx context.Context, wait bool) (*link.Call, error) {
	c, a := w.m.client, w.r.a
	k := a.Get(ctx, wire.OpCommit, c.opt.Timeouts.Transfer)
	k.Late.Cancel = true
	started := false
	defer func() {
		if !started {
			a.Put(k)
		}
	}()
	request := wire.CommitRequest{Level: uint8(w.level)}
	if err := w.fillBatch(ctx, k, &request, wait); err != nil || len(request.Digest) == 0 {
		return nil, err
	}
	k.Arm(ctx, c.opt.Timeouts.Transfer) // time spent in the source does not count against the daemon
	if err := a.Start(ctx, k, w.r.tenant, &request, nil); err != nil {
		return nil, err
	}
	started = true
	return k, nil
}

func (w *writer) fillBatch(ctx context.Context, k *link.Call, request *wire.CommitRequest, wait bool) error {
	room := w.batchBytes()
	for n := w.nextBytes(); n > 0 && len(request.Digest) < wire.MaxCommitRows; n = w.nextBytes() {
		started := len(request.Digest) > 0
		if started && n > room {
			break
		}
		err := w.fillChunk(ctx, k, request, n, wait && !started)
		if started && errors.Is(err, errCrowded) {
			break
		}
		if err != nil {
			return err
		}
		room -= n
	}
	return nil
}

// nextBytes returns the size of the next chunk, 0 at the end.
func (w *writer) nextBytes() int64 {
	for w.part < len(w.layout.Parts) {
		if n := w.layout.Parts[w.part].Len - int64(w.chunk)*gpuipc.ChunkBytes; n > 0 {
			return min(n, gpuipc.ChunkBytes)
		}
		w.part, w.chunk = w.part+1, 0
	}
	return 0
}

// fillChunk writes the next chunk, of n bytes, into staging and adds it to the request. If wait
// is false, it returns errCrowded instead of waiting for staging.
func (w *writer) fillChunk(ctx context.Context, k *link.Call, request *wire.CommitRequest, n int64, wait bool) error {
	e, ok, err := w.r.a.Staging.TryAlloc(n)
	if !ok && !wait && err == nil {
		return errCrowded
	}
	if !ok && err == nil {
		e, err = w.r.a.Staging.Alloc(ctx, n, k.Deadline)
	}
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	k.Late.Staged = append(k.Late.Staged, e)
	mem := w.r.a.Staging.Bytes(e)
	if err := w.source.fill(w.layout.Parts[w.part], w.part, int64(w.chunk)*gpuipc.ChunkBytes, mem); err != nil {
		return fmt.Errorf("fill part %d: %w", w.part, err)
	}
	request.Reservations = append(request.Reservations, w.reservation)
	request.Parts = append(request.Parts, uint32(w.part))
	request.ChunkFirst = append(request.ChunkFirst, uint32(w.chunk))
	request.ChunkCount = append(request.ChunkCount, 1)
	request.StagingOff = append(request.StagingOff, uint64(e.Off))
	request.Digest = append(request.Digest, gpuipc.DigestBytes(mem))
	w.chunk++
	return nil
}

// await waits for a commit and returns its call to the pool.
func (w *writer) await(ctx context.Context, k *link.Call) error {
	a := w.r.a
	defer a.Put(k)
	rows := len(k.Late.Staged)
	body, err := a.Result(ctx, k)
	if err != nil {
		return err
	}
	var reply wire.CommitReply
	if err := a.Decode(wire.OpCommit, &reply, body); err != nil {
		return err
	}
	if err := a.CheckRows(wire.OpCommit, len(reply.Codes), rows); err != nil {
		return err
	}
	for i, code := range reply.Codes {
		if wire.Code(code) != wire.OK {
			return fmt.Errorf("commit: row %d: %w", i, link.Kind(wire.Code(code)))
		}
		if reply.Published[i] != 1 {
			continue
		}
		w.stored = Stored{Published: true, Level: wire.Level(reply.Levels[i])}
		if level := w.stored.Level; level == wire.LevelDefault || !level.Known() {
			return a.Malformed("commit: row %d is published at %v", i, level)
		}
	}
	return nil
}

// abort returns the reservation.
func (w *writer) abort() {
	w.r.a.GiveBack(wire.OpAbort, w.r.tenant, []uint64{w.reservation})
}
