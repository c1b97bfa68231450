package doctor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

const (
	tripTimeout = 20 * time.Second
	tripTokens  = 24
)

// trip is the round trip of one segment, through the client that engines use.
type trip struct {
	client *connector.Client
	model  *connector.Model
	spec   profile.SegmentSpec
	tokens []uint32
	key    profile.SegmentKey
	parts  [][]byte
}

// checkRoundTrip registers a temporary profile, for which daemon and client compare their layouts.
// It then stores and reads a segment of random bytes.
func checkRoundTrip(ctx context.Context, v *visit) []Check {
	v.close() // the trip has its own connection, and there may be room for one only
	ctx, cancel := context.WithTimeout(ctx, tripTimeout)
	defer cancel()
	t := &trip{}
	defer t.close()
	if err := t.open(ctx, &v.options); err != nil {
		return []Check{fail("layout", tripRemedy(err), "%v", err)}
	}
	checks := []Check{ok("layout", "client and daemon agree on every part of a test profile (%d bytes a segment)", t.bytes())}
	begin := time.Now()
	if err := t.run(ctx); err != nil {
		checks = append(checks, fail("round trip", tripRemedy(err), "%v", err))
	} else {
		checks = append(checks, ok("round trip", "match, put, match, acquire, verify, release in %.1f ms", time.Since(begin).Seconds()*1e3))
	}
	return append(checks, t.cleanUp(ctx, v.options.Admin))
}

// tripRemedy returns the remedy for a failed trip.
func tripRemedy(err error) string {
	switch {
	case errors.Is(err, connector.ErrFull):
		return "the public pool has no room for a small segment: raise arena, or wait until engines release what they hold"
	case errors.Is(err, connector.ErrQuota):
		return "raise the tenant's quota, or name another tenant with --tenant"
	case errors.Is(err, connector.ErrBusy):
		return "the daemon is at the limit that it names: wait, and try again"
	case errors.Is(err, connector.ErrDenied):
		return "name a tenant that may do this with --tenant"
	case errors.Is(err, connector.ErrUnavailable):
		return "the daemon ended, drains or does not answer: its log says why"
	}
	return "the daemon's log says why; client and daemon must be of one release"
}

func (t *trip) open(ctx context.Context, o *Options) error {
	p, err := profile.Trial()
	if err != nil {
		return err
	}
	t.client, err = connector.Open(connector.Options{Socket: o.Socket, Name: profile.TrialClient, StagingBytes: 4 << 20, SlotBytes: 1 << 20,
		Tenants:  []connector.Tenant{{Name: o.Tenant, Token: o.TenantToken}},
		Timeouts: connector.Timeouts{Lookup: answerTimeout, Transfer: answerTimeout}})
	if err != nil {
		return err
	}
	if err := t.client.WaitAttached(ctx); err != nil {
		return err
	}
	if t.model, err = t.client.Register(p, connector.Binding{Tenant: o.Tenant, Connector: profile.TrialClient}); err != nil {
		return err
	}
	if err := t.model.WaitReady(ctx); err != nil {
		return err
	}
	return t.invent(p)
}

// invent generates random tokens and contents, so that two runs never share a key.
func (t *trip) invent(p *profile.Profile) error {
	var haveSpec, haveKey bool
	if t.spec, haveSpec = p.MidSpec(tripTokens, 4); !haveSpec {
		return errors.New("the test segment has no interior")
	}
	seed := make([]byte, 4*tripTokens)
	if _, err := rand.Read(seed); err != nil {
		return err
	}
	for i := range tripTokens {
		t.tokens = append(t.tokens, binary.LittleEndian.Uint32(seed[4*i:]))
	}
	if t.key, haveKey = t.model.SegmentKey(t.spec, t.tokens); !haveKey {
		return errors.New("the daemon returned no salt")
	}
	_, interior := t.spec.Interior()
	for _, part := range p.SegmentLayout(interior).Parts {
		b := make([]byte, part.Len)
		if _, err := rand.Read(b); err != nil {
			return err
		}
		t.parts = append(t.parts, b)
	}
	return nil
}

func (t *trip) bytes() int64 {
	_, interior := t.spec.Interior()
	return t.model.Profile().SegmentLayout(interior).Bytes
}

func (t *trip) run(ctx context.Context) error {
	if err := t.expect(ctx, wire.StatusMiss); err != nil {
		return err
	}
	stored, err := t.model.Put(ctx, &connector.PutQuery{Spec: t.spec, Tokens: t.tokens, Source: connector.Source{Parts: t.parts}})
	if err != nil {
		return fmt.Errorf("put: %w", err)
	}
	if !stored.Published {
		return errors.New("put: the segment was not published")
	}
	if err := t.expect(ctx, wire.StatusHit); err != nil {
		return err
	}
	got, err := t.model.Acquire(ctx, []profile.SegmentKey{t.key}, connector.AcquireOptions{Digests: true})
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	if got[0].Err != nil {
		return fmt.Errorf("acquire: %w", got[0].Err)
	}
	defer got[0].Lease.Release()
	return t.compare(got[0].Lease)
}

// expect matches the key and compares the status.
func (t *trip) expect(ctx context.Context, status uint8) error {
	var found connector.Found
	if err := t.model.Match(ctx, &connector.MatchQuery{Keys: []profile.SegmentKey{t.key}}, &found); err != nil {
		return fmt.Errorf("match: %w", err)
	}
	if got := found.Segments[0].Status; got != status {
		return fmt.Errorf("match: status %d, want %d", got, status)
	}
	return nil
}

// compare checks digests, and every byte against what was stored.
func (t *trip) compare(lease *connector.Lease) error {
	if err := lease.Verify(); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	for i, want := range t.parts {
		got := make([]byte, len(want))
		if err := lease.Read(i, got); err != nil {
			return fmt.Errorf("read part %d: %w", i, err)
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("part %d was read back changed, but its digest matches", i)
		}
	}
	return nil
}

// cleanUp removes the test segment.
func (t *trip) cleanUp(ctx context.Context, admin *api.Client) Check {
	const name = "clean-up"
	if admin == nil {
		return warn(name, "nothing to do: it is evicted when room is needed", "%d bytes stay, since the admin address is not known", t.bytes())
	}
	_, err := admin.Remove(ctx, api.Digest(t.key), false)
	if err != nil && !errors.Is(err, api.ErrNotFound) {
		return warn(name, "nothing to do: it is evicted when room is needed", "%d bytes stay: %v", t.bytes(), err)
	}
	return ok(name, "the test segment is removed")
}

func (t *trip) close() {
	if t.client != nil {
		// All resources end with the connection, even if closing fails.
		_ = t.client.Close()
	}
}
