package pages

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func sorted(pieces []Piece) []Piece {
	out := slices.Clone(pieces)
	slices.SortFunc(out, func(a, b Piece) int { return int(a.Key) - int(b.Key) })
	return out
}

func TestOrderKeepsPiecesAndWhatIsNoChunk(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 9))
		p := newPool(t, 1000, Rules{BlockTokens: 4, Window: 2, Pack: true, ShareLeft: seed%4 > 0})
		for id := range RequestID(20) {
			q := randomRequest(rng)
			o := p.Order(q)
			if len(o.Pieces) != len(q.Pieces) || o.Output != q.Output || !p.cfg.ShareLeft && !slices.Equal(o.Pieces, q.Pieces) {
				t.Fatalf("seed %d: %+v became %+v", seed, q, o)
			}
			for i := 0; i < len(q.Pieces); i++ {
				end := i
				for end < len(q.Pieces) && q.Pieces[end].Kind == Chunk {
					end++
				}
				if !slices.Equal(sorted(q.Pieces[i:end]), sorted(o.Pieces[i:end])) {
					t.Fatalf("seed %d: %+v became %+v", seed, q.Pieces, o.Pieces)
				}
				if end < len(q.Pieces) && q.Pieces[end] != o.Pieces[end] {
					t.Fatalf("seed %d: piece %d moved", seed, end)
				}
				i = end
			}
			admit(t, p, id, o)
			p.Release(id)
			// Everything that can be shared is held now, and an order found for it
			// again gives none of it up.
			again := p.Order(o)
			if a := admit(t, p, id, again); p.cfg.ShareLeft && a.Computed > ownTokens(again) {
				t.Fatalf("seed %d: computes %d tokens again, %d are its own", seed, a.Computed, ownTokens(again))
			}
		}
	}
}

// ownTokens is what nobody else can give to a request that was admitted before.
func ownTokens(q *Request) int {
	n := q.Output
	for i, p := range q.Pieces {
		if p.Kind == Prompt {
			n += p.Tokens
		}
		if p.Kind == Chunk && i > 0 && q.Pieces[i-1].Kind == Prompt {
			n += min(2, p.Tokens)
		}
	}
	return n
}

func TestOrderFollowsWhatIsHeld(t *testing.T) {
	p := newPool(t, 100, Rules{BlockTokens: 4, ShareLeft: true})
	system := Piece{Prefix, 7, 4}
	chunk := func(key uint64) Piece { return Piece{Chunk, key, 6} }
	admit(t, p, 1, &Request{Pieces: []Piece{system, chunk(1), chunk(2), chunk(3), chunk(4)}})
	got := p.Order(&Request{Pieces: []Piece{system, chunk(9), chunk(4), chunk(1), chunk(3), chunk(2)}})
	want := []Piece{system, chunk(1), chunk(2), chunk(3), chunk(4), chunk(9)}
	if !slices.Equal(got.Pieces, want) {
		t.Errorf("%v, want %v", got.Pieces, want)
	}
	if a := admit(t, p, 2, got); a.Computed != 6 {
		t.Errorf("%d tokens computed", a.Computed)
	}
}
