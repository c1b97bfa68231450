package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// firstBytes is the size of the first read of an object. It contains the whole description
// of most objects: a segment of 12,000 tokens has a description of about 50 KiB.
const firstBytes = 64 << 10

// findsAtOnce is the most concurrent requests of one Find.
const findsAtOnce = 16

// Find implements tier.Remote. It sends one request for each object that the index cannot
// rule out, in parallel. An invalid object counts as not found. Find fails only if all
// requests failed.
func (s *Store) Find(ctx context.Context, wants []tier.Want) ([]tier.Copy, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("object: find: %w", err)
	}
	rows := make([]tier.Copy, len(wants))
	errs := make([]error, len(wants))
	var asked []int
	for i := range wants {
		if s.mayBeThere(&wants[i]) {
			asked = append(asked, i)
		}
	}
	if len(asked) == 0 {
		return rows, nil
	}
	if err := s.health.alone(s.cfg.Now()); err != nil {
		return nil, err
	}
	var work errgroup.Group
	work.SetLimit(findsAtOnce)
	for _, i := range asked {
		work.Go(func() error {
			var c *found
			if c, errs[i] = s.find(ctx, &wants[i]); c != nil {
				rows[i] = c
			}
			return nil
		})
	}
	_ = work.Wait() // the errors are in errs
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("object: find: %w", err)
	}
	failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(failed) == len(asked) {
		return nil, failed[0]
	}
	return rows, nil
}

func (s *Store) mayBeThere(w *tier.Want) bool {
	t, ok := s.keys.tagOf(w)
	if !ok {
		return false
	}
	known := s.index.look(t, s.cfg.Now())
	return known == present || known == unknown
}

// find asks the server for one object. If it returns nil and no error, the object is
// absent or invalid.
func (s *Store) find(ctx context.Context, w *tier.Want) (*found, error) {
	t, _ := s.keys.tagOf(w)
	p, ok := s.cfg.Profile(w.Fingerprint)
	if !ok {
		return nil, nil
	}
	s.counters.Asked.Add(1)
	row, etag, err := s.describe(ctx, t, w, p)
	s.settle(ctx, err)
	now := s.cfg.Now()
	switch {
	case err == nil:
		s.counters.Found.Add(1)
		return &found{store: s, tag: t, etag: etag, row: row, profile: p, tenant: w.Tenant}, nil
	case errors.Is(err, tier.ErrGone):
		s.counters.Absent.Add(1)
		s.index.note(t, absent, now.Add(s.cfg.AbsentTime), now)
		return nil, nil
	case errors.Is(err, tier.ErrCorrupt):
		s.corrupt(t, err)
		return nil, nil
	}
	return nil, err
}

// corrupt records that an object is invalid, so that it is not asked for and will be replaced.
func (s *Store) corrupt(t tag, err error) {
	s.counters.Corrupt.Add(1)
	now := s.cfg.Now()
	s.index.note(t, wrong, now.Add(s.cfg.SuspectTime), now)
	s.cfg.Log.Warn().Str("tier", "object").Str("object", t.name()).Err(err).Msg("an object is wrong")
}

// describe reads an object's block and extent header, in one request or in two if the
// header is long. It returns the object's row and etag.
func (s *Store) describe(ctx context.Context, t tag, w *tier.Want, p *profile.Profile) (*catalog.Row, string, error) {
	done, err := s.read(ctx)
	if err != nil {
		return nil, "", err
	}
	defer done()
	b := slab.AlignedBuffer(firstBytes)
	got, err := s.client.get(ctx, t, "", 0, [][]byte{b}, true)
	if err != nil {
		return nil, "", err
	}
	s.health.measured(got.first, 0, 0)
	b = b[:got.n]
	h, err := parseBlock(b, t, got.total)
	if err != nil {
		return nil, "", err
	}
	if n := h.bytes(); n > int64(len(b)) {
		more := slab.AlignedBuffer(int(n))[:n]
		had := copy(more, b)
		if _, err := s.client.get(ctx, t, got.etag, int64(had), [][]byte{more[had:]}, false); err != nil {
			return nil, "", err
		}
		b = more
	}
	row, err := s.keys.parseHead(b, h, t, w, p)
	return row, got.etag, err
}

// found is a tier.Copy: an object with its description. Read fails if the object has
// changed since the description was read.
type found struct {
	store   *Store
	tag     tag
	etag    string
	row     *catalog.Row
	profile *profile.Profile
	tenant  tier.TenantID
}

// Entry implements tier.Copy. Bytes is the total of all ranks.
func (f *found) Entry() *tier.Entry {
	r := f.row
	return &tier.Entry{
		Name: tierName(r.Name), Fingerprint: r.Fingerprint, Tenant: f.tenant, Spec: r.Spec, Packed: r.Packed, Begin: r.Begin, End: r.End,
		Parent: tierName(r.Parent), Bytes: int64(r.Ranks) * r.RankBytes,
	}
}

var _ tier.Placed = (*found)(nil)

// Place implements tier.Placed.
func (f *found) Place() tier.Place { return tier.PlaceObject }

// Close implements tier.Copy.
func (f *found) Close() {}

// Read implements tier.Copy. It reads several ranges in parallel, directly into their
// destination.
func (f *found) Read(ctx context.Context, dst []gpuipc.Ref) (*tier.Content, error) {
	s, r := f.store, f.row
	if len(dst) != r.Ranks {
		return nil, fmt.Errorf("object: read %v of %d ranks to %d: %w", r.Name, r.Ranks, len(dst), tier.ErrInvalid)
	}
	for i := range dst {
		if n := dst[i].Len(); n != r.RankBytes {
			return nil, fmt.Errorf("object: read %v of %d bytes a rank to %d: %w", r.Name, r.RankBytes, n, tier.ErrInvalid)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("object: read %v: %w", r.Name, err)
	}
	if err := s.health.alone(s.cfg.Now()); err != nil {
		return nil, err
	}
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	from := &ranges{found: f, ctx: reading, cancel: cancel}
	m, err := payload.Read(reading, payload.Reading{
		From: from, Row: r, Profile: f.profile, Key: s.keys.seal, Device: s.cfg.Device, To: dst,
		Workers: s.cfg.Streams, Piece: s.cfg.RangeBytes,
	})
	if first := from.failure(); first != nil {
		err = first // the other requests were canceled because of it
	}
	if err = f.outcome(ctx, err); err != nil {
		return nil, err
	}
	s.counters.Read.Add(1)
	s.counters.ReadBytes.Add(uint64(r.RankBytes) * uint64(r.Ranks))
	return &tier.Content{Publisher: m.Publisher, Tokens: m.Tokens, Digests: m.Digests}, nil
}

// outcome updates health and index after a read. The returned error wraps exactly one error
// of package tier, or the context's error.
func (f *found) outcome(ctx context.Context, err error) error {
	s := f.store
	if err == nil {
		s.health.answered()
		return nil
	}
	kind := tier.ErrUnavailable
	switch ended := ctx.Err(); {
	case errors.Is(err, tier.ErrGone):
		kind = tier.ErrGone
		now := s.cfg.Now()
		s.index.note(f.tag, absent, now.Add(s.cfg.AbsentTime), now)
	case errors.Is(err, tier.ErrCorrupt):
		kind = tier.ErrCorrupt
		s.corrupt(f.tag, err)
	case ended != nil:
		kind = ended
	}
	err = fmt.Errorf("object: read %v: %v: %w", f.row.Name, err, kind)
	s.settle(ctx, err)
	return err
}

// ranges is the payload.Source of a read: it requests ranges of the object.
type ranges struct {
	*found
	ctx    context.Context
	cancel func()

	mu  sync.Mutex
	err error // the first error
}

// Read implements payload.Source.
func (r *ranges) Read(_ []slab.Run, off int64, bufs [][]byte) error {
	err := r.read(off, bufs)
	if err != nil {
		r.mu.Lock()
		if r.err == nil {
			r.err = err
		}
		r.mu.Unlock()
		r.cancel()
	}
	return err
}

func (r *ranges) read(off int64, bufs [][]byte) error {
	done, err := r.store.read(r.ctx)
	if err != nil {
		return err
	}
	defer done()
	got, err := r.store.client.get(r.ctx, r.tag, r.etag, blockBytes+off, bufs, false)
	if err == nil {
		r.store.health.measured(got.first, got.rest, got.n)
	}
	return err
}

func (r *ranges) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
