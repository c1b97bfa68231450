package connector

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// AcquireOptions are options of Acquire and Load. The zero value is usable.
type AcquireOptions struct {
	// TTL is the lifetime of the leases. 0 = the daemon's default; Lease.Valid does not know
	// that default. A TTL above the daemon's limit is ErrInvalid.
	TTL     time.Duration
	Digests bool // ask for digests, so that Read and Verify can check

	// With All, the call leases every key or none. If the daemon has no room for all keys besides
	// its current leases, every row is ErrFull or ErrBusy, and the daemon evicts and reads nothing.
	// If one key misses, the rows of the other keys are ErrCanceled. Only Acquire uses All, with at
	// most wire.MaxKeys keys.
	All bool

	// Wait bounds each request of the call; 0 = Timeouts.Lookup. Before it grants a lease, the
	// daemon reads an entry that Match found in wire.TierDisk, at about a millisecond per MiB,
	// and fetches an entry in wire.TierPeer. An entry that does not arrive in time is a miss,
	// but the read continues, so that a later call finds it. If the daemon stalls, the call also
	// takes this long.
	Wait time.Duration
}

// timeout returns the bound of one acquire or load.
func (c *Client) timeout(o AcquireOptions) time.Duration {
	if o.Wait > 0 {
		return o.Wait
	}
	return c.opt.Timeouts.Lookup
}

// A Lease is one segment leased for reading.
type Lease struct {
	held
	object
	Begin  int // first interior token, local to the segment
	Tokens int // interior tokens
	packed profile.Packed
}

// Release releases the lease. Its memory must not be used any more. Calls after the first do
// nothing. If the daemon does not answer within Timeouts.Lookup, the release is sent again
// later.
func (l *Lease) Release() {
	if l != nil {
		l.release()
	}
}

// Valid reports whether the lease's bytes are unchanged. That is so if the lease was not
// released, its TTL (if any) has not expired, and its connection is open. The connection may
// also have ended because the daemon's process died: no process can then write the bytes.
// Client.Close ends a lease, and so does a living daemon that closes the connection.
func (l *Lease) Valid() bool { return l != nil && l.valid() }

// Errors returns bounds on how much the lease's packed transitions and end-states differ from
// the published ones, measured as in profile.Packed.Errors; 0 = they are identical.
func (l *Lease) Errors() (transition, state float32) { return l.packed.Errors() }

// Same reports whether two leases refer to the same bytes of one arena. It is reliable if the
// same client acquired both from the same daemon, and held a lease of the segment all the time
// between the first acquire and the second.
func (l *Lease) Same(as *Lease) bool {
	return l.a == as.a && l.Begin == as.Begin && l.Tokens == as.Tokens && slices.Equal(l.extents, as.extents)
}

// Acquired is one row of Acquire: a lease, or the reason for its absence.
type Acquired struct {
	Lease *Lease
	Err   error // ErrMiss, ErrBusy, …
}

// Acquire leases segments and returns one row per key. An error applies to the whole call; no
// lease is then held.
func (m *Model) Acquire(ctx context.Context, keys []profile.SegmentKey, o AcquireOptions) ([]Acquired, error) {
	r, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer r.a.Release()
	if o.All && len(keys) > wire.MaxKeys {
		return nil, invalid("acquire: %d keys together", len(keys))
	}
	out := make([]Acquired, len(keys))
	todo := make([]int, len(keys))
	for i := range todo {
		todo[i] = i
	}
	for len(todo) > 0 {
		again, err := m.acquire(ctx, r, keys, todo, o, out)
		if err != nil {
			leases := make([]*Lease, len(out))
			for i := range out {
				leases[i] = out[i].Lease
			}
			Release(leases...)
			return nil, err
		}
		todo = again
	}
	return out, nil
}

// acquire requests the first rows of todo, as many as fit into a request. It returns the rows
// that must be requested again: the rows that did not fit into the request and, if other rows
// succeeded, the busy rows, because the daemon also marks a row as busy if the reply is full.
func (m *Model) acquire(ctx context.Context, r *registration, keys []profile.SegmentKey, todo []int, o AcquireOptions, out []Acquired) ([]int, error) {
	now := todo[:min(len(todo), wire.MaxKeys)]
	until := o.until()
	k := r.a.Get(ctx, wire.OpAcquire, m.client.timeout(o))
	defer r.a.Put(k)
	k.Late.GiveBack = true
	q := &k.Acquire
	q.Profile, q.Rank, q.TTLMs, q.Digests = r.profile, uint32(m.binding.Rank), milliseconds(o.TTL), flag(o.Digests)
	q.All = flag(o.All)
	q.Keys = q.Keys[:0]
	for _, i := range now {
		q.Keys = append(q.Keys, keys[i])
	}
	reply := &k.Acquired
	if err := r.ask(ctx, k, q, reply); err != nil {
		return nil, err
	}
	if err := r.a.CheckRows(wire.OpAcquire, len(reply.Codes), len(now)); err != nil {
		return nil, err
	}
	return m.leases(r, reply, until, now, todo[len(now):], out)
}

// until returns the time after which the client no longer relies on leases that it requests now;
// zero = no limit. The daemon counts the lifetime from the moment when it grants a lease, so a
// lease does not expire before this time.
func (o *AcquireOptions) until() time.Time {
	if o.TTL <= 0 {
		return time.Time{}
	}
	return time.Now().Add(o.TTL)
}

// leases converts the rows of a reply into leases.
func (m *Model) leases(r *registration, reply *wire.AcquireReply, until time.Time, now, rest []int, out []Acquired) (again []int, err error) {
	extent, digest, packed, got := uint32(0), uint32(0), uint32(0), 0
	for row, i := range now {
		e, d := reply.ExtentCount[row], reply.DigestCount[row]
		var how profile.Packed
		if reply.Packed.Present {
			how = profile.Packed(reply.Packed.Layout[packed : packed+reply.Packed.Count[row]])
			packed += reply.Packed.Count[row]
		}
		switch code := wire.Code(reply.Codes[row]); code {
		case wire.OK:
			l, bad := m.lease(r, reply, row, extent, digest, how)
			if bad != nil {
				r.a.BrokeProtocol(bad)
				return nil, fmt.Errorf("acquire: %v: %w", bad, ErrUnavailable)
			}
			l.until = until
			out[i] = Acquired{Lease: l}
			got++
		case wire.Busy:
			out[i] = Acquired{Err: ErrBusy}
			again = append(again, i)
		default:
			out[i] = Acquired{Err: link.Kind(code)}
		}
		extent, digest = extent+e, digest+d
	}
	if got == 0 {
		again = nil // busy for a reason other than room in the reply
	}
	return append(again, rest...), nil
}

func (m *Model) lease(r *registration, reply *wire.AcquireReply, row int, extent, digest uint32, packed profile.Packed) (*Lease, error) {
	l := &Lease{
		held:  held{a: r.a, tenant: r.tenant, id: reply.Leases[row]},
		Begin: int(reply.Begins[row]), Tokens: int(reply.Tokens[row]), packed: packed,
	}
	layout, e, err := m.segment(reply, row, extent, packed, len(r.a.Arena.Bytes()))
	if err != nil {
		return nil, err
	}
	if l.object, err = newObject(&l.held, layout, e, reply.Digest[digest:digest+reply.DigestCount[row]]); err != nil {
		return nil, err
	}
	if !r.a.Retain() {
		return nil, fmt.Errorf("the mappings are gone")
	}
	return l, nil
}

// segment checks a row of a reply, whose extents begin at the index in the parameter extent. It
// returns the layout of the segment, and its place in a region of the given size.
func (m *Model) segment(reply *wire.AcquireReply, row int, extent uint32, packed profile.Packed, region int) (profile.Layout, extents, error) {
	tokens := int(reply.Tokens[row])
	if tokens < 1 || tokens > profile.MaxTokens {
		return profile.Layout{}, nil, fmt.Errorf("a segment of %d tokens", tokens)
	}
	layout := m.layouts.of(m.profile, tokens)
	if packed != "" { // the layout depends on the packing, so it is not cached
		var err error
		if layout, err = m.profile.PackedLayout(tokens, packed); err != nil {
			return layout, nil, err
		}
	}
	if uint64(layout.Bytes) != reply.Bytes[row] {
		return layout, nil, fmt.Errorf("a segment of %d bytes, want %d for %d tokens", reply.Bytes[row], layout.Bytes, tokens)
	}
	end := extent + reply.ExtentCount[row]
	e, err := newExtents(reply.ExtentOff[extent:end], reply.ExtentLen[extent:end], reply.Bytes[row], region, false)
	return layout, e, err
}

func milliseconds(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(max(1, min(d.Milliseconds(), 1<<32-1)))
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrInvalid)...)
}
