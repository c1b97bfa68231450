package torture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Timeouts of clients. They are long, so that a busy machine does not turn a hit into a miss.
const (
	patience  = 30 * time.Second
	readTries = 20 // tries to read an item that a lookup finds
	readPause = 20 * time.Millisecond
)

// client is one engine's connection, which survives restarts of the daemon, and an admin client.
type client struct {
	conn   *connector.Client
	admin  *api.Client
	device gpuipc.Accelerator            // nil without a GPU
	models map[*shape][]*connector.Model // by rank
}

// openClient connects, registers the shapes and sets their salts. admin and device may be nil.
func openClient(ctx context.Context, socket string, admin *api.Client, device gpuipc.Accelerator, shapes []*shape) (*client, error) {
	o := connector.Options{
		Socket: socket, Name: "splicectl torture", StagingBytes: stagingBytes, Device: device,
		Timeouts: connector.Timeouts{Lookup: patience, Transfer: patience, Attach: patience},
	}
	for _, s := range shapes {
		if t := (connector.Tenant{Name: s.tenant}); !slices.Contains(o.Tenants, t) {
			o.Tenants = append(o.Tenants, t)
		}
	}
	conn, err := connector.Open(o)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, admin: admin, device: device, models: map[*shape][]*connector.Model{}}
	for _, s := range shapes {
		for rank := range s.ranks() {
			m, err := conn.Register(s.profile, connector.Binding{Tenant: s.tenant, Rank: rank, Engine: "torture"})
			if err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			c.models[s] = append(c.models[s], m)
		}
	}
	if err := c.wait(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	for s, models := range c.models {
		s.salt, _ = models[0].Salt()
	}
	return c, nil
}

// wait blocks until a daemon knows all models.
func (c *client) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, models := range c.models {
		for _, m := range models {
			if err := m.WaitReady(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// put writes all ranks of an item and returns the level in the reply to the last rank. It calls
// the function seen before it fills each run of bytes.
func (c *client) put(ctx context.Context, i *item, level tier.Level, seen func()) (tier.Level, error) {
	return c.putFrom(ctx, i, level, func(fill filler) filler {
		return func(p profile.Part, part int, off int64, dst []byte) error {
			seen()
			return fill(p, part, off, dst)
		}
	})
}

// filler is connector.Source.Fill.
type filler func(p profile.Part, part int, off int64, dst []byte) error

// putFrom is put with a function that wraps the source of each rank.
func (c *client) putFrom(ctx context.Context, i *item, level tier.Level, from func(filler) filler) (tier.Level, error) {
	var stored connector.Stored
	var err error
	for rank, m := range c.models[i.shape] {
		source := connector.Source{Fill: from(i.fill(rank))}
		if i.isSegment() {
			stored, err = m.Put(ctx, &connector.PutQuery{Spec: i.spec, Tokens: i.tokens(), Source: source, Level: wire.Level(level)})
		} else {
			q := connector.SaveQuery{
				Hash: profile.PrefixHash(i.Key), Tokens: i.end, Kind: connector.Accept(i.Kind), Source: source, Level: wire.Level(level),
			}
			if i.parent != nil {
				q.Parent, q.ParentTokens = profile.PrefixHash(i.parent.Key), i.parent.end
			}
			stored, err = m.Save(ctx, &q)
		}
		if err != nil {
			return 0, err
		}
	}
	if !stored.Published {
		return 0, fmt.Errorf("%s: all ranks are written and it is not published", i)
	}
	return tier.Level(stored.Level), nil
}

// found implements cache. One match covers many segments, but only one checkpoint, the longest.
func (c *client) found(ctx context.Context, items []*item) ([]bool, error) {
	out := make([]bool, len(items))
	segments := map[*shape][]int{}
	var answer connector.Found
	for at, i := range items {
		if i.isSegment() {
			segments[i.shape] = append(segments[i.shape], at)
			continue
		}
		q := connector.MatchQuery{
			Accept: connector.Accept(i.Kind), Positions: []uint32{uint32(i.end)}, Prefixes: []profile.PrefixHash{i.Key},
		}
		if err := c.models[i.shape][0].Match(ctx, &q, &answer); err != nil {
			return nil, err
		}
		out[at] = answer.PrefixTokens == i.end
	}
	for s, places := range segments {
		q := connector.MatchQuery{Keys: make([]profile.SegmentKey, len(places))}
		for k, at := range places {
			q.Keys[k] = items[at].Key
		}
		if err := c.models[s][0].Match(ctx, &q, &answer); err != nil {
			return nil, err
		}
		for k, at := range places {
			out[at] = answer.Segments[k].Hit()
		}
	}
	return out, nil
}

// read implements cache. If a lookup finds an item but the read misses it, read tries again,
// because the item may still be on its way from the disk.
func (c *client) read(ctx context.Context, i *item, see func(rank, part int, off int64, b []byte)) (bool, error) {
	for rank := range i.shape.ranks() {
		for try := 1; ; try++ {
			there, err := c.readRank(ctx, i, rank, see, nil)
			if err != nil {
				return false, err
			}
			if there {
				break
			}
			found, err := c.found(ctx, []*item{i})
			if err != nil || !found[0] || try == readTries {
				return false, err
			}
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(readPause):
			}
		}
	}
	return true, nil
}

// timed receives the duration of a call. It may be nil.
type timed func(call string, took time.Duration)

func (t timed) since(call string, begun time.Time) {
	if t != nil {
		t(call, time.Since(begun))
	}
}

func (c *client) readRank(ctx context.Context, i *item, rank int, see func(rank, part int, off int64, b []byte), tell timed) (bool, error) {
	m := c.models[i.shape][rank]
	if i.isSegment() {
		return readSegment(ctx, m, i, rank, see, tell)
	}
	return readCheckpoint(ctx, m, i, rank, see)
}

// allRanks reads the ranks of an item until one is absent.
func allRanks(i *item, read func(rank int) (there bool, err error)) (bool, error) {
	for rank := range i.shape.ranks() {
		if there, err := read(rank); !there || err != nil {
			return false, err
		}
	}
	return true, nil
}

func readSegment(ctx context.Context, m *connector.Model, i *item, rank int, see func(rank, part int, off int64, b []byte), tell timed) (bool, error) {
	begun := time.Now()
	rows, err := m.Acquire(ctx, []profile.SegmentKey{i.Key}, connector.AcquireOptions{})
	tell.since("acquire", begun)
	if err != nil {
		return false, err
	}
	if err := rows[0].Err; err != nil {
		return false, unlessAbsent(err)
	}
	l := rows[0].Lease
	defer func() {
		begun := time.Now()
		l.Release()
		tell.since("release", begun)
	}()
	begin, n := i.spec.Interior()
	if l.Begin != begin || l.Tokens != n {
		return true, nil // see was not called, which counts as wrong bytes
	}
	return true, readParts(l, i, rank, see)
}

func readCheckpoint(ctx context.Context, m *connector.Model, i *item, rank int, see func(rank, part int, off int64, b []byte)) (bool, error) {
	c, ok, err := m.Load(ctx, i.Key, connector.Accept(i.Kind), connector.AcquireOptions{})
	if err != nil || !ok {
		return false, unlessAbsent(err)
	}
	defer c.Release()
	last := c.Last()
	if last.Begin != i.begin || last.End != i.end || c.Kind != connector.Accept(i.Kind) {
		return true, nil
	}
	return true, readParts(last, i, rank, see)
}

// parts is a *connector.Lease or a *connector.Node.
type parts interface {
	Layout() profile.Layout
	Read(i int, dst []byte) error
}

// readParts reads all parts without checking digests, so that only the comparison of bytes
// decides.
func readParts(p parts, i *item, rank int, see func(rank, part int, off int64, b []byte)) error {
	if p.Layout().Bytes != i.layout.Bytes {
		return nil
	}
	for part := range i.layout.Parts {
		b := make([]byte, i.layout.Parts[part].Len)
		if err := p.Read(part, b); err != nil {
			return err
		}
		see(rank, part, 0, b)
	}
	return nil
}

// unlessAbsent returns nil for errors that mean that an object is absent or temporarily not
// available. It returns other errors unchanged.
func unlessAbsent(err error) error {
	for _, absent := range []error{connector.ErrMiss, connector.ErrBusy, connector.ErrFull} {
		if errors.Is(err, absent) {
			return nil
		}
	}
	return err
}

// list implements cache with the admin listings.
func (c *client) list(ctx context.Context) ([]tier.Name, error) {
	var out []tier.Name
	for s, err := range c.admin.Segments(ctx, api.SegmentQuery{Limit: api.MaxLimit}) {
		if err != nil {
			return nil, err
		}
		out = append(out, tier.Name{Key: s.Key})
	}
	for p, err := range c.admin.Checkpoints(ctx, api.CheckpointQuery{Limit: api.MaxLimit}) {
		if err != nil {
			return nil, err
		}
		kind := tier.Exact
		if p.Kind == "spliced" {
			kind = tier.Spliced
		}
		out = append(out, tier.Name{Kind: kind, Key: p.Hash})
	}
	return out, nil
}

// remove requests the removal of a segment. It is no error if the segment is absent or in use.
func (c *client) remove(ctx context.Context, i *item) error {
	_, err := c.admin.Remove(ctx, api.Digest(i.Key), false)
	var p *api.Problem
	if errors.As(err, &p) {
		return nil
	}
	return err
}
