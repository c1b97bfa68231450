package pages

import "slices"

// Order returns the request with consecutive chunks reordered so that more of their
// beginnings are already cached, for callers to whom the order of chunks is irrelevant,
// such as passages found by a search. It concerns rules that share beginnings by their left
// neighbour; under others, and without a gain, the order is unchanged. Chunks not known to
// be cached keep their place as far as possible.
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

// maxOrdered bounds the work on a group, which grows with its square.
const maxOrdered = 256

// orderGroup covers a group with chains in which each chunk's beginning is cached after the
// one before it, and concatenates the chains in order of their first chunks. A chain that
// begins after left comes first.
func (p *Pool) orderGroup(left *Piece, group []Piece) []Piece {
	n := len(group)
	next, last := make([]int, n), make([]int, n) // of a chunk; of the chain that begins with it
	begins := make([]bool, n)
	for i := range n {
		next[i], last[i], begins[i] = -1, i, true
	}
	head := -1 // first chunk of the chain after left
	// Blocks that residents read need no additional room, so these come before unused ones.
	for _, inUse := range []bool{true, false} {
		for k := range n {
			if head < 0 && begins[k] && p.holdsHead(left, &group[k], inUse) {
				head, begins[k] = k, false
			}
		}
		for i := range n {
			for k := range n {
				// i ends a chain, k begins another.
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

// holdsHead reports whether the beginning of a chunk after left is cached, and referenced
// if inUse.
func (p *Pool) holdsHead(left, chunk *Piece, inUse bool) bool {
	pieces, at := []Piece{*chunk}, 0
	if left != nil {
		pieces, at = []Piece{*left, *chunk}, 1
	}
	s := p.cfg.headShare(pieces, at)
	o := p.shared[s]
	return s.what == head && o != nil && (o.refs > 0 || !inUse)
}
