package pages

// share identifies a part that requests may share: a prefix, the inside of a chunk, or the
// beginning of a chunk whose left neighbour is a certain piece (leftKind and left). The zero
// share means that the part is not shared.
type share struct {
	what     what
	key      uint64
	leftKind Kind
	left     uint64
}

type what uint8

const (
	own    what = iota // belongs to one request
	prefix             // shared and retained
	inside             // inside of a chunk, shared
	head               // beginning of a chunk after a certain left neighbour, shared
)

// run is consecutive tokens of a request that are allocated and freed together.
type run struct {
	share
	begin, tokens int
	whole         int  // tokens of the piece
	chunk         bool // part of a chunk, shared or not: padded in front, so that it ends at a block boundary
	open          bool // the last prompt: the remainder of its block is not padding
}

// runs returns the canonical layout of a request: the runs in prompt order. Every token that is
// stored in the pool is in exactly one run.
func (r *Rules) runs(q *Request) []run {
	var list []run
	at, whole := 0, 0
	add := func(s share, tokens int, chunk bool) {
		if tokens > 0 {
			list = append(list, run{share: s, begin: at, tokens: tokens, whole: whole, chunk: chunk})
			at += tokens
		}
	}
	shared := func(s share, tokens int, chunk bool) {
		if r.Outside {
			at += tokens
			return
		}
		add(s, tokens, chunk)
	}
	for i, p := range q.Pieces {
		whole = p.Tokens
		switch p.Kind {
		case Prompt:
			add(share{}, p.Tokens, false)
		case Prefix:
			shared(share{what: prefix, key: p.Key}, p.Tokens, false)
		case Chunk:
			n := r.head(p.Tokens)
			add(r.headShare(q.Pieces, i), n, true)
			shared(share{what: inside, key: p.Key}, p.Tokens-n, true)
		}
	}
	return grow(list, at, q.Output)
}

// grow adds the room for the output to the last prompt, or creates one for it.
func grow(list []run, at, output int) []run {
	if n := len(list); n > 0 && list[n-1].what == own && !list[n-1].chunk {
		list[n-1].tokens += output
		list[n-1].open = true
		return list
	}
	if output > 0 {
		list = append(list, run{begin: at, tokens: output, open: true})
	}
	return list
}

// head returns the number of tokens at the beginning of a chunk that are not shared by the
// chunk's key alone. In the paper's layout these are the tokens in the first, partly filled
// block.
func (r *Rules) head(tokens int) int {
	if r.Window > 0 {
		return min(max(r.Window, r.Least), tokens)
	}
	n := (tokens-1)%r.BlockTokens + 1
	for n < r.Least && n < tokens {
		n += r.BlockTokens
	}
	return n
}

// headShare returns the share of the beginning of piece i, if others may share it.
func (r *Rules) headShare(pieces []Piece, i int) share {
	if !r.ShareLeft {
		return share{}
	}
	s := share{what: head, key: pieces[i].Key, leftKind: Prompt}
	if i == 0 {
		return s // nothing precedes the chunk, so its beginning is the same in every request
	}
	left := &pieces[i-1]
	if left.Kind == Prompt {
		return share{}
	}
	s.leftKind, s.left = left.Kind, left.Key
	return s
}

// demand is the memory that a run needs. blocks is a number of whole blocks. slots is the number
// of tokens after these blocks, for which the run takes slots in blocks that it shares with
// other runs. soft is the number of these whole blocks that may instead be stored in such slots,
// in pieces.
type demand struct{ blocks, slots, soft int }

func (d *demand) add(e demand) {
	d.blocks += e.blocks
	d.slots += e.slots
	d.soft += e.soft
}

// demand returns the memory of a run. A prefix always takes whole blocks, because the pool has
// only one copy of it.
func (r *Rules) demand(n *run) demand {
	if r.Pack && n.what != prefix {
		whole := n.tokens / r.BlockTokens
		return demand{whole, n.tokens % r.BlockTokens, whole}
	}
	return demand{blocks: ceil(n.tokens, r.BlockTokens)}
}

// padding returns the slots that a run takes and that stay unused.
func (r *Rules) padding(n *run) int {
	if n.open {
		return 0
	}
	return r.demand(n).blocks*r.BlockTokens + r.demand(n).slots - n.tokens
}

func ceil(n, d int) int { return (n + d - 1) / d }
