// Package pages decides which blocks of an engine's paged key-value memory a
// prompt uses when chunks of it (documents, tool results) are held once and read
// by many requests at different positions: block tables, sharing, admission and
// eviction after MEPIC (arXiv 2512.16822, §3.2), with changes of ours that Rules
// switches on.
//
// It moves no bytes and computes nothing: keys are taken to be kept without their
// position, so that one copy serves every offset, and the engine's kernel to turn
// them when it reads. Whoever owns a Pool calls it from one goroutine at a time.
package pages

import (
	"errors"
	"fmt"
)

// Kind says what a piece of a prompt is.
type Kind uint8

// The kinds.
const (
	// Prompt is text of one request only: a question, what the model answers.
	Prompt Kind = iota
	// Prefix leads a prompt and is the same in many: instructions, tools. It is
	// shared whole, and stays when chunks need room.
	Prefix
	// Chunk may stand anywhere.
	Chunk
)

func (k Kind) String() string {
	return [...]string{"prompt", "prefix", "chunk"}[k]
}

// Piece is a run of tokens of one kind.
type Piece struct {
	Kind   Kind
	Key    uint64 // names the content of a prefix or chunk
	Tokens int
}

// Request is a prompt, and room for what will be generated after it.
type Request struct {
	Pieces []Piece
	Output int // tokens
}

// RequestID names a resident request.
type RequestID uint64

// Rules say how a prompt lies in blocks. With BlockTokens alone they are the
// paper's: a chunk is padded in front until it ends with a block, the block it
// begins in is the request's own, the others are shared; a prompt is padded
// behind, the last one not at all.
type Rules struct {
	BlockTokens int

	// Window, when not 0, is how many tokens at the beginning of a chunk are the
	// request's own, in place of the first block: the seam that is computed again.
	Window int

	// Least is how many tokens at the beginning of a chunk have to be the request's own:
	// with a short convolution, as many as it looks back on. Where the first block holds
	// fewer the second one is its own too.
	Least int

	// Pack puts what is left of a run after its whole blocks beside other runs'
	// rests, in blocks of their own, in place of padding; when no whole block can be
	// had, the run goes there in pieces. Kernels have to take table entries that
	// begin or end inside a block.
	Pack bool

	// ShareLeft shares also the beginning of a chunk, between requests that have
	// the same piece before it. What stands further left is taken not to matter,
	// which is exact behind a prefix that begins the prompt and an approximation
	// behind a chunk.
	ShareLeft bool

	// Outside leaves prefixes and the insides of chunks to other memory, such as a
	// daemon's, which holds them once for all engines: they take no blocks here and are
	// in no table.
	Outside bool
}

// Config sizes a pool.
type Config struct {
	Rules
	Blocks int
}

// ErrInvalid is what a request or a configuration that can never be right wraps.
var ErrInvalid = errors.New("pages: invalid")

// ErrRefused is what every *Refusal wraps.
var ErrRefused = errors.New("pages: refused")

// Reason says why a request was refused.
type Reason uint8

// The reasons.
const (
	// TooLarge requests would not fit an empty pool.
	TooLarge Reason = iota + 1
	// Full: what resident requests read leaves too little.
	Full
	// PrefixesKept: there would be room if chunks could displace prefixes.
	PrefixesKept
)

func (r Reason) String() string {
	return [...]string{"none", "too large", "full", "prefixes kept"}[r]
}

// Refusal is the error of a request that was not admitted. Nothing was evicted
// for it.
type Refusal struct {
	Reason Reason
	Need   int // blocks, those begun for rests included, beside what is held for it
	Had    int // blocks that are free or could have been evicted for it
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("pages: refused, %v: %d blocks needed, %d to be had", r.Reason, r.Need, r.Had)
}

func (r *Refusal) Unwrap() error { return ErrRefused }

// Bounds that keep sums far from overflow.
const (
	maxBlockTokens = 1 << 12
	maxBlocks      = 1 << 30
	maxTokens      = 1 << 30
	maxPieces      = 1 << 16
)

func (c *Config) check() error {
	if c.BlockTokens < 1 || c.BlockTokens > maxBlockTokens || c.Blocks < 1 || c.Blocks > maxBlocks || c.Window < 0 || c.Window > maxTokens || c.Least < 0 || c.Least > maxBlockTokens {
		return fmt.Errorf("pool of %d blocks of %d tokens, window %d: %w", c.Blocks, c.BlockTokens, c.Window, ErrInvalid)
	}
	return nil
}

func (q *Request) check() error {
	if len(q.Pieces) > maxPieces || q.Output < 0 || q.Output > maxTokens {
		return fmt.Errorf("request of %d pieces, output of %d tokens: %w", len(q.Pieces), q.Output, ErrInvalid)
	}
	total := q.Output
	for i, p := range q.Pieces {
		switch {
		case p.Kind > Chunk || p.Tokens < 1 || p.Tokens > maxTokens:
			return fmt.Errorf("piece %d: %v of %d tokens: %w", i, p.Kind, p.Tokens, ErrInvalid)
		case p.Kind == Prefix && i > 0:
			return fmt.Errorf("piece %d: a prefix behind others: %w", i, ErrInvalid)
		}
		total += p.Tokens
	}
	if total < 1 || total > maxTokens {
		return fmt.Errorf("request of %d tokens: %w", total, ErrInvalid)
	}
	return nil
}
