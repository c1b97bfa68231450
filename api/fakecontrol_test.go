package api

import (
	"context"
	"slices"
	"sync"
)

// fakeControl changes nothing but its configuration and its pins.
type fakeControl struct {
	mu     sync.Mutex
	config Config
	asked  []RemovalQuery
	pins   []Pin
	reload error
}

func newFakeControl() *fakeControl {
	return &fakeControl{config: Config{
		LogLevel: "info", PublicBytes: 1 << 20, PrivateBytes: 1 << 20, PoolsBytes: 1 << 21, Quotas: map[string]Quota{"a": {1 << 10}},
		Settings: map[string]string{"lease-ttl": "1m0s", "http": "off"},
	}, pins: []Pin{{Key: Digest{5}, Object: "segment", Tenant: "a", Profile: 1, Bytes: 4096, Expires: longAgo, By: "me"}}}
}

func (f *fakeControl) RemoveSegments(_ context.Context, q RemovalQuery) (Removed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, q)
	return Removed{Matched: 3, Removed: 2, Busy: 1, Bytes: 1 << 20}, nil
}

func (f *fakeControl) RemoveCheckpoints(ctx context.Context, q RemovalQuery) (Removed, error) {
	return f.RemoveSegments(ctx, q)
}

func (f *fakeControl) Checkpoint(n CheckpointName) (CheckpointDetail, error) {
	if n.Hash == (Digest{9}) {
		return CheckpointDetail{}, ErrNotFound
	}
	parent := Digest{1}
	return CheckpointDetail{Checkpoint: Checkpoint{Hash: n.Hash, Parent: &parent, Model: "m", Tenant: "a", Kind: "rows", Level: LevelMemory, Tiers: []string{"disk"}, Created: longAgo, LastUsed: longAgo}, Others: 1}, nil
}

func (f *fakeControl) RemoveCheckpoint(n CheckpointName, _ bool) (Removed, error) {
	if n.Hash == (Digest{9}) {
		return Removed{}, ErrNotFound
	}
	return Removed{Matched: 1, Removed: 1}, nil
}

func (f *fakeControl) Pins() ([]Pin, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.pins), nil
}

func (f *fakeControl) Pin(_ context.Context, q PinQuery) ([]Pin, error) {
	switch q.Key {
	case Digest{9}:
		return nil, ErrNotFound
	case Digest{8}:
		return nil, ErrFull
	}
	return []Pin{{Key: q.Key, Object: "checkpoint", Tenant: "a", Expires: longAgo, By: q.By}}, nil
}

func (f *fakeControl) Unpin(key Digest, _ bool) ([]Pin, error) {
	if key == (Digest{9}) {
		return nil, ErrNotFound
	}
	return f.Pins()
}

func (f *fakeControl) Leases(q LeaseQuery) (list []Lease, _ error) {
	for id := uint64(1); id <= 3; id++ {
		if id > q.After && len(list) < q.Limit {
			list = append(list, Lease{Lease: id, Object: "segment", Key: Digest{1}, Tenant: "a", Client: "c", Connection: 7, Since: longAgo, Expires: longAgo, Bytes: 1, Device: "GPU-1"})
		}
	}
	return list, nil
}

func (f *fakeControl) Config() (Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.config, nil
}

func (f *fakeControl) ChangeConfig(to Config, dry bool) (Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if to.PublicBytes+to.PrivateBytes > f.config.PoolsBytes {
		return Config{}, Invalid(Violation{"public_bytes", "the arena is smaller"})
	}
	if !dry {
		f.config = to
	}
	return to, nil
}

func (f *fakeControl) Drain(on, dry bool) (Drained, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !dry {
		f.config.Draining = on
	}
	return Drained{Draining: on, DryRun: dry, Connections: 1, Leases: 2}, nil
}

func (f *fakeControl) Reload(bool) (Reloaded, error) {
	return Reloaded{Read: []string{"token-file"}, Changed: []string{"token-file"}}, f.reload
}
