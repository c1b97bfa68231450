package tiering

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestWhatIsPinnedStaysUntilItsTime(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("writer")
	kept := b.mid(0, 64, 8)
	b.publish(c, kept)
	dry, err := b.Pin(t.Context(), PinQuery{Key: kept.key, TTL: time.Hour, By: "me", Dry: true})
	b.must(err)
	if len(b.Pins()) != 0 || len(dry) != 1 || dry[0].Bytes == 0 {
		t.Fatalf("a dry run: %+v, pins %+v", dry, b.Pins())
	}
	_, err = b.Pin(t.Context(), PinQuery{Key: kept.key, TTL: time.Hour, By: "me"})
	b.must(err)
	_, err = b.Pin(t.Context(), PinQuery{Key: kept.key, TTL: time.Hour, By: "again"}) // only another time
	b.must(err)
	pins := b.Pins()
	if len(pins) != 1 || pins[0].By != "again" || pins[0].Key != kept.key || pins[0].Tenant != tenantA {
		t.Fatalf("pins %+v", pins)
	}
	b.wantErr(b.Evict(kept.key), tier.ErrBusy)

	held := func() bool {
		return len(b.Segments(SegmentFilter{Prefix: fmt.Sprintf("%x", kept.key)}, nil, 2)) == 1
	}
	fill := func(from int) { // more than the pool holds
		for i := range 2 * int(b.Pools()[0].CapacityBytes/pins[0].Bytes) {
			b.publish(c, b.mid(from+i, 64, 8))
		}
	}
	fill(100)
	if !held() {
		t.Fatal("a pinned segment was evicted")
	}
	b.clock.advance(2 * time.Hour)
	b.Sweep()
	if n := len(b.Pins()); n != 0 {
		t.Fatalf("%d pins past their time", n)
	}
	if p := b.Pools()[0]; p.LeasedBytes+p.QuarantinedBytes != 0 {
		t.Fatalf("%d bytes are leased and %d quarantined after the last pin", p.LeasedBytes, p.QuarantinedBytes)
	}
	fill(10000)
	if held() {
		t.Fatal("a segment that is not pinned any more was not evicted")
	}
}

func TestPinsTakeHalfAPool(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("writer")
	var bytes int64
	var failed error
	n := 0
	for ; failed == nil; n++ {
		p := b.mid(n, 64, 8)
		b.publish(c, p)
		var got []PinInfo
		if got, failed = b.Pin(t.Context(), PinQuery{Key: p.key, TTL: time.Minute}); failed == nil {
			bytes += got[0].Bytes
		}
	}
	b.wantErr(failed, tier.ErrFull)
	if half := b.Pools()[0].CapacityBytes / 2; bytes > half || bytes < half/2 {
		t.Fatalf("%d bytes are pinned, half a pool is %d", bytes, half)
	}
	for _, p := range b.Pins() {
		if ended, err := b.Unpin(p.Key, false); err != nil || len(ended) != 1 {
			t.Fatalf("%+v, %v", ended, err)
		}
	}
	_, err := b.Unpin([32]byte{1}, false)
	b.wantErr(err, tier.ErrGone)
	_, err = b.Pin(t.Context(), PinQuery{Key: [32]byte{1}, TTL: time.Minute})
	b.wantErr(err, tier.ErrGone)
	_, err = b.Pin(t.Context(), PinQuery{Key: b.mid(0, 64, 8).key, TTL: MaxPinTTL + 1})
	b.wantErr(err, tier.ErrInvalid)
}

// A checkpoint is pinned with what it extends.
func TestPinnedCheckpointsKeepTheirChain(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("writer")
	for n := 40; n <= 120; n += 40 {
		b.save(c, b.saveQuery(1, n, n-40, tier.Exact), n-40)
	}
	leaf := b.saveQuery(1, 120, 80, tier.Exact).Hash
	pins, err := b.Pin(t.Context(), PinQuery{Key: leaf, TTL: time.Minute})
	b.must(err)
	var chain int64
	for _, p := range b.Pools() {
		chain += p.UsedBytes
	}
	if len(pins) != 1 || pins[0].Bytes != chain {
		t.Fatalf("%+v, the chain has %d bytes", pins, chain)
	}
	var told []error
	list := b.wants(b.Checkpoints(CheckpointFilter{}, nil, 10))
	b.Discard(t.Context(), list, func(_ int, err error) { told = append(told, err) })
	if len(told) != 3 {
		t.Fatalf("%d answers", len(told))
	}
	for _, err := range told {
		b.wantErr(err, tier.ErrBusy)
	}
	_, err = b.Unpin(leaf, false)
	b.must(err)
}

// Wrong bytes are kept by no pin, and what takes their place is pinned only when somebody
// pins it.
func TestWhatIsCorruptIsPinnedNoMore(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("writer")
	p := b.mid(0, 64, 8)
	pin := func(key [32]byte) {
		t.Helper()
		_, err := b.Pin(t.Context(), PinQuery{Key: key, TTL: time.Hour})
		b.must(err)
	}
	corrupt := func(find func(*[32]byte) *objects.Object, key [32]byte) {
		b.cat.Mu.Lock()
		defer b.cat.Mu.Unlock()
		b.cat.Objects.MarkCorrupt(find(&key))
	}
	b.publish(c, p)
	pin(p.key)
	corrupt(b.cat.Objects.Names.Segments.Find, p.key)
	b.publish(c, p)
	b.must(b.Evict(p.key))
	b.publish(c, p)
	pin(p.key)
	b.wantErr(b.Evict(p.key), tier.ErrBusy)
	b.Sweep()
	b.wantUsed(b.cost(p), 0)
	if pins := b.Pins(); len(pins) != 1 {
		t.Fatalf("pins %+v", pins)
	}
	_, err := b.Unpin(p.key, false)
	b.must(err)

	for n := 40; n <= 80; n += 40 {
		b.save(c, b.saveQuery(1, n, n-40, tier.Exact), n-40)
	}
	root, leaf := b.saveQuery(1, 40, 0, tier.Exact).Hash, b.saveQuery(1, 80, 40, tier.Exact).Hash
	pin(leaf)
	corrupt(b.cat.Objects.Names.Checkpoints.Find, root)
	b.Sweep()
	list := b.wants(b.Checkpoints(CheckpointFilter{}, nil, 10))
	if list[0].Key != leaf { // which goes first
		slices.Reverse(list)
	}
	b.Discard(t.Context(), list, func(_ int, err error) { b.must(err) })
	if pool := b.Pools()[1]; len(b.Pins()) != 0 || pool.UsedBytes != 0 {
		t.Fatalf("pins %+v, %d bytes are used", b.Pins(), pool.UsedBytes)
	}
}

// wants names checkpoints, those that extend others first.
func (b *bench) wants(list []CheckpointInfo) []tier.Want {
	out := make([]tier.Want, len(list))
	for i, c := range list {
		p, _ := b.Store.Profile(c.Profile)
		out[i] = tier.Want{Name: tier.Name{Kind: c.Kind, Key: c.Hash}, Fingerprint: p.Fingerprint(), Tenant: c.Tenant}
	}
	return out
}

// What lies on disk only is read to be pinned, and stays in memory though the disk loses it.
func TestPinningReadsFromTheDisk(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	p := x.mid(0, 64, 8)
	x.sink(p)
	x.wantOnDisk(p)
	dry, err := x.Pin(t.Context(), PinQuery{Key: p.key, TTL: time.Minute, Dry: true})
	x.must(err)
	x.wantOnDisk(p)
	done := make(chan error, 1)
	go func() {
		_, err := x.Pin(t.Context(), PinQuery{Key: p.key, TTL: time.Minute})
		done <- err
	}()
	for ended := false; !ended; {
		select {
		case err := <-done:
			x.must(err)
			ended = true
		default:
			x.carry()
		}
	}
	if pins := x.Pins(); len(pins) != 1 || pins[0].Bytes != dry[0].Bytes {
		t.Fatalf("pins %+v, the dry run said %+v", pins, dry)
	}
	x.dropAll()
	x.tier.mu.Lock()
	clear(x.tier.entries)
	clear(x.tier.used)
	x.tier.mu.Unlock()
	if got := x.status(p); got.Status != tier.StatusHit || got.Place != tier.PlaceDRAM {
		t.Fatalf("a pinned segment that the disk has lost: %+v", got)
	}
	_, err = x.Unpin(p.key, false)
	x.must(err)
}
