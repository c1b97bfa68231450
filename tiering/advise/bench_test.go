package advise

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

const (
	tenantA tier.TenantID = 1
	tenantB tier.TenantID = 2
)

// fakeStore is a store of two like pools, whose profiles tests add and forget.
type fakeStore struct {
	learned map[tier.ProfileID]*costs.Learned
	last    tier.ProfileID
	limit   Limit
}

func (s *fakeStore) Costs(id tier.ProfileID) (*costs.Learned, error) {
	if l := s.learned[id]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("profile %d is not registered: %w", id, tier.ErrInvalid)
}

func (s *fakeStore) Limits() (segments, checkpoints Limit) { return s.limit, s.limit }

func (s *fakeStore) add(p *profile.Profile) tier.ProfileID {
	s.last++
	s.learned[s.last] = costs.New(p, costs.Priors{})
	return s.last
}

// bench is an advisor over a fake store with one profile and two tenants.
type bench struct {
	testing.TB
	*Advisor
	ctx     context.Context
	store   *fakeStore
	profile *profile.Profile
	id      tier.ProfileID
}

func newBench(t testing.TB, options ...func(*Options)) *bench {
	t.Helper()
	s := &fakeStore{learned: map[tier.ProfileID]*costs.Learned{}, limit: Limit{MaxBytes: 4 << 20}}
	b := &bench{TB: t, ctx: context.Background(), store: s}
	var err error
	b.profile, err = profile.New(talker())
	b.must(err)
	b.id = s.add(b.profile)
	o := Options{
		Config: Config{}.WithDefaults(), Store: s, Tenants: []tier.TenantID{tenantA, tenantB}, MaxProfiles: 64,
		Log: decision.NewLog(1024), Now: func() time.Time { return time.Unix(1000, 0) },
	}
	for _, option := range options {
		option(&o)
	}
	b.Advisor = New(o)
	return b
}

func wholeTree(o *Options) { o.Nodes, o.Bytes = 1<<20, 1<<30 }

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) wantErr(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("error %v, want %v", err, want)
	}
}

// serve records a prompt and answers the advice.
func (b *bench) serve(q Query) *Advice {
	b.Helper()
	q.Profile, q.Record = b.id, true
	if q.Tenant == 0 {
		q.Tenant = tenantA
	}
	var a Advice
	b.must(b.Advise(&q, &a))
	return &a
}

// talker is a small hybrid whose checkpoint takes 512 KiB and 2 KiB a token.
func talker() profile.Identity {
	id := profile.Identity{Model: "talker", Weights: [32]byte{7}, Tokenizer: "bytes", TPSize: 1}
	for range 4 {
		id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: profile.GDN, KeyHeads: 4, ValueHeads: 8, KeyDim: 64, ValueDim: 64, StateDType: profile.F32, TransitionDType: profile.F16,
		}})
	}
	id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindFull, Attention: profile.Attention{
		KVHeads: 4, KeyDim: 128, ValueDim: 128, DType: profile.BF16, Keys: profile.AtZero,
	}})
	return id
}

// promptOf makes the tokens of "name:count name:count".
func promptOf(t testing.TB, text string) []uint32 {
	t.Helper()
	var ids []uint32
	for _, word := range strings.Fields(text) {
		name, count, _ := strings.Cut(word, ":")
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatalf("prompt %q: %v", text, err)
		}
		h := fnv.New32a()
		h.Write([]byte(name))
		for i := range n {
			ids = append(ids, h.Sum32()+uint32(i)*2654435761)
		}
	}
	return ids
}
