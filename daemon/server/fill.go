package server

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// longReserve is the largest number of token ids that the reader hashes itself, in about 60 µs of
// SHA-256.
const longReserve = 16 << 10

// Limits of a request that the reader runs itself. While it does so, the other connections that it
// reads from wait. A longer request is a job, so that its time is divided between users. longFill
// is the largest number of objects for which the reader reserves space, since each may evict
// others. The other three are sizes of a body in bytes, so that no body is decoded twice. A
// longSave body has room for longFill rows of save. A longLookup body has room for 256 rows to look
// up, each a key, or a prefix and its position. A longIDs body has room for 256 ids.
const (
	longFill   = 32
	longSave   = bodyBytes + longFill*(32+4+32)
	longLookup = bodyBytes + 256*(32+4)
	longIDs    = bodyBytes + 256*8
	// bodyBytes is the largest size of a body without its rows: scalars, headers of columns, and
	// optional sections.
	bodyBytes = 192
)

func longer(bytes int) func(*task) (bool, error) {
	return func(t *task) (bool, error) { return len(t.body) > bytes, nil }
}

// fillOps has the operations that store state: reserve, save, commit and abort.
type fillOps struct{ *task }

func (t fillOps) reserveIsLong(m *wire.ReserveRequest) (bool, error) {
	return totalTokens(m.Tokens) > longReserve || len(m.Keys) > longFill, nil
}

func (t fillOps) reserve(m *wire.ReserveRequest) (wire.Message, error) {
	out := &t.scratch.reserveReply
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	if err := t.needs(wire.FeaturePrimers, m.Primers.Present, "primers"); err != nil {
		return nil, err
	}
	resetReserve(out)
	for i := range m.Keys {
		q := tiering.ReserveQuery{
			Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), Key: m.Keys[i],
			Spec: profile.SegmentSpec{
				Role: profile.Role(m.Roles[i]), Head: int(m.Heads[i]), Tail: int(m.Tails[i]), Tokens: int(m.Tokens[i]),
			},
		}
		if m.Primers.Present {
			q.Spec.Primer = m.Primers.IDs[i]
		}
		var r tiering.Reservation
		if q.Tokens, err = t.tokenIDs(id, q.Spec, m.TokenOff[i]); err == nil {
			r, err = t.at.session.Reserve(&q)
		}
		if errors.Is(err, tier.ErrExists) {
			t.conn.server.work.Exists(t.workScope(id, tenant), q.Key)
		}
		if t.ctx.Err() != nil {
			return nil, t.undoReserve(r, err)
		}
		t.appendReserved(out, r, err)
		t.giveWay()
	}
	return out, nil
}

// tokenPiece is the number of bytes of token ids that are read at once. keptTokens is the number of
// token ids for which a scratch keeps its memory after a request.
const (
	tokenPiece = 64 << 10
	keptTokens = 256 << 10
)

// tokenIDs reads the little-endian token ids of a segment from staging. It checks the segment's
// geometry first, since the geometry bounds how much is read. It copies the ids before they are
// used, since the client can still write to staging.
func (t fillOps) tokenIDs(id tier.ProfileID, spec profile.SegmentSpec, off uint64) ([]uint32, error) {
	if p, ok := t.conn.server.store.Profile(id); ok {
		if err := p.CheckSpec(spec); err != nil {
			return nil, err
		}
	}
	return t.stagedTokens(off, spec.Tokens)
}

// stagedTokens copies n token ids from staging. The result is valid until the next call.
func (t *task) stagedTokens(off uint64, n int) ([]uint32, error) {
	src, err := t.at.staged(off, 4*int64(n))
	if err == nil {
		err = t.holdTokens(n)
	}
	if err != nil {
		return nil, err
	}
	ids := slices.Grow(t.scratch.tokens[:0], n)
	t.scratch.tokens = ids
	raw := make([]byte, min(tokenPiece, 4*n))
	for at := int64(0); at < src.Len(); at += int64(len(raw)) {
		raw = raw[:min(int64(len(raw)), src.Len()-at)]
		if err := t.conn.server.device.Load(t.ctx, raw, src.Slice(at, int64(len(raw)))); err != nil {
			return nil, err
		}
		for i := 0; i < len(raw); i += 4 {
			ids = append(ids, binary.LittleEndian.Uint32(raw[i:]))
		}
		t.giveWay()
	}
	return ids, nil
}

func resetReserve(out *wire.ReserveReply) {
	*out = wire.ReserveReply{Codes: out.Codes[:0], Reservations: out.Reservations[:0], Bytes: out.Bytes[:0]}
}

func (t fillOps) appendReserved(out *wire.ReserveReply, r tiering.Reservation, err error) {
	if err != nil {
		r = tiering.Reservation{}
	}
	out.Codes = append(out.Codes, t.row(err))
	out.Reservations = append(out.Reservations, uint64(r.ID))
	out.Bytes = append(out.Bytes, uint64(r.Bytes))
}

// undoReserve aborts the reservations that a request has made before its context ended.
func (t fillOps) undoReserve(last tiering.Reservation, err error) error {
	made := t.scratch.reserveReply.Reservations
	if err == nil {
		made = append(made, uint64(last.ID))
	}
	for _, id := range made {
		// It only matters that the reservation is gone, not how it ended.
		_ = t.at.session.Abort(tier.ReservationID(id))
	}
	return t.ctx.Err()
}

// saveIsLong reports whether a save has many rows, or copies rows from a buffer.
func (t fillOps) saveIsLong() (bool, error) {
	if long := len(t.body) > longSave; long || !t.at.has(wire.FeatureBuffered) {
		return long, nil
	}
	m, err := decode[wire.SaveRequest](t.task)
	return m.Buffered.Present, err
}

func (t fillOps) save(m *wire.SaveRequest) (wire.Message, error) {
	out := &t.scratch.reserveReply
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	if err := t.knowsKinds(tier.CheckpointKind(m.Kind)); err != nil {
		return nil, err
	}
	if err := t.needs(wire.FeatureBuffered, m.Buffered.Present, "buffered"); err != nil {
		return nil, err
	}
	resetReserve(out)
	var waits []pendingLevel
	for i := range m.Hashes {
		q := tiering.SaveQuery{
			Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), Kind: tier.CheckpointKind(m.Kind),
			Hash: m.Hashes[i], Tokens: int(m.Tokens[i]), Parent: m.Parents[i],
		}
		var r tiering.Reservation
		if m.Buffered.Present {
			r, err = t.at.session.SaveBuffered(t.ctx, &q, tier.LeaseID(m.Buffered.Buffer))
		} else {
			r, err = t.at.session.Save(&q)
		}
		if t.ctx.Err() != nil {
			return nil, t.undoReserve(r, err)
		}
		t.appendReserved(out, r, err)
		if r.Durable != nil {
			waits = append(waits, pendingLevel{i, r.Durable})
		}
		t.giveWay()
	}
	if len(waits) > 0 {
		// A copy, since the scratch is used for the next request.
		out = &wire.ReserveReply{Codes: slices.Clone(out.Codes), Reservations: slices.Clone(out.Reservations), Bytes: slices.Clone(out.Bytes)}
		t.rest = awaitDurable(out, nil, waits)
		return nil, nil
	}
	return out, nil
}

func (t fillOps) commit(m *wire.CommitRequest) (wire.Message, error) {
	if level := wire.Level(m.Level); !level.Known() {
		return nil, codes.Refuse(wire.Invalid, "acknowledgement %v", level)
	}
	out, digests := &wire.CommitReply{}, m.Digest
	var waits []pendingLevel
	for i := range m.Reservations {
		n := m.ChunkCount[i]
		got, err := t.commitRow(m, i, digests[:n])
		if cause, over := codes.Ended(t.ctx, err); over {
			if i == 0 {
				return nil, err
			}
			// Earlier rows stay saved, so the client must receive their codes.
			err = cause
		}
		digests = digests[n:]
		out.Codes = append(out.Codes, t.row(err))
		out.Published = append(out.Published, oneIf(got.Published))
		out.Levels = append(out.Levels, uint8(wire.LevelMemory)*oneIf(got.Published))
		if got.Published {
			t.conn.server.work.Published(&got.Object)
		}
		if got.Durable != nil {
			waits = append(waits, pendingLevel{i, got.Durable})
		}
		t.giveWay()
	}
	if len(waits) > 0 {
		t.rest = awaitDurable(out, out.Levels, waits)
		return nil, nil
	}
	return out, nil
}

func (t fillOps) commitRow(m *wire.CommitRequest, i int, digests []uint64) (got tiering.Committed, err error) {
	item := tiering.CommitItem{
		Reservation: tier.ReservationID(m.Reservations[i]),
		Part:        int(m.Parts[i]), ChunkFirst: int(m.ChunkFirst[i]), Digests: digests, CRC32: t.at.has(wire.FeatureCRC32Digests),
		Level: tier.Level(m.Level),
	}
	bytes, err := t.at.session.ChunkSpan(item.Reservation, item.Part, item.ChunkFirst, len(digests))
	if err != nil {
		return got, err
	}
	if item.Src, err = t.at.staged(m.StagingOff[i], bytes); err != nil {
		return got, err
	}
	return t.at.session.Commit(t.ctx, item)
}

func (t fillOps) abort(m *wire.AbortRequest) (wire.Message, error) {
	out := &t.scratch.codes
	out.Codes = out.Codes[:0]
	for _, id := range m.Reservations {
		out.Codes = append(out.Codes, t.row(t.at.session.Abort(tier.ReservationID(id))))
	}
	return out, nil
}

func oneIf(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
