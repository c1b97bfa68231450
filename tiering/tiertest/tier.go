package tiertest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Tier makes a subject of a tier.Tier and uses it as the store does. A tenant has nothing in
// other tiers, so its room is its quota. Types that embed Tier implement Settle and Close.
type Tier struct {
	tier.Tier
	Memory *Memory
	Trait  Traits
}

// Traits implements Subject, as do the methods below.
func (s *Tier) Traits() Traits { return s.Trait }

func (s *Tier) Find(o *Object) (Entry, bool) {
	e, ok := s.Lookup(&o.Name)
	if !ok {
		return Entry{}, false
	}
	return Entry{Bytes: e.Bytes, Level: e.Level}, true
}

func (s *Tier) Remove(o *Object) bool { return s.Tier.Remove(&o.Name) }

// Begin also passes the bytes, since a tier may start to write as soon as Start is called.
func (s *Tier) Begin(o *Object) (Filling, error) {
	view := &tier.Object{
		Key: o.Key, Kind: o.Kind, Profile: o.Profile, Tenant: o.Tenant.ID, Publisher: "tiertest", Created: time.Unix(1e9, 0),
		Spec: o.Spec, Tokens: o.Tokens, Packed: o.Packed, Begin: o.Begin, End: o.End, Parent: o.Parent,
	}
	f := &tierFilling{tier: s}
	for rank, b := range o.Bytes {
		ref, err := s.Memory.Put(b)
		if err != nil {
			s.Memory.free(f.refs...)
			return nil, err
		}
		f.refs = append(f.refs, ref)
		view.Shares = append(view.Shares, tier.Share{Ref: ref, Digests: o.Digests[rank]})
	}
	room := cmp.Or(o.Tenant.QuotaBytes, math.MaxInt64)
	var err error
	if f.write, err = s.Admit(view, room); err != nil {
		s.Memory.free(f.refs...)
		return nil, err
	}
	return f, nil
}

type tierFilling struct {
	tier  *Tier
	write tier.Write
	refs  []gpuipc.Ref
}

type tierAnswer struct {
	reached tier.Level
	err     error
}

// Finish waits for the answer even if its context ends, since the tier may read the memory
// until then.
func (f *tierFilling) Finish(_ context.Context, level tier.Level) (tier.Level, error) {
	done := make(chan tierAnswer, 1)
	f.write.Start(level, func(reached tier.Level, err error) { done <- tierAnswer{reached, err} })
	a := <-done
	if err := f.tier.Memory.Spend(f.refs...); err != nil {
		return a.reached, err
	}
	if a.err != nil && a.reached >= tier.LevelLogged {
		return a.reached, nil // the object is there, but at a lower level than requested
	}
	return a.reached, a.err
}

func (f *tierFilling) Cancel() {
	f.write.Cancel()
	f.tier.Memory.free(f.refs...)
}

func (s *Tier) Get(ctx context.Context, o *Object) (*Content, error) {
	e, ok := s.Lookup(&o.Name)
	if !ok {
		return nil, fmt.Errorf("%v: no entry: %w", o, tier.ErrGone)
	}
	if e.Tenant != o.Tenant.ID || e.Fingerprint != o.Profile.Fingerprint() || e.Spec != o.Spec ||
		e.Begin != o.Begin || e.End != o.End || e.Parent != o.Parent {
		return nil, fmt.Errorf("%v: entry %+v: %w", o, e, ErrWrong)
	}
	refs := make([]gpuipc.Ref, len(o.Bytes))
	defer func() { s.Memory.free(refs...) }()
	for i := range refs {
		var err error
		if refs[i], err = s.Memory.alloc(int64(len(o.Bytes[i]))); err != nil {
			return nil, err
		}
	}
	read, err := s.Read(ctx, &e, refs)
	if err != nil {
		return nil, err
	}
	c := &Content{Digests: read.Digests}
	if o.Kind == 0 {
		c.Tokens = read.Tokens
	}
	for _, r := range refs {
		b, err := s.Memory.Load(r)
		if err != nil {
			return nil, err
		}
		c.Bytes = append(c.Bytes, b)
	}
	return c, nil
}
