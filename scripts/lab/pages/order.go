package pages

import "slices"

// Order returns the request with consecutive chunks reordered, so that the beginnings of more
// chunks are already cached. It is for callers to whom the order of chunks does not matter, for
// example because a search found them. Order changes the order only if Rules.ShareLeft is set,
// and only if more beginnings are then cached. Chunks that are not known to be cached keep their
// places as far as possible.
func (p *Pool) Order(q *Request) *Request {
	out := &Request{Pieces: slices.Clone(q.Pieces), Output: q.Output}
	if !p.cfg.ShareLeft {
		return out
	}
	for first := 0; first < len(out.Pieces); first++ {
		end := first
		for end < len(out.Pieces) && out.Pieces[end].Kind == Chunk {
			end++
		}
		if end-first > 1 && end-first <= maxOrdered {
			var left *Piece
			if first > 0 {
				left = &out.Pieces[first-1]
			}
			group := out.Pieces[first:end]
			if chains := p.orderGroup(left, group); p.heads(left, chains) > p.heads(left, group) {
				copy(group, chains)
			}
		}
		first = max(first, end-1)
	}
	return out
}

// maxOrdered bounds the number of chunks in a group, because the work grows with its square.
const maxOrdered = 256

// orderGroup reorders the chunks of a group into chains, and returns the chains one after
// another. In a chain, the beginning of each chunk is cached in the variant whose left neighbour
// is the preceding chunk. The chain whose first chunk is cached with the piece left as its left
// neighbour comes first; the other chains are in the order of their first chunks.
func (p *Pool) orderGroup(left *Piece, group []Piece) []Piece {
	n := len(group)
	next, last := make([]int, n), make([]int, n) // next of a chunk in its chain; last chunk of the chain that begins with a chunk
	begins := make([]bool, n)
	for i := range n {
		next[i], last[i], begins[i] = -1, i, true
	}
	head := -1 // first chunk of the chain after left
	// Beginnings that resident requests use are tried first, because they need no additional
	// room.
	for _, inUse := range []bool{true, false} {
		for k := range n {
			if head < 0 && begins[k] && p.holdsHead(left, &group[k], inUse) {
				head, begins[k] = k, false
			}
		}
		for i := range n {
			for k := range n {
				// Here i ends a chain and k begins another chain.
				if i == k || next[i] >= 0 || !begins[k] || last[k] == i || !p.holdsHead(&group[i], &group[k], inUse) {
					continue
				}
				next[i], begins[k] = k, false
				for first := range n {
					if last[first] == i {
						last[first] = last[k]
					}
				}
			}
		}
	}
	out := make([]Piece, 0, n)
	add := func(i int) {
		for ; i >= 0; i = next[i] {
			out = append(out, group[i])
		}
	}
	add(head)
	for i := range n {
		if begins[i] {
			add(i)
		}
	}
	return out
}

// heads counts the chunks of a group whose beginnings are cached.
func (p *Pool) heads(left *Piece, group []Piece) (n int) {
	for i := range group {
		if p.holdsHead(left, &group[i], false) {
			n++
		}
		left = &group[i]
	}
	return n
}

// holdsHead reports whether the beginning of chunk, with left as its left neighbour, is cached.
// If inUse is set, a resident request must also use this beginning.
func (p *Pool) holdsHead(left, chunk *Piece, inUse bool) bool {
	pieces, at := []Piece{*chunk}, 0
	if left != nil {
		pieces, at = []Piece{*left, *chunk}, 1
	}
	s := p.cfg.headShare(pieces, at)
	o := p.shared[s]
	return s.what == head && o != nil && (o.refs > 0 || !inUse)
}
