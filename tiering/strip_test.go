package tiering

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// stripped makes a chain of checkpoints at 16, 32 and 48 tokens and thins those of
// the given ends.
func strippedBench(t *testing.T, ends ...int) (b *bench, c *Session, data map[int][]byte) {
	t.Helper()
	b = newBench(t, stateful(1))
	c = b.NewSession("c")
	data = map[int][]byte{}
	for _, end := range []int{16, 32, 48} {
		data[end] = b.save(c, b.saveQuery(1, end, end-16, tier.Exact), end-16)[0]
	}
	for _, end := range ends {
		b.strip(1, end)
	}
	return b, c, data
}

// strip takes a checkpoint's states away as an eviction would.
func (b *bench) strip(prompt, end int) {
	b.Helper()
	b.cat.Mu.Lock()
	o := b.node(prompt, end)
	if o == nil || o.Ranked != objects.Candidate || o.Children != 1 {
		b.cat.Mu.Unlock()
		b.Fatalf("checkpoint %d of prompt %d may not be stripped", end, prompt)
	}
	b.cat.Objects.Strip(o, decision.ForRoom, nil)
	b.cat.Mu.Unlock()
	b.audit()
}

// node finds a checkpoint in memory; the caller holds the lock.
func (b *bench) node(prompt, end int) *objects.Object {
	p, _ := b.Store.cat.Profile(b.id)
	return b.cat.Objects.Names.Checkpoint((*[32]byte)(ptr(hashOf(prompt, end))), tier.Exact, p, b.cat.Objects.Tenants[tenantA])
}

func ptr[T any](v T) *T { return &v }

func (b *bench) wantRows(node LoadedNode, want []byte) {
	b.Helper()
	l := b.profile.CheckpointLayout(node.End - node.Begin)
	got := b.loadShare(node.Extents)
	for _, part := range l.Parts {
		if plan.IsRows(part.Kind) && !bytes.Equal(got[part.Off:part.Off+part.Len], want[part.Off:part.Off+part.Len]) {
			b.Fatalf("rows [%d, %d) of layer %d differ", node.Begin, node.End, part.Layer)
		}
	}
}

func TestThinnedNodeIsNoHitAndServesWhatExtendsIt(t *testing.T) {
	b, c, data := strippedBench(t, 16, 32)
	if got := b.matchPrefix(1, tier.Exact, 16, 32); got.PrefixTokens != 0 || got.PrefixReason != tier.ReasonEvicted {
		t.Fatalf("PrefixTokens %v, want 0; PrefixReason %v, want %v", got.PrefixTokens, got.PrefixReason, tier.ReasonEvicted)
	}
	if l := b.loadPrefix(c, hashOf(1, 32), tier.Exact); l.Hit || l.Reason != tier.ReasonEvicted {
		t.Fatalf("Hit %v, want false; Reason %v, want %v", l.Hit, l.Reason, tier.ReasonEvicted)
	}
	l := b.loadPrefix(c, hashOf(1, 48), tier.Exact)
	if !l.Hit || len(l.Nodes) != 3 {
		t.Fatalf("Hit %v, want true; len(l.Nodes) %v, want 3", l.Hit, len(l.Nodes))
	}
	for i, node := range l.Nodes {
		b.wantRows(node, data[node.End])
		if holes := holesOf(node.Extents); (holes > 0) != (i < 2) {
			t.Fatalf("node %d has holes of %d bytes", i, holes)
		}
	}
	// Everything that reads a chain goes past the holes.
	q := &plan.AssembleQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, From: plan.From{Kind: plan.FromCheckpoint, Lease: l.Lease}}
	q.Plan = plan.Plan{Begin: 48, End: 52, Spans: []plan.Span{{Kind: plan.SpanRecompute, Start: 48, Count: 4}}}
	size, _, err := b.geometry().AssembleBytes(q)
	b.must(err)
	q.Dest.Out = b.slot(0, size)
	b.must(c.Plans().Assemble(b.ctx, q))
	states, whole := b.profile.CheckpointLayout(0), b.profile.CheckpointLayout(16)
	out := b.load(q.Dest.Out)
	for _, part := range whole.Parts {
		if to := states.Find(part.Layer, part.Kind); !plan.IsRows(part.Kind) {
			at := states.Parts[to]
			if !bytes.Equal(out[at.Off:at.Off+at.Len], data[48][part.Off:part.Off+part.Len]) {
				t.Fatalf("layer %d part %d differs", part.Layer, part.Kind)
			}
		}
	}
}

// The extents that a client was told stay as they were, whatever happens to the
// node: nobody else has its rows meanwhile.
func TestRefillLeavesWhatWasLeased(t *testing.T) {
	b, c, data := strippedBench(t, 16)
	before := b.loadPrefix(c, hashOf(1, 48), tier.Exact)
	l := b.profile.CheckpointLayout(16)
	r, err := c.Save(b.saveQuery(1, 16, 0, tier.Exact))
	b.must(err)
	if got := b.matchPrefix(1, tier.Exact, 16); got.PrefixReason != tier.ReasonPending {
		t.Fatalf("PrefixReason %v, want %v", got.PrefixReason, tier.ReasonPending)
	}
	other := content(&l, 99) // rows that another run computed
	if !b.commitAll(c, r, &l, other) {
		t.Fatal("not published")
	}
	b.audit()
	for _, node := range before.Nodes {
		b.wantRows(node, data[node.End])
	}
	if holesOf(before.Nodes[0].Extents) == 0 {
		t.Fatal("an answer has changed after it was given")
	}
	after := b.loadPrefix(c, hashOf(1, 16), tier.Exact)
	b.wantRows(after.Nodes[0], data[16])
	got := b.loadShare(after.Nodes[0].Extents)
	at := 0
	for _, part := range l.Parts {
		if chunk := got[part.Off : part.Off+part.Len]; !plan.IsRows(part.Kind) && !bytes.Equal(chunk, other[part.Off:part.Off+part.Len]) {
			t.Fatalf("layer %d part %d is not what was saved", part.Layer, part.Kind)
		} else if gpuipc.DigestBytes(chunk) != after.Nodes[0].Digests[at] {
			t.Fatalf("layer %d part %d has another digest", part.Layer, part.Kind)
		}
		at += gpuipc.Chunks(part.Len)
	}
}

// An answer's digests are read, by who sends it, while others go on: with -race this
// finds a write to them as well.
func TestRefillLeavesTheDigestsOfAnswers(t *testing.T) {
	b, c, _ := strippedBench(t, 16)
	l := b.profile.CheckpointLayout(16)
	r, err := c.Save(b.saveQuery(1, 16, 0, tier.Exact))
	b.must(err)
	got := b.loadPrefix(c, hashOf(1, 48), tier.Exact).Nodes[0].Digests
	before := slices.Clone(got)
	same := make(chan bool)
	go func() { same <- slices.Equal(before, got) }()
	b.commitAll(c, r, &l, content(&l, 99))
	if !<-same || !slices.Equal(before, got) {
		t.Fatal("digests of an answer have changed after it was given")
	}
	if after := b.loadPrefix(c, hashOf(1, 16), tier.Exact).Nodes[0].Digests; slices.Equal(before, after) {
		t.Fatal("the digests are those of the states before")
	}
}

// A client that has nothing of the chain saves a stripped node as it has it: with
// another parent, or none.
func TestRefillWithAnotherParent(t *testing.T) {
	b, c, data := strippedBench(t, 16, 32)
	r, err := c.Save(b.saveQuery(1, 32, 0, tier.Exact))
	b.must(err)
	l := b.profile.CheckpointLayout(32)
	if r.Bytes != l.Bytes {
		t.Fatalf("%d bytes, the writer's layout has %d", r.Bytes, l.Bytes)
	}
	whole := content(&l, 7)
	if !b.commitAll(c, r, &l, whole) {
		t.Fatal("not published")
	}
	b.audit()
	got := b.loadPrefix(c, hashOf(1, 32), tier.Exact)
	if len(got.Nodes) != 2 || got.Nodes[1].Begin != 16 {
		t.Fatalf("%v, want len(got.Nodes) == 2, got.Nodes[1].Begin == 16", got)
	}
	b.wantRows(got.Nodes[0], data[16])
	b.wantRows(got.Nodes[1], data[32])
	own, share := b.profile.CheckpointLayout(16), b.loadShare(got.Nodes[1].Extents)
	for i, part := range own.Parts {
		from := l.Parts[i]
		if !plan.IsRows(part.Kind) && !bytes.Equal(share[part.Off:part.Off+part.Len], whole[from.Off:from.Off+from.Len]) {
			t.Fatalf("layer %d part %d is not what was saved", part.Layer, part.Kind)
		}
	}
	_, err = c.Save(&SaveQuery{Profile: b.id, Tenant: tenantA, Kind: tier.Exact, Hash: hashOf(1, 16), Tokens: 17})
	b.wantErr(err, tier.ErrInvalid)
}

// A refill that dies while a commit of it copies gives its pages back when the
// copy has ended.
func TestRefillDiesDuringACopy(t *testing.T) {
	b, c, _ := strippedBench(t, 16)
	used := b.Pools()[objects.PrivatePool].UsedBytes
	r, err := c.Save(b.saveQuery(1, 16, 0, tier.Exact))
	b.must(err)
	l := b.profile.CheckpointLayout(16)
	item := b.item(r.ID, 0, 0, content(&l, 3)[l.Parts[0].Off:l.Parts[0].Off+l.Parts[0].Len])
	stall := b.dev.Stall(t, gpuipc.OpCopyDigests, 1)
	done := make(chan error, 1)
	go func() { _, err := c.Commit(b.ctx, item); done <- err }()
	stall.Await()
	b.must(c.Abort(r.ID))
	if _, err := c.Save(b.saveQuery(1, 16, 0, tier.Exact)); !errors.Is(err, tier.ErrExists) {
		t.Fatalf("%v", err)
	}
	if b.Pools()[objects.PrivatePool].UsedBytes == used {
		t.Fatal("pages were given back under a copy")
	}
	stall.Release()
	b.wantErr(<-done, tier.ErrGone)
	b.wantUsed(0, used)
}

// What policies know of a node follows what its leaving gives back, and what it
// extends.
func TestItemsFollowTheChain(t *testing.T) {
	b, c, _ := strippedBench(t)
	item := func(end int) (bytes int64, tokens int) {
		b.cat.Mu.Lock()
		defer b.cat.Mu.Unlock()
		it := b.cat.Objects.Policies.Item(b.node(1, end))
		return it.Bytes, it.Tokens
	}
	full := b.cat.Objects.Memory.PagesOf(b.profile.CheckpointLayout(16).Bytes)
	var states int64
	for _, run := range plan.NewGeometry(b.profile, 1, 4096, plan.NewParts()).CheckpointParts(16).StatePages {
		states += b.cat.Objects.Memory.PagesOf(run.Len)
	}
	want := func(end int, bytes int64, tokens int) {
		t.Helper()
		if gotBytes, gotTokens := item(end); gotBytes != bytes || gotTokens != tokens {
			t.Errorf("checkpoint %d: %d bytes and %d tokens, want %d and %d", end, gotBytes, gotTokens, bytes, tokens)
		}
	}
	want(16, states, 16)
	want(48, full, 16)
	b.strip(1, 32)
	want(48, full+full-states, 32) // the rows of 32 go with it
	b.strip(1, 16)
	want(48, full+2*(full-states), 48)
	b.save(c, b.saveQuery(1, 40, 32, tier.Exact), 32)
	want(48, full, 48) // they do not go while something else needs them
}

func TestContentKeysAreOfContent(t *testing.T) {
	b, c, _ := strippedBench(t)
	keys := map[uint64]bool{}
	b.cat.Mu.Lock()
	first := b.node(1, 48).ContentKey()
	for _, end := range []int{16, 32, 48} {
		keys[b.node(1, end).ContentKey()] = true
	}
	b.move.Evictor.EvictLocked(b.cat.Objects.Pools[objects.PrivatePool].Evict, move.ForRoom, nil)
	b.cat.Mu.Unlock()
	if len(keys) != 3 || keys[0] {
		t.Errorf("keys %v", keys)
	}
	b.thinAll()
	b.save(c, b.saveQuery(2, 48, 0, tier.Exact), 0)
	b.save(c, b.saveQuery(3, 48, 0, tier.Exact), 0)
	b.cat.Mu.Lock()
	defer b.cat.Mu.Unlock()
	if b.node(2, 48).ContentKey() == b.node(3, 48).ContentKey() || first == 0 {
		t.Error("keys do not tell contents apart")
	}
}

// thinAll evicts until nothing is left that may go.
func (b *bench) thinAll() {
	b.cat.Mu.Lock()
	defer b.cat.Mu.Unlock()
	for p := b.cat.Objects.Pools[objects.PrivatePool]; p.Used > p.Pinned; {
		b.move.Evictor.EvictLocked(p.Evict, move.ForRoom, nil)
	}
}
