package tiering

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// edge is the bytes of a checkpoint that is kept as rows: those of the decoder's tokens
// [from, from+n), beside random keys and values.
func (d *decoder) edge(from, n int) (profile.Layout, []byte) {
	l := d.profile.EdgeLayout(n)
	out := content(&l, uint64(100*from+n))
	linear := d.profile.LinearLayers()
	for _, p := range l.Parts {
		for _, layer := range linear {
			if p.Layer != layer {
				continue
			}
			row := p.Len / int64(n)
			for i := range n {
				copy(out[p.Off+int64(i)*row:][:row], d.row(layer, p.Kind, from+i))
			}
		}
	}
	return l, out
}

// keep saves tokens [parent, end) of a prompt as rows; base is the decoder's first token.
func (d *decoder) keep(c *Session, base, parent, end int) {
	d.Helper()
	q := d.saveQuery(1, end, parent, tier.Rows)
	if parent == 0 {
		q.Parent = profile.PrefixHash{}
	}
	l, data := d.edge(parent-base, end-parent)
	for rank := range d.profile.TPSize() {
		q.Rank = rank
		r, err := c.Save(q)
		d.must(err)
		if r.Bytes != l.Bytes {
			d.Fatalf("%d bytes reserved, layout has %d", r.Bytes, l.Bytes)
		}
		if published := d.commitAll(c, r, &l, data); published != (rank == d.profile.TPSize()-1) {
			d.Fatalf("rank %d: published %v", rank, published)
		}
	}
	d.audit()
}

const exactOrRows = tier.Exact | tier.Rows

// rebuilds wants the states of every token of what is kept as rows up to end.
func (d *decoder) rebuilds(c *Session, base, end int) Loaded {
	d.Helper()
	l := d.loadPrefix(c, hashOf(1, end), exactOrRows)
	if !l.Hit || l.Kind != tier.Rows || l.Tokens != end {
		d.Fatalf("loaded %+v, want rows of %d tokens", l, end)
	}
	for token := base; token <= end; token++ {
		d.replays(c, l.Lease, token, token-base, false)
	}
	return l
}

// Rows behind a checkpoint, in several nodes, give the states of any of their tokens: as
// decoding from the checkpoint does, to the bit.
func TestKeptRowsGiveTheStatesOfAnyToken(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			b := newBench(t, hybrid(ranks))
			c := b.NewSession("engine")
			saved := b.save(c, b.saveQuery(1, 20, 0, tier.Exact), 0)[0]
			d := b.decode(0, 40, 3, b.stripped(saved, 20))
			d.keep(c, 20, 20, 27)
			d.keep(c, 20, 27, 30)
			m := b.matchPrefix(1, exactOrRows, 10, 20, 27, 30, 40)
			if m.PrefixTokens != 30 || m.PrefixKind != tier.Rows || m.PrefixStates != 20 {
				t.Fatalf("match %+v", m)
			}
			if m := b.matchPrefix(1, tier.Exact, 10, 20, 27, 30, 40); m.PrefixTokens != 20 || m.PrefixReason != tier.ReasonFlagOnly {
				t.Fatalf("match of who has no use for rows: %+v", m)
			}
			l := d.rebuilds(c, 20, 30)
			if len(l.Nodes) != 3 || l.Nodes[0].Kind != tier.Exact || l.Nodes[1].Kind != tier.Rows || l.Nodes[2].Begin != 27 {
				t.Fatalf("nodes %+v", l.Nodes)
			}
			d.rebuilds(c, 20, 27)
			// What stands behind rows may have states again, and then rows once more.
			again := b.save(c, b.saveQuery(1, 48, 30, tier.Exact), 30)[0]
			e := b.decode(0, 5, 9, b.stripped(again, 18))
			e.keep(c, 48, 48, 53)
			e.rebuilds(c, 48, 53)
			if m := b.matchPrefix(1, exactOrRows, 48, 53); m.PrefixStates != 48 {
				t.Fatalf("match %+v", m)
			}
		})
	}
}

// States that rows are rebuilt from are not stripped, and go to the lower tier and come
// back with them.
func TestKeptRowsAreFoundBelow(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind)
	saved := x.save(x.c, x.saveQuery(1, 20, 0, tier.Exact), 0)[0]
	d := x.decode(0, 12, 3, x.stripped(saved, 20))
	d.keep(x.c, 20, 20, 27)
	d.keep(x.c, 20, 27, 30)
	x.cat.Mu.Lock()
	if o := x.node(1, 20); o.Ranked == objects.Candidate {
		t.Error("states that rows stand on may leave alone")
	}
	x.cat.Mu.Unlock()
	x.push()
	m := x.matchPrefix(1, exactOrRows, 20, 27, 30)
	if m.PrefixTokens != 30 || m.PrefixPlace != tier.PlaceDisk || m.PrefixStates != 20 {
		t.Fatalf("match %+v", m)
	}
	got := make(chan Loaded, 1)
	go func() {
		l, _ := x.c.AwaitLoad(context.Background(), &LoadQuery{Profile: x.id, Tenant: tenantA, Accept: exactOrRows, Hash: hashOf(1, 30)})
		got <- l
	}()
	x.until("a load waits", func() bool { return x.waiters() > 0 })
	x.carry()
	l := <-got
	if !l.Hit || l.Kind != tier.Rows || len(l.Nodes) != 3 {
		t.Fatalf("loaded %+v", l)
	}
	for token := 20; token <= 30; token++ {
		d.replays(x.c, l.Lease, token, token-20, false)
	}
}

// A node whose states have left is made whole for rows that come back on top of it.
func TestStrippedStatesComeBackForRows(t *testing.T) {
	x := newTwoTiers(t, stateful(1), writeBehind)
	saved := x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)[0]
	d := x.decode(0, 12, 3, x.stripped(saved, 16))
	d.keep(x.c, 16, 16, 20)
	x.push()
	// The node comes back for another child, and is stripped then.
	q := &LoadQuery{Profile: x.id, Tenant: tenantA, Accept: tier.Exact, Hash: hashOf(1, 16)}
	_, err := x.c.Load(q)
	x.must(err)
	x.carry()
	l, err := x.c.Load(q)
	x.must(err)
	child := x.saveQuery(1, 40, 16, tier.Exact)
	x.save(x.c, child, 16)
	x.must(x.c.Release(l.Lease))
	x.writeOut()
	x.strip(1, 16)

	if m := x.matchPrefix(1, exactOrRows, 20); m.PrefixTokens != 20 || m.PrefixPlace != tier.PlaceDisk {
		t.Fatalf("match %+v", m)
	}
	q.Accept, q.Hash = exactOrRows, hashOf(1, 20)
	_, err = x.c.Load(q)
	x.must(err)
	x.carry()
	l, err = x.c.Load(q)
	x.must(err)
	if !l.Hit || l.Kind != tier.Rows {
		t.Fatalf("loaded %+v", l)
	}
	for token := 16; token <= 20; token++ {
		d.replays(x.c, l.Lease, token, token-16, false)
	}
}

// keepBuffered is keep out of a buffer, one node a token.
func (d *decoder) keepBuffered(c *Session, buffer tier.LeaseID, base, parent, end int) {
	d.Helper()
	linear := map[int]bool{}
	for _, layer := range d.profile.LinearLayers() {
		linear[layer] = true
	}
	for token := parent + 1; token <= end; token++ {
		q := d.saveQuery(1, token, token-1, tier.Rows)
		q.Rank = d.rank
		r, err := c.SaveBuffered(d.ctx, q, buffer)
		d.must(err)
		l, data := d.edge(token-1-base, 1)
		published := false
		for i, p := range l.Parts {
			if linear[p.Layer] {
				continue
			}
			got, err := c.Commit(d.ctx, d.item(r.ID, i, 0, data[p.Off:][:p.Len]))
			d.must(err)
			published = got.Published
		}
		if !published {
			d.Fatalf("token %d is not published", token)
		}
	}
	d.audit()
}

// What is kept out of a buffer, a node a token, gives the states of any of its tokens, and its bytes
// are those that were appended.
func TestRowsOfABufferAreKept(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("engine")
	saved := b.save(c, b.saveQuery(1, 20, 0, tier.Exact), 0)[0]
	d := b.decode(0, 40, 3, b.stripped(saved, 20))
	whole := b.loadPrefix(c, hashOf(1, 20), tier.Exact)
	open := d.appendQuery(0, 20, 0, 12)
	open.Base, open.Capacity = plan.From{Kind: plan.FromCheckpoint, Lease: whole.Lease}, 40
	buffer, err := c.Plans().Append(b.ctx, open)
	b.must(err)
	more := d.appendQuery(buffer.Buffer, 32, 12, 8) // the second page begins at row 16
	_, err = c.Plans().Append(b.ctx, more)
	b.must(err)
	_, err = c.Plans().Accept(d.acceptQuery(buffer.Buffer, 18))
	b.must(err)
	d.keepBuffered(c, buffer.Buffer, 20, 20, 38)
	l := d.rebuilds(c, 20, 38)
	if len(l.Nodes) != 19 {
		t.Fatalf("%d nodes", len(l.Nodes))
	}

	save := func(tokens, parent int, kind tier.CheckpointKind, id tier.LeaseID) error {
		q := b.saveQuery(1, tokens, parent, kind)
		_, err := c.SaveBuffered(b.ctx, q, id)
		return err
	}
	_, err = c.Plans().Append(b.ctx, d.appendQuery(buffer.Buffer, 40, 20, 1))
	b.wantErr(err, tier.ErrInvalid) // two drafts were dropped: the next token is 38
	for what, row := range map[string]struct{ err, want error }{
		"behind what is accepted": {save(39, 38, tier.Rows, buffer.Buffer), tier.ErrInvalid},
		"states":                  {save(39, 38, tier.Exact, buffer.Buffer), tier.ErrInvalid},
		"no buffer":               {save(39, 38, tier.Rows, 999), tier.ErrGone},
		"before the buffer":       {save(30, 0, tier.Rows, buffer.Buffer), tier.ErrExists},
	} {
		if row.err == nil {
			t.Errorf("%s: no error", what)
			continue
		}
		b.wantErr(row.err, row.want)
	}
	if !c.Plans().ReleaseBuffer(buffer.Buffer) {
		t.Fatal("no buffer to release")
	}
	b.wantErr(save(39, 38, tier.Rows, buffer.Buffer), tier.ErrGone)
	d.rebuilds(c, 20, 38)
	b.audit()
}

// A model without attention has nothing to commit: its rows are published at once, and are as
// safe as the store's commits are where their level is not said.
func TestRowsOfABufferAreAllThereIs(t *testing.T) {
	id := tiny(1)
	id.Model, id.Layers = "recurrent", id.Layers[:1]
	x := newTwoTiers(t, id, func(c *Config) { c.DefaultLevel = tier.LevelLogged })
	b, c := x.bench, x.c
	d := b.decode(0, 9, 3, nil)
	open := d.appendQuery(0, 0, 0, 9)
	open.Capacity = 9
	buffer, err := c.Plans().Append(b.ctx, open)
	b.must(err)
	_, err = c.Plans().Accept(d.acceptQuery(buffer.Buffer, 9))
	b.must(err)
	q := b.saveQuery(1, 9, 0, tier.Rows)
	q.Parent = profile.PrefixHash{}
	saved, err := c.SaveBuffered(b.ctx, q, buffer.Buffer)
	b.must(err)
	x.tier.finishAll()
	if level := x.reached(saved.Durable); level != tier.LevelLogged {
		t.Errorf("reached %v", level)
	}
	if m := b.matchPrefix(1, exactOrRows, 9); m.PrefixTokens != 9 || m.PrefixKind != tier.Rows || m.PrefixStates != 0 {
		t.Fatalf("match %+v", m)
	}
	d.rebuilds(c, 0, 9)
}

// What the daemon commits of a checkpoint is no safer than its writer asks for.
func TestRowsOfABufferAreAsSafeAsTheirWriterAsks(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), func(c *Config) { c.DefaultLevel = tier.LevelSynced })
	d := x.decode(0, 9, 3, nil)
	open := d.appendQuery(0, 0, 0, 1)
	open.Capacity = 9
	buffer, err := x.c.Plans().Append(x.ctx, open)
	x.must(err)
	_, err = x.c.Plans().Accept(d.acceptQuery(buffer.Buffer, 1))
	x.must(err)
	q := x.saveQuery(1, 1, 0, tier.Rows)
	q.Parent = profile.PrefixHash{}
	r, err := x.c.SaveBuffered(x.ctx, q, buffer.Buffer)
	x.must(err)
	l, data := d.edge(0, 1)
	var last Committed
	for i, p := range l.Parts {
		if !slices.Contains(x.profile.LinearLayers(), p.Layer) {
			item := x.item(r.ID, i, 0, data[p.Off:][:p.Len])
			item.Level = tier.LevelMemory
			last, err = x.c.Commit(x.ctx, item)
			x.must(err)
		}
	}
	if r.Durable != nil || !last.Published || last.Durable != nil || len(x.tier.offered) != 0 {
		t.Errorf("%+v, then %+v; %d writes", r, last, len(x.tier.offered))
	}
}

func TestBadKeptRowsAreRefused(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("engine")
	saved := b.save(c, b.saveQuery(1, 20, 0, tier.Exact), 0)[0]
	b.save(c, b.saveQuery(2, 20, 0, tier.Spliced), 0)
	d := b.decode(0, 12, 3, b.stripped(saved, 20))
	d.keep(c, 20, 20, 27)
	rows := b.loadPrefix(c, hashOf(1, 27), exactOrRows)
	whole := b.loadPrefix(c, hashOf(1, 20), exactOrRows)
	save := func(q *SaveQuery) error { _, err := c.Save(q); return err }
	replay := func(lease tier.LeaseID, token int, flush bool) error {
		return c.Plans().Replay(b.ctx, d.replayQuery(lease, token, flush))
	}
	open := d.appendQuery(0, 27, 7, 1)
	open.Base, open.Capacity = plan.From{Kind: plan.FromCheckpoint, Lease: rows.Lease}, 4
	_, opened := c.Plans().Append(b.ctx, open)
	for what, row := range map[string]struct{ err, want error }{
		"two kinds":              {save(b.saveQuery(1, 30, 20, exactOrRows)), tier.ErrInvalid},
		"on what is spliced":     {save(b.saveQuery(2, 30, 20, tier.Rows)), tier.ErrInvalid},
		"on what is not there":   {save(b.saveQuery(3, 30, 20, tier.Rows)), tier.ErrGone},
		"replay before the rows": {replay(rows.Lease, 19, false), tier.ErrInvalid},
		"replay behind the rows": {replay(rows.Lease, 28, false), tier.ErrInvalid},
		"flush":                  {replay(rows.Lease, 25, true), tier.ErrInvalid},
		"replay of states":       {replay(whole.Lease, 20, false), tier.ErrInvalid},
		"a buffer over rows":     {opened, tier.ErrInvalid},
	} {
		if row.err == nil {
			t.Errorf("%s: no error", what)
			continue
		}
		b.wantErr(row.err, row.want)
	}
	d.rebuilds(c, 20, 27)
}
