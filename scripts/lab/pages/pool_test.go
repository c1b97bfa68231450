package pages

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
)

func newPool(t testing.TB, blocks int, r Rules) *Pool {
	t.Helper()
	p, err := New(Config{Rules: r, Blocks: blocks})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func admit(t testing.TB, p *Pool, id RequestID, q *Request) *Admitted {
	t.Helper()
	a, err := p.Admit(id, q)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestBlocksOfAlikeRequestsFollowTheClosedForm(t *testing.T) {
	const block, prompt = 16, 6
	table := []struct {
		requests, distinct int
		want               [5]float64 // n,b = 2,32 4,32 8,32 16,32 11,12
	}{
		{50, 20, [5]float64{3.43, 5.98, 9.92, 15.06, 6.45}},
		{50, 100, [5]float64{1.00, 1.86, 3.45, 6.17, 3.54}},
		{200, 20, [5]float64{6.31, 10.23, 15.32, 20.64, 7.62}},
		{200, 100, [5]float64{2.98, 5.25, 8.88, 13.81, 6.13}},
	}
	for _, row := range table {
		for i, nb := range [5][2]int{{2, 32}, {4, 32}, {8, 32}, {16, 32}, {11, 12}} {
			a := Alike{row.requests, nb[0], nb[1], prompt, row.distinct}
			if r := a.Ratio(); r < row.want[i]-0.005001 || r > row.want[i]+0.005001 {
				t.Errorf("%+v: R = %.4f, want %.2f", a, r, row.want[i])
			}
			p := newPool(t, 1<<17, Rules{BlockTokens: block})
			copied := 0
			for id := range a.Requests {
				var q Request
				for c := range a.Chunks {
					// Every length that fills b blocks, whatever the padding.
					chunk := (id*a.Chunks + c) % a.Distinct
					q.Pieces = append(q.Pieces, Piece{Chunk, uint64(chunk), block*a.ChunkBlocks - chunk%block})
				}
				q.Pieces = append(q.Pieces, Piece{Prompt, 0, block*prompt - 32})
				q.Output = 32
				admit(t, p, RequestID(id), &q)
				copied += q.Held(block)
			}
			if got := p.Stats().Referenced; got != a.Shared() {
				t.Errorf("%+v: %d blocks, closed form %d", a, got, a.Shared())
			}
			if copied > a.Copied() || copied < a.Copied()-a.Requests*a.Chunks {
				t.Errorf("%+v: copies take %d blocks, closed form %d", a, copied, a.Copied())
			}
		}
	}
}

// rulesUnderTest is every combination that a caller can choose.
func rulesUnderTest(block int) []Rules {
	var list []Rules
	for _, window := range []int{0, 3} {
		for _, pack := range []bool{false, true} {
			for _, left := range []bool{false, true} {
				list = append(list, Rules{BlockTokens: block, Window: window, Pack: pack, ShareLeft: left})
			}
		}
	}
	return list
}

// slot is a place in the pool.
type slot struct{ block, at int }

// wanted names the token that a slot must hold: nobody else's, or a shared one's.
type wanted struct {
	id    RequestID // of own tokens
	what  what
	key   uint64
	left  Piece
	token int
}

// witness is a dumb account of a pool: who reads which slot, from tables alone.
type witness struct {
	t      *testing.T
	pool   *Pool
	slots  map[slot]wanted
	reads  map[slot]int
	tables map[RequestID]*Admitted
	quests map[RequestID]*Request
}

// expect lists what every token of a request is, by a second reading of the
// rules.
func (w *witness) expect(id RequestID, q *Request) []wanted {
	var list []wanted
	r := w.pool.cfg.Rules
	for i, p := range q.Pieces {
		heads := 0
		if p.Kind == Chunk {
			if heads = p.Tokens % r.BlockTokens; heads == 0 {
				heads = r.BlockTokens
			}
			if r.Window > 0 {
				heads = r.Window
			}
		}
		for k := range p.Tokens {
			mine := wanted{id: id, token: len(list)}
			switch {
			case p.Kind == Prefix:
				mine = wanted{what: prefix, key: p.Key, token: k}
			case p.Kind == Chunk && k >= heads:
				mine = wanted{what: inside, key: p.Key, token: k}
			case p.Kind == Chunk && r.ShareLeft && (i == 0 || q.Pieces[i-1].Kind != Prompt):
				mine = wanted{what: head, key: p.Key, token: k}
				if i > 0 {
					mine.left = q.Pieces[i-1]
				}
			}
			list = append(list, mine)
		}
	}
	for range q.Output {
		list = append(list, wanted{id: id, token: len(list)})
	}
	return list
}

// add checks a table: every token in exactly one entry, in order, and no slot
// that holds something else to anybody.
func (w *witness) add(id RequestID, q *Request, a *Admitted) {
	w.t.Helper()
	want, at := w.expect(id, q), 0
	for _, e := range a.Table {
		if e.Begin != at || e.Tokens < 1 || e.Slot < 0 || e.Slot+e.Tokens > w.pool.cfg.BlockTokens || e.Block < 0 || e.Block >= w.pool.cfg.Blocks {
			w.t.Fatalf("request %d: entry %+v at token %d", id, e, at)
		}
		for k := range e.Tokens {
			s := slot{e.Block, e.Slot + k}
			have, taken := w.slots[s]
			if e.Shared != (want[at].what != own) || taken && (have != want[at] || !e.Shared || e.Compute) {
				w.t.Fatalf("request %d, token %d in slot %v: %+v wants %+v, held %v %+v", id, at, s, e, want[at], taken, have)
			}
			w.slots[s] = want[at]
			w.reads[s]++
			at++
		}
	}
	if at != len(want) || a.Computed+a.Reused != at {
		w.t.Fatalf("request %d: %d of %d tokens in the table, %d computed, %d reused", id, at, len(want), a.Computed, a.Reused)
	}
	w.tables[id], w.quests[id] = a, q
}

func (w *witness) remove(id RequestID) {
	for _, e := range w.tables[id].Table {
		for k := range e.Tokens {
			s := slot{e.Block, e.Slot + k}
			if w.reads[s]--; w.reads[s] == 0 {
				delete(w.reads, s)
				delete(w.slots, s)
			}
		}
	}
	delete(w.tables, id)
	delete(w.quests, id)
}

// blocksRead is the blocks that residents read, and how many slots of shared
// rests are free in them.
func (w *witness) blocksRead(also map[slot]wanted) (read, gaps int) {
	slots, packed := map[int]int{}, map[int]bool{}
	for _, m := range []map[slot]wanted{w.slots, also} {
		for s, want := range m {
			slots[s.block]++
			if w.pool.cfg.Pack && want.what != prefix {
				packed[s.block] = true
			}
		}
	}
	for b, n := range slots {
		if packed[b] {
			gaps += w.pool.cfg.BlockTokens - n
		}
	}
	return len(slots), gaps
}

// kept is the blocks of prefixes that nobody reads, found by asking the pool for
// them.
func (w *witness) kept(prefixTokens int) (blocks int) {
	for s, o := range w.pool.shared {
		if s.what == prefix && o.refs == 0 {
			blocks += ceil(prefixTokens, w.pool.cfg.BlockTokens)
		}
	}
	return blocks
}

// possible tells whether a request fits when all is evicted that neither
// residents read nor itself: chunks with prefixes kept, and the whole with
// prefixes dropped.
func (w *witness) possible(q *Request) bool {
	r := w.pool.cfg.Rules
	var chunks, all demand
	seen, mine, keptMine := map[share]bool{}, map[slot]wanted{}, 0
	for _, n := range r.runs(q) {
		o := w.pool.shared[n.share]
		switch d := r.demand(&n); {
		case n.what != own && seen[n.share]:
		case o != nil && o.refs > 0:
		case o != nil:
			// It has a place already, which nobody reads.
			for _, e := range o.entries(nil, &n, r.BlockTokens, false) {
				for k := range e.Tokens {
					mine[slot{e.Block, e.Slot + k}] = wanted{what: n.what}
				}
			}
			if n.what == prefix {
				keptMine = len(o.blocks)
			}
		default:
			if n.chunk {
				chunks.add(d)
			}
			all.add(d)
		}
		seen[n.share] = true
	}
	read, gaps := w.blocksRead(mine)
	free := w.pool.cfg.Blocks - read
	return r.fits(all, free, gaps) && r.fits(chunks, free-w.kept(prefixTokens)+keptMine, gaps)
}

const prefixTokens = 11

func randomRequest(rng *rand.Rand) *Request {
	q := &Request{Output: rng.IntN(6)}
	if rng.IntN(3) > 0 {
		q.Pieces = append(q.Pieces, Piece{Prefix, uint64(rng.IntN(4)), prefixTokens})
	}
	for range rng.IntN(6) {
		if rng.IntN(4) == 0 {
			q.Pieces = append(q.Pieces, Piece{Prompt, 0, 1 + rng.IntN(9)})
			continue
		}
		key := uint64(rng.IntN(12))
		q.Pieces = append(q.Pieces, Piece{Chunk, key, 1 + int(key*key)%23})
	}
	if len(q.Pieces) == 0 {
		q.Output++
	}
	return q
}

func TestTablesOfRandomRequests(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 4
	}
	for _, rules := range rulesUnderTest(4) {
		for seed := range seeds {
			rng := rand.New(rand.NewPCG(seed, 4))
			w := &witness{t: t, pool: newPool(t, 10+rng.IntN(30), rules), slots: map[slot]wanted{}, reads: map[slot]int{},
				tables: map[RequestID]*Admitted{}, quests: map[RequestID]*Request{}}
			refused, admitted := 0, 0
			for step := range 400 {
				id := RequestID(rng.IntN(8))
				if w.tables[id] != nil {
					if !w.pool.Release(id) {
						t.Fatalf("request %d is resident and cannot be released", id)
					}
					w.remove(id)
				} else {
					q := randomRequest(rng)
					possible := w.possible(q)
					before := w.pool.Stats()
					a, err := w.pool.Admit(id, q)
					if possible != (err == nil) || err != nil && !errors.Is(err, ErrRefused) {
						t.Fatalf("%+v seed %d step %d: %+v possible %v, answer %v", rules, seed, step, q, possible, err)
					}
					if err == nil {
						w.add(id, q, a)
						admitted++
					} else {
						after := w.pool.Stats()
						after.Refused = before.Refused
						if after != before {
							t.Fatalf("a refusal changed %+v into %+v", before, after)
						}
						refused++
					}
				}
				w.account()
			}
			if admitted == 0 || refused == 0 {
				t.Fatalf("%+v seed %d: %d admitted, %d refused", rules, seed, admitted, refused)
			}
			w.drain()
		}
	}
}

// account compares the pool's sums with the tables.
func (w *witness) account() {
	w.t.Helper()
	s := w.pool.Stats()
	read, _ := w.blocksRead(nil)
	if s.Referenced != read || s.Free+s.Idle+s.Referenced != w.pool.cfg.Blocks || s.Requests != len(w.tables) {
		w.t.Fatalf("%+v, tables read %d blocks of %d requests", s, read, len(w.tables))
	}
	for _, o := range w.pool.shared {
		refs := 0
		for _, r := range w.pool.resident {
			for _, other := range r.shared {
				if other == o {
					refs++
				}
			}
		}
		if o.refs != refs || (o.place == nil) != (refs > 0) {
			w.t.Fatalf("%+v has %d references, %d counted", o.share, refs, o.refs)
		}
	}
}

// drain releases all, evicts all, and finds every block free.
func (w *witness) drain() {
	w.t.Helper()
	for id := range w.tables {
		w.pool.Release(id)
		w.remove(id)
	}
	w.account()
	if s := w.pool.Stats(); s.Referenced != 0 {
		w.t.Fatalf("nothing is resident: %+v", s)
	}
	all := &Request{Output: w.pool.cfg.Blocks * w.pool.cfg.BlockTokens}
	a := admit(w.t, w.pool, 99, all)
	if s := w.pool.Stats(); s.Referenced != w.pool.cfg.Blocks || len(w.pool.shared) != 0 || len(a.Table) != w.pool.cfg.Blocks {
		w.t.Fatalf("one request fills the pool: %+v, %d shared", s, len(w.pool.shared))
	}
}

func TestPaddingStaysBelowABlock(t *testing.T) {
	const block = 16
	for _, rules := range rulesUnderTest(block) {
		for tokens := 1; tokens < 100; tokens++ {
			p := newPool(t, 100, rules)
			q := &Request{Pieces: []Piece{{Chunk, 1, tokens}}}
			a := admit(t, p, 1, q)
			most := block - 1
			if rules.Pack {
				most = 0
			} else if rules.Window > 0 {
				most = 2 * (block - 1) // of the window's block and of the rest
			}
			if a.Padding > most {
				t.Fatalf("%+v: %d tokens with %d of padding", rules, tokens, a.Padding)
			}
			if a.Padding != 0 && a.Table[0].Slot == 0 && a.Table[1].Slot == 0 {
				t.Fatalf("%+v: padding is not in front: %+v", rules, a.Table)
			}
		}
	}
}

func TestChunksDoNotDisplacePrefixes(t *testing.T) {
	p := newPool(t, 8, Rules{BlockTokens: 4})
	admit(t, p, 1, &Request{Pieces: []Piece{{Prefix, 7, 16}, {Chunk, 1, 8}}})
	p.Release(1)
	if s := p.Stats(); s.Idle != 5 || s.Free != 3 {
		t.Fatalf("%+v", s)
	}
	// The idle chunk leaves; four blocks are the prefix's.
	var refusal *Refusal
	_, err := p.Admit(2, &Request{Pieces: []Piece{{Chunk, 2, 24}}})
	if !errors.As(err, &refusal) || *refusal != (Refusal{PrefixesKept, 6, 4}) {
		t.Fatalf("%v", err)
	}
	admit(t, p, 2, &Request{Pieces: []Piece{{Chunk, 2, 16}}})
	p.Release(2)
	if a := admit(t, p, 3, &Request{Pieces: []Piece{{Prefix, 7, 16}}}); a.Reused != 16 || a.Computed != 0 {
		t.Fatalf("the prefix is gone: %+v", a)
	}
	p.Release(3)
	// A prompt's own blocks may push out a prefix that nobody uses.
	admit(t, p, 4, &Request{Output: 32})
	if s := p.Stats(); s.Dropped != 1 || s.Referenced != 8 {
		t.Fatalf("%+v", s)
	}
}

func TestInvalidRequestsChangeNothing(t *testing.T) {
	p := newPool(t, 16, Rules{BlockTokens: 4})
	admit(t, p, 1, &Request{Pieces: []Piece{{Chunk, 1, 9}}})
	before := p.Stats()
	for _, q := range []Request{
		{},
		{Output: -1},
		{Pieces: []Piece{{Chunk, 1, 0}}},
		{Pieces: []Piece{{Prompt, 0, 1}, {Prefix, 1, 4}}},
		{Pieces: []Piece{{Kind(9), 0, 4}}},
		{Pieces: []Piece{{Prompt, 0, 1 << 62}}},
		{Pieces: []Piece{{Chunk, 1, 10}}},                 // the key stands for 9 tokens
		{Pieces: []Piece{{Chunk, 2, 10}, {Chunk, 2, 11}}}, // two lengths at once
		{Pieces: []Piece{{Chunk, 3, 10}, {Chunk, 1, 11}}}, // after one that is fine
	} {
		if _, err := p.Admit(2, &q); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if _, err := p.Admit(1, &Request{Output: 1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a resident id: %v", err)
	}
	if after := p.Stats(); !reflect.DeepEqual(before, after) {
		t.Errorf("%+v became %+v", before, after)
	}
	if p.Release(2) {
		t.Error("request 2 was never admitted")
	}
	for _, c := range []Config{{}, {Blocks: 1}, {Rules: Rules{BlockTokens: 1}}, {Rules: Rules{BlockTokens: 1, Window: -1}, Blocks: 1}} {
		if _, err := New(c); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
