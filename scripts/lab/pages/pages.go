// Package pages decides which blocks of an engine's paged key-value memory a prompt uses when
// chunks of it (documents, tool results) are cached once and read by many requests at different
// positions: block tables, sharing, admission and eviction. It implements the paper MEPIC (arXiv
// 2512.16822, §3.2), with our changes as options in Rules.
//
// It moves no bytes and computes nothing. It assumes that keys are stored without the rotation
// to a position, so that one copy serves every position. The engine's kernel rotates keys when
// it reads them. The owner of a Pool calls it from one goroutine at a time.
package pages

import (
	"errors"
	"fmt"
)

// Kind is the kind of a piece of a prompt.
type Kind uint8

// The kinds.
const (
	// Prompt is text of one request only: a question, the model's answer.
	Prompt Kind = iota
	// Prefix starts a prompt and is the same in many prompts: instructions, tools. It is shared
	// as a whole, and is not evicted to make room for chunks.
	Prefix
	// Chunk may be at any position.
	Chunk
)

func (k Kind) String() string {
	return [...]string{"prompt", "prefix", "chunk"}[k]
}

// Piece is a run of tokens of one kind.
type Piece struct {
	Kind   Kind
	Key    uint64 // identifies the content of a prefix or chunk
	Tokens int
}

// Request is a prompt, and room for the tokens generated after it.
type Request struct {
	Pieces []Piece
	Output int // tokens
}

// RequestID identifies a resident request.
type RequestID uint64

// Rules describes the layout of a prompt in blocks. If only BlockTokens is set, the rules are
// the paper's. A chunk is padded in front so that it ends at a block boundary. The block in
// which a chunk begins belongs to the request; its other blocks are shared. A prompt is padded
// at its end, except for the last prompt of a request.
type Rules struct {
	BlockTokens int

	// Window, if not 0, is the number of tokens at the beginning of a chunk that belong to the
	// request, instead of the tokens in the first block of the chunk. It is the width of the seam
	// that is recomputed.
	Window int

	// Least is the minimum number of tokens at the beginning of a chunk that belong to the
	// request. A model with a short convolution needs as many as the convolution has previous
	// inputs. If the first block has fewer tokens, the second block belongs to the request too.
	Least int

	// Pack avoids padding. The rest of a run, after its whole blocks, is stored in a block
	// together with the rests of other runs. If no whole block is free, a run is stored in such
	// blocks in pieces. Kernels must accept table entries that begin or end inside a block.
	Pack bool

	// ShareLeft also shares the beginning of a chunk, between requests that have the same piece
	// before the chunk. Pieces further left are ignored. That is exact if the piece before is a
	// prefix at the start of the prompt, and an approximation if it is a chunk.
	ShareLeft bool

	// Outside means that other memory, such as a daemon's, stores prefixes and the insides of
	// chunks, once for all engines. These tokens take no blocks in the pool and are in no table.
	Outside bool
}

// Config sizes a pool.
type Config struct {
	Rules
	Blocks int
}

// ErrInvalid is wrapped by the error of a request or a configuration that can never be
// valid.
var ErrInvalid = errors.New("pages: invalid")

// ErrRefused is wrapped by every *Refusal.
var ErrRefused = errors.New("pages: refused")

// Reason is the reason for a refusal.
type Reason uint8

// The reasons.
const (
	// TooLarge requests would not fit an empty pool.
	TooLarge Reason = iota + 1
	// Full: the blocks read by resident requests leave too few.
	Full
	// PrefixesKept: there would be room if chunks could evict prefixes.
	PrefixesKept
)

func (r Reason) String() string {
	return [...]string{"none", "too large", "full", "prefixes kept"}[r]
}

// Refusal is the error of a request that was not admitted. Nothing was evicted for it.
type Refusal struct {
	Reason Reason
	Need   int // blocks needed in addition to cached ones, including new blocks for rests
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
