package objects

import (
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

const testPage = 4 << 10

// bench is a set without a store around it, with one profile and one tenant.
type bench struct {
	*testing.T
	*Set
	counters stats.Counters
	profile  *Profile
	tenant   *Tenant
	now      time.Time
}

func newBench(t *testing.T) *bench {
	t.Helper()
	p, err := profile.New(profile.Identity{
		Model: "small", Weights: [32]byte{1}, Tokenizer: "bytes", TPSize: 1,
		Layers: []profile.Layer{
			{Kind: profile.KindLinear, Linear: profile.Linear{
				Family: profile.GDN, KeyHeads: 4, ValueHeads: 4, KeyDim: 64, ValueDim: 64, StateDType: profile.F32, TransitionDType: profile.F32,
			}},
			{Kind: profile.KindFull, Attention: profile.Attention{
				KVHeads: 2, KeyDim: 64, ValueDim: 64, DType: profile.F32, Keys: profile.AtZero, Rope: profile.Rope{Dims: 64, Theta: 1e4},
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, tenant: &Tenant{ID: 1, Name: "a"}, now: time.Unix(1000, 0)}
	b.profile = NewProfile(plan.NewGeometry(p, 1, testPage, plan.NewParts()), 1, costs.Priors{})
	b.Set = New(Options{
		Now: func() time.Time { return b.now }, Log: decision.NewLog(16), Place: tier.PlaceDRAM, PageBytes: testPage,
		Public: 1 << 20, Private: 4 << 20, MaxChain: 8, MaxGhosts: 16,
		Eviction: policy.NewDefault, EvictionPublic: policy.NewDefault, EvictionPrivate: policy.NewDefault, HighWater: 0.9, LowWater: 0.8,
		Short: func() { t.Error("a pool is short of what could be written to no tier") },
	}, []*Tenant{b.tenant}, &b.counters)
	return b
}

// publish adds a checkpoint of so many tokens, complete from the start.
func (b *bench) publish(end int, parent *Object) *Object {
	b.Helper()
	o := &Object{
		Key: [32]byte{byte(end)}, Kind: tier.Exact, Profile: b.profile, Tenant: b.tenant, Pool: b.Pools[PrivatePool],
		End: end, Depth: 1, links: links{Parent: parent},
	}
	if parent != nil {
		o.Begin, o.Depth, o.Extends, o.ExtendsKind = parent.End, parent.Depth+1, parent.Key, parent.Kind
	}
	b.Memory.Measure(o)
	b.Memory.Allocate(o, o.RankBytes)
	o.Fill = NewFill(o, o.Layout())
	b.Link(o)
	if found, why := b.Names.Best(&o.Key, tier.Exact, b.profile, b.tenant); found != nil || why != tier.ReasonPending {
		b.Fatalf("%s while it is filled: found %v, reason %v, want pending", o.Name(), found != nil, why)
	}
	b.Publish(o, b.now, decision.Filled)
	return o
}

// wantPool compares the accounts of checkpoints.
func (b *bench) wantPool(when string, used, pinned int64) {
	b.Helper()
	if p := b.Pools[PrivatePool]; p.Used != used || p.Pinned != pinned || b.Memory.Pages.UsedBytes() != used {
		b.Fatalf("%s: %d bytes used, %d pinned, %d of pages, want %d used and %d pinned", when, p.Used, p.Pinned, b.Memory.Pages.UsedBytes(), used, pinned)
	}
}

func TestWhatIsUsedPinsWhatItExtends(t *testing.T) {
	b := newBench(t)
	root := b.publish(16, nil)
	leaf := b.publish(32, root)
	other := b.publish(48, root)
	all := root.PageBytes + leaf.PageBytes + other.PageBytes
	b.wantPool("idle", all, 0)
	b.Use(leaf)
	b.wantPool("in use", all, root.PageBytes+leaf.PageBytes)
	if id, ok := b.Pools[PrivatePool].Evict.Victim(AnyID); !ok || b.Table.Get(id) != other {
		t.Fatalf("a victim is there: %v, want the one that nobody uses or extends", ok)
	}
	b.Use(other)
	if _, ok := b.Pools[PrivatePool].Evict.Victim(AnyID); ok {
		t.Fatal("something may leave although all of it is used or extended")
	}
	b.Unuse(other)
	b.Unuse(leaf)
	b.wantPool("idle again", all, 0)
}

func TestMemoryIsFreedByWhoLetsGoLast(t *testing.T) {
	b := newBench(t)
	o := b.publish(16, nil)
	bytes := o.PageBytes
	b.Use(o)
	b.Unlink(o, tier.ReasonEvicted)
	if found, _ := b.Names.Best(&o.Key, tier.Exact, b.profile, b.tenant); found != nil {
		t.Fatal("what was unlinked is found")
	}
	if why := b.Names.Gone(&o.Key, b.profile, b.tenant); why != tier.ReasonEvicted {
		t.Fatalf("it is gone for reason %v, want evicted", why)
	}
	b.wantPool("unlinked and in use", bytes, bytes)
	b.Unuse(o)
	b.wantPool("let go", 0, 0)
	if b.tenant.Total() != 0 || b.profile.Held != 0 {
		t.Fatalf("the tenant holds %d bytes and the profile %d objects, want none", b.tenant.Total(), b.profile.Held)
	}
}

func TestStrippedNodeLeavesWithItsLastChild(t *testing.T) {
	b := newBench(t)
	root := b.publish(16, nil)
	leaf := b.publish(32, root)
	all := root.PageBytes + leaf.PageBytes
	b.Strip(root, decision.ForRoom, nil)
	if root.StatePages == 0 {
		t.Fatal("a checkpoint without states")
	}
	b.wantPool("stripped", all-root.StatePages, 0)
	if found, why := b.Names.Best(&root.Key, tier.Exact, b.profile, b.tenant); found != nil || why != tier.ReasonEvicted {
		t.Fatalf("a stripped node: found %v, reason %v, want evicted", found != nil, why)
	}
	if found, _ := b.Names.BestNode(&root.Key, tier.Exact, b.profile, b.tenant, true); found != root {
		t.Fatal("the rows of a stripped node are not found")
	}
	b.Unlink(leaf, tier.ReasonEvicted)
	b.wantPool("without children", 0, 0)
	if n := b.counters.StrippedDropped; n != 1 {
		t.Fatalf("%d stripped nodes left with their last child, want 1", n)
	}
}
