package tiering

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// decoder is the rows of some tokens of one rank, and what decoding them one by one
// from some states gives: profile.CheckpointLayout(0) after every number of tokens.
type decoder struct {
	*bench
	rank   int
	layout profile.Layout // of all rows
	rows   []byte
	after  [][]byte
}

// decode decodes n tokens from states; nil = zero ones.
func (b *bench) decode(rank, n int, seed uint64, states []byte) *decoder {
	d := &decoder{bench: b, rank: rank, layout: b.profile.BufferLayout(n)}
	d.rows = content(&d.layout, seed)
	l := b.profile.CheckpointLayout(0)
	if states == nil {
		states = make([]byte, l.Bytes)
	}
	d.after = [][]byte{states}
	for i := range n {
		next := append([]byte(nil), d.after[i]...)
		for _, layer := range b.profile.LinearLayers() {
			d.step(layer, i, &l, next)
		}
		d.after = append(d.after, next)
	}
	return d
}

// row is the bytes of one token in a part.
func (d *decoder) row(layer int, kind profile.PartKind, token int) []byte {
	p := d.layout.Parts[d.layout.Find(layer, kind)]
	n := p.Len / int64(p.Shape[0])
	return d.rows[p.Off+int64(token)*n:][:n]
}

func number(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}

// step moves a layer's states and convolution tail over one token.
func (d *decoder) step(layer, token int, l *profile.Layout, at []byte) {
	lin := &d.profile.Layer(layer).Linear
	keys, heads := d.profile.RankHeads(layer)
	s := at[l.Parts[l.Find(layer, profile.PartS)].Off:]
	g, k, u := d.row(layer, profile.PartT, token), d.row(layer, profile.PartK, token), d.row(layer, profile.PartV, token)
	for h := range heads {
		for i := range lin.KeyDim {
			decay := number(g, h*len(g)/4/heads)
			if lin.DecayPerKey() {
				decay = number(g, h*lin.KeyDim+i)
			}
			for j := range lin.ValueDim {
				at := (h*lin.KeyDim+i)*lin.ValueDim + j
				kept := float32(decay * number(s, at))
				added := float32(number(k, h/(heads/keys)*lin.KeyDim+i) * number(u, h*lin.ValueDim+j))
				binary.LittleEndian.PutUint32(s[4*at:], math.Float32bits(kept+added))
			}
		}
	}
	if i := l.Find(layer, profile.PartConv); i >= 0 {
		tail, input := at[l.Parts[i].Off:][:l.Parts[i].Len], d.row(layer, profile.PartConv, token)
		copy(tail, tail[len(input):])
		copy(tail[len(tail)-len(input):], input)
	}
}

// stageRows puts rows [from, from+n) to staging.
func (d *decoder) stageRows(from, n int) gpuipc.Ref {
	d.Helper()
	l := d.profile.BufferLayout(n)
	out := make([]byte, l.Bytes)
	for _, p := range l.Parts {
		for i := range n {
			copy(out[p.Off+int64(i)*p.Len/int64(n):], d.row(p.Layer, p.Kind, from+i))
		}
	}
	return d.stage(0, out)
}

func (d *decoder) appendQuery(buffer tier.LeaseID, begin, from, n int) *plan.AppendQuery {
	d.Helper()
	return &plan.AppendQuery{Scope: plan.Scope{Profile: d.id, Tenant: tenantA, Rank: d.rank}, Buffer: buffer, Begin: begin, Rows: n, Src: d.stageRows(from, n)}
}

func (d *decoder) acceptQuery(buffer tier.LeaseID, n int) *plan.AcceptQuery {
	return &plan.AcceptQuery{Scope: plan.Scope{Profile: d.id, Tenant: tenantA, Rank: d.rank}, Buffer: buffer, Tokens: n}
}

func (d *decoder) replayQuery(buffer tier.LeaseID, token int, flush bool) *plan.ReplayQuery {
	d.Helper()
	return &plan.ReplayQuery{Scope: plan.Scope{Profile: d.id, Tenant: tenantA, Rank: d.rank}, Buffer: buffer, Token: token, Flush: flush,
		Out: d.slot(4096, d.profile.CheckpointLayout(0).Bytes+64)}
}

// replays wants the states after n of the decoder's tokens behind a prompt position.
func (d *decoder) replays(c *Session, buffer tier.LeaseID, token, n int, flush bool) {
	d.Helper()
	q := d.replayQuery(buffer, token, flush)
	d.must(c.Plans().Replay(d.ctx, q))
	d.wantStates(fmt.Sprintf("token %d", token), d.load(q.Out), n)
}

func (d *decoder) wantStates(what string, got []byte, n int) {
	d.Helper()
	for _, p := range d.profile.CheckpointLayout(0).Parts {
		if p.Kind != profile.PartS && p.Kind != profile.PartConv {
			continue
		}
		if !bytes.Equal(got[p.Off:p.Off+p.Len], d.after[n][p.Off:p.Off+p.Len]) {
			d.Fatalf("%s: part %s of layer %d is not that of decoding %d tokens", what, p.Kind, p.Layer, n)
		}
	}
}

func wantBuffer(t testing.TB, got plan.BufferState, begin, accepted, end int) {
	t.Helper()
	if got.Begin != begin || got.Accepted != accepted || got.End != end {
		t.Fatalf("buffer Begin %v, want %v; Accepted %v, want %v; End %v, want %v", got.Begin, begin, got.Accepted, accepted, got.End, end)
	}
}

// Whatever is appended, accepted, dropped and flushed, a replay is decoding token by
// token.
func TestBufferReplaysWhatDecodingGives(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t, hybrid(2))
		c := b.NewSession("engine")
		rank := rng.IntN(2)
		begin, from := 0, plan.From{}
		var states []byte
		switch seed % 3 {
		case 1:
			begin = 20
			saved := b.save(c, b.saveQuery(1, begin, 0, tier.Exact), 0)[rank]
			l, err := c.Load(&LoadQuery{Profile: b.id, Tenant: tenantA, Rank: rank, Accept: tier.Exact, Hash: hashOf(1, begin)})
			b.must(err)
			from = plan.From{Kind: plan.FromCheckpoint, Lease: l.Lease}
			states = b.stripped(saved, begin)
		case 2:
			begin = 7
			l := b.profile.CheckpointLayout(0)
			states = content(&l, 99)
			from = plan.From{Kind: plan.FromState, State: b.stage(8<<20, states)}
		}
		const tokens = 60
		d := b.decode(rank, tokens, seed, states)
		capacity := 1 + rng.IntN(9)
		q := d.appendQuery(0, begin, 0, min(capacity, rng.IntN(4)))
		q.Base, q.Capacity = from, capacity
		st, err := c.Plans().Append(b.ctx, q)
		b.must(err)
		wantBuffer(t, st, begin, begin, begin+q.Rows)
		id, first, accepted, end := st.Buffer, 0, 0, q.Rows
		if from.Kind == plan.FromCheckpoint {
			b.must(c.Release(from.Lease)) // the buffer holds it
		}
		for end < tokens-capacity {
			switch room := capacity - (end - first); {
			case rng.IntN(3) > 0 && room > 0:
				n := 1 + rng.IntN(room)
				st, err = c.Plans().Append(b.ctx, d.appendQuery(id, begin+end, end, n))
				end += n
			case rng.IntN(3) > 0 && end > accepted:
				n := rng.IntN(end - accepted + 1)
				st, err = c.Plans().Accept(d.acceptQuery(id, n))
				accepted += n
				end = accepted
			default:
				at := first + rng.IntN(accepted-first+1)
				flush := rng.IntN(2) == 0
				d.replays(c, id, begin+at, at, flush)
				if flush {
					first = at
				}
				b.audit()
				continue
			}
			b.must(err)
			wantBuffer(t, st, begin+first, begin+accepted, begin+end)
		}
		if n := b.Counters().Buffers; n != 1 {
			t.Fatalf("%d buffers", n)
		}
		b.must(c.Release(id))
		c.Close()
		if from.Kind != plan.FromCheckpoint {
			b.wantUsed(0, 0)
		}
	}
}

// stripped is a checkpoint's states and tails without its rows.
func (b *bench) stripped(data []byte, rows int) []byte {
	from, to := b.profile.CheckpointLayout(rows), b.profile.CheckpointLayout(0)
	out := make([]byte, to.Bytes)
	for _, p := range to.Parts {
		copy(out[p.Off:p.Off+p.Len], data[from.Parts[from.Find(p.Layer, p.Kind)].Off:])
	}
	return out
}

// opened is a buffer of ten rows with five accepted ones and two drafts.
func opened(t *testing.T, options ...option) (*decoder, *Session, tier.LeaseID) {
	b := newBench(t, hybrid(2), options...)
	c := b.NewSession("engine")
	d := b.decode(0, 20, 5, nil)
	q := d.appendQuery(0, 0, 0, 5)
	q.Capacity = 10
	st, err := c.Plans().Append(b.ctx, q)
	b.must(err)
	_, err = c.Plans().Accept(d.acceptQuery(st.Buffer, 5))
	b.must(err)
	st, err = c.Plans().Append(b.ctx, d.appendQuery(st.Buffer, 5, 5, 2))
	b.must(err)
	wantBuffer(t, st, 0, 5, 7)
	return d, c, st.Buffer
}

// stillWhole goes on with a buffer of opened.
func (d *decoder) stillWhole(c *Session, id tier.LeaseID) {
	d.Helper()
	d.audit()
	d.replays(c, id, 3, 3, false)
	d.replays(c, id, 5, 5, false)
	st, err := c.Plans().Accept(d.acceptQuery(id, 2))
	d.must(err)
	if st.Begin != 0 || st.Accepted != 7 || st.End != 7 {
		d.Fatalf("buffer Begin %v, want 0; Accepted %v, want 7; End %v, want 7", st.Begin, st.Accepted, st.End)
	}
	d.replays(c, id, 7, 7, true)
}

func TestBadAppendsLoseNothing(t *testing.T) {
	other := func(b *bench) *Session { return b.NewSession("other") }
	for name, tc := range map[string]struct {
		want  error
		spoil func(d *decoder, c **Session, q *plan.AppendQuery)
	}{
		"no such buffer":   {tier.ErrGone, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Buffer += 100 }},
		"another session":  {tier.ErrGone, func(d *decoder, c **Session, _ *plan.AppendQuery) { *c = other(d.bench) }},
		"another tenant":   {tier.ErrGone, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Tenant = tenantB }},
		"unknown tenant":   {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Tenant = 77 }},
		"another rank":     {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Rank = 1 }},
		"no such rank":     {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Rank = 2 }},
		"unknown profile":  {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Profile = 77 }},
		"no rows":          {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Rows = 0; q.Src = gpuipc.Ref{} }},
		"negative rows":    {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Rows = -1 }},
		"huge rows":        {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Rows = math.MaxInt }},
		"few bytes":        {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Src = q.Src.Slice(0, q.Src.Len()-4) }},
		"a gap":            {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Begin = 8 }},
		"an overlap":       {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Begin = 6 }},
		"another capacity": {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Capacity = 10 }},
		"another base":     {tier.ErrInvalid, func(_ *decoder, _ **Session, q *plan.AppendQuery) { q.Base.Kind = plan.FromCheckpoint }},
		"rows past the capacity": {tier.ErrFull, func(d *decoder, _ **Session, q *plan.AppendQuery) {
			*q = *d.appendQuery(q.Buffer, 7, 7, 4)
		}},
		"outside staging": {tier.ErrInvalid, func(d *decoder, _ **Session, q *plan.AppendQuery) {
			q.Src.Extents = []gpuipc.Extent{{Off: d.staging.Bytes() - 64, Len: q.Src.Len()}}
		}},
		"a device that fails": {tier.ErrUnavailable, func(d *decoder, _ **Session, _ *plan.AppendQuery) {
			d.dev.Fail(gpuipc.OpRotate, 3, errors.New("lost"))
		}},
		"an ended context": {context.Canceled, func(d *decoder, _ **Session, _ *plan.AppendQuery) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			d.ctx = ctx
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d, c, id := opened(t)
			q, as, whole := d.appendQuery(id, 7, 7, 2), c, d.ctx
			tc.spoil(d, &as, q)
			_, err := as.Plans().Append(d.ctx, q)
			d.ctx = whole
			d.wantErr(err, tc.want)
			d.stillWhole(c, id)
		})
	}
}

func TestBadOpensTakeNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		want  error
		spoil func(d *decoder, q *plan.AppendQuery)
	}{
		"no capacity":       {tier.ErrInvalid, func(_ *decoder, q *plan.AppendQuery) { q.Capacity = 0 }},
		"capacity for less": {tier.ErrInvalid, func(_ *decoder, q *plan.AppendQuery) { q.Capacity = 1 }},
		"huge capacity":     {tier.ErrInvalid, func(_ *decoder, q *plan.AppendQuery) { q.Capacity = math.MaxInt }},
		"zero states late":  {tier.ErrInvalid, func(_ *decoder, q *plan.AppendQuery) { q.Base = plan.From{} }},
		"unknown base":      {tier.ErrInvalid, func(_ *decoder, q *plan.AppendQuery) { q.Base.Kind = 9 }},
		"no such lease":     {tier.ErrGone, func(_ *decoder, q *plan.AppendQuery) { q.Base.Lease += 100 }},
		"another token":     {tier.ErrInvalid, func(_ *decoder, q *plan.AppendQuery) { q.Begin = 11 }},
		"lease of a rank":   {tier.ErrInvalid, func(d *decoder, q *plan.AppendQuery) { q.Rank = 1 }},
		"another tenant":    {tier.ErrGone, func(_ *decoder, q *plan.AppendQuery) { q.Tenant = tenantB }},
		"states cut short":  {tier.ErrInvalid, func(d *decoder, q *plan.AppendQuery) { q.Base = plan.From{Kind: plan.FromState, State: d.slot(0, 64)} }},
		"a lost base": {tier.ErrGone, func(d *decoder, q *plan.AppendQuery) {
			s := d.Leases(LeaseFilter{}, 0, 1)[0].Session
			d.must(s.Release(q.Base.Lease))
		}},
		"a segment as base": {tier.ErrInvalid, func(d *decoder, q *plan.AppendQuery) {
			s := d.Leases(LeaseFilter{}, 0, 1)[0].Session
			p := d.mid(1, 40, 4)
			d.publish(s, p)
			q.Base.Lease = d.lease(s, p)
		}},
		"a device that fails": {tier.ErrUnavailable, func(d *decoder, _ *plan.AppendQuery) {
			d.dev.Fail(gpuipc.OpRotate, 2, errors.New("lost"))
		}},
		"a base that cannot be copied": {tier.ErrUnavailable, func(d *decoder, q *plan.AppendQuery) {
			q.Base = plan.From{Kind: plan.FromState, State: d.slot(0, d.profile.CheckpointLayout(0).Bytes)}
			d.dev.Fail(gpuipc.OpCopyDigests, 1, errors.New("lost"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, hybrid(2))
			c := b.NewSession("engine")
			b.save(c, b.saveQuery(1, 10, 0, tier.Exact), 0)
			base := b.loadPrefix(c, hashOf(1, 10), tier.Exact)
			d := b.decode(0, 2, 3, nil)
			q := d.appendQuery(0, 10, 0, 2)
			q.Base, q.Capacity = plan.From{Kind: plan.FromCheckpoint, Lease: base.Lease}, 4
			tc.spoil(d, q)
			public, private := b.Pools()[0].UsedBytes, b.Pools()[1].UsedBytes
			_, err := c.Plans().Append(b.ctx, q)
			b.wantErr(err, tc.want)
			b.wantUsed(public, private)
			if n := b.Counters().Buffers; n != 0 {
				t.Errorf("%d buffers", n)
			}
		})
	}
}

func TestBadAcceptsAndReplaysLoseNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		want  error
		spoil func(d *decoder, c *Session, id tier.LeaseID) error
	}{
		"accept more than drafted": {tier.ErrInvalid, func(d *decoder, c *Session, id tier.LeaseID) error {
			_, err := c.Plans().Accept(d.acceptQuery(id, 3))
			return err
		}},
		"accept less than none": {tier.ErrInvalid, func(d *decoder, c *Session, id tier.LeaseID) error {
			_, err := c.Plans().Accept(d.acceptQuery(id, -1))
			return err
		}},
		"accept in no buffer": {tier.ErrGone, func(d *decoder, c *Session, id tier.LeaseID) error {
			_, err := c.Plans().Accept(d.acceptQuery(id+100, 1))
			return err
		}},
		"replay a draft": {tier.ErrInvalid, func(d *decoder, c *Session, id tier.LeaseID) error {
			return c.Plans().Replay(d.ctx, d.replayQuery(id, 6, false))
		}},
		"replay before the base": {tier.ErrInvalid, func(d *decoder, c *Session, id tier.LeaseID) error {
			return c.Plans().Replay(d.ctx, d.replayQuery(id, -1, true))
		}},
		"replay for another rank": {tier.ErrInvalid, func(d *decoder, c *Session, id tier.LeaseID) error {
			q := d.replayQuery(id, 3, true)
			q.Rank = 1
			return c.Plans().Replay(d.ctx, q)
		}},
		"replay for another tenant": {tier.ErrGone, func(d *decoder, c *Session, id tier.LeaseID) error {
			q := d.replayQuery(id, 3, true)
			q.Tenant = tenantB
			return c.Plans().Replay(d.ctx, q)
		}},
		"replay into too little": {tier.ErrInvalid, func(d *decoder, c *Session, id tier.LeaseID) error {
			q := d.replayQuery(id, 3, true)
			q.Out = q.Out.Slice(0, 128)
			return c.Plans().Replay(d.ctx, q)
		}},
		"a device that fails in the middle": {tier.ErrUnavailable, func(d *decoder, c *Session, id tier.LeaseID) error {
			d.dev.Fail(gpuipc.OpReplay, 2, errors.New("lost"))
			return c.Plans().Replay(d.ctx, d.replayQuery(id, 4, true))
		}},
		"a base that cannot be written": {tier.ErrUnavailable, func(d *decoder, c *Session, id tier.LeaseID) error {
			d.dev.Fail(gpuipc.OpCopyDigests, 1, errors.New("lost"))
			return c.Plans().Replay(d.ctx, d.replayQuery(id, 4, true))
		}},
		"an ended context": {context.Canceled, func(d *decoder, c *Session, id tier.LeaseID) error {
			q := d.replayQuery(id, 4, true)
			ctx, cancel := context.WithCancel(d.ctx)
			cancel()
			return c.Plans().Replay(ctx, q)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d, c, id := opened(t)
			used := d.Pools()[1].UsedBytes
			d.wantErr(tc.spoil(d, c, id), tc.want)
			d.wantUsed(0, used)
			d.stillWhole(c, id)
		})
	}
}

// A session that ends takes its buffers along; what still reads one keeps its
// memory until then.
func TestBuffersEndWithTheirSession(t *testing.T) {
	for _, flush := range []bool{false, true} {
		d, c, id := opened(t)
		q := d.replayQuery(id, 5, flush)
		stall := d.dev.Stall(t, gpuipc.OpReplay, 1)
		done := make(chan error)
		go func() { done <- c.Plans().Replay(d.ctx, q) }()
		stall.Await()
		c.Close()
		d.audit()
		if d.Pools()[1].UsedBytes == 0 {
			t.Error("memory that is being read was freed")
		}
		stall.Release()
		d.wantErr(<-done, tier.ErrGone)
		d.wantUsed(0, 0)
		if n := d.Counters().Buffers; n != 0 {
			t.Errorf("%d buffers", n)
		}
		_, err := c.Plans().Accept(d.acceptQuery(id, 0))
		d.wantErr(err, tier.ErrGone)
	}
}

func TestBuffersPayFromTheirTenantsQuota(t *testing.T) {
	b := newBench(t, hybrid(2), func(cfg *Config) { cfg.Tenants[0].QuotaBytes = 96 << 10 })
	c := b.NewSession("engine")
	d := b.decode(0, 8, 1, nil)
	first := d.appendQuery(0, 0, 0, 2)
	first.Capacity = 16
	var held []tier.LeaseID
	for {
		st, err := c.Plans().Append(b.ctx, first)
		if err != nil {
			b.wantErr(err, tier.ErrQuota)
			break
		}
		b.audit()
		held = append(held, st.Buffer)
	}
	if len(held) < 2 {
		t.Fatalf("%d buffers in the quota", len(held))
	}
	for _, id := range held {
		b.must(c.Release(id))
	}
	b.wantUsed(0, 0)
	if _, err := c.Plans().Append(b.ctx, first); err != nil {
		t.Error(err)
	}
}

// Idle checkpoints make room for buffers, their bases do not.
func TestBuffersEvictWhatIsIdleButNotTheirBase(t *testing.T) {
	b := newBench(t, hybrid(1), func(cfg *Config) { cfg.PrivateBytes = 256 << 10 })
	c := b.NewSession("engine")
	saved := b.save(c, b.saveQuery(1, 10, 0, tier.Exact), 0)[0]
	base := b.loadPrefix(c, hashOf(1, 10), tier.Exact)
	d := b.decode(0, 4, 1, b.stripped(saved, 10))
	q := d.appendQuery(0, 10, 0, 4)
	q.Base, q.Capacity = plan.From{Kind: plan.FromCheckpoint, Lease: base.Lease}, 4
	st, err := c.Plans().Append(b.ctx, q)
	b.must(err)
	_, err = c.Plans().Accept(d.acceptQuery(st.Buffer, 4))
	b.must(err)
	b.must(c.Release(base.Lease))
	b.save(c, b.saveQuery(2, 10, 0, tier.Exact), 0)
	zero := d.appendQuery(0, 0, 0, 1)
	zero.Capacity = 8
	for {
		if _, err = c.Plans().Append(b.ctx, zero); err != nil {
			b.wantErr(err, tier.ErrFull)
			break
		}
	}
	if r := b.matchPrefix(2, tier.Exact, 10); r.PrefixTokens != 0 {
		t.Error("an idle checkpoint stayed while buffers were refused")
	}
	if r := b.matchPrefix(1, tier.Exact, 10); r.PrefixTokens != 10 {
		t.Error("the base of a buffer has left")
	}
	d.replays(c, st.Buffer, 14, 4, false)
}
