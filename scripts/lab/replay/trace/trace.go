// Package trace reads recorded request streams, one request at a time. A trace is a plain file,
// a file compressed with zstd, or a member of a tar archive. The package recognises formats by
// the first line of the content, not by the file's name.
//
// A line that cannot be read ends the reading with an *Error, which has the file, the line and a
// code; no line is skipped. A Reader must be used by one goroutine at a time.
package trace

import "time"

// Format is the name of a recognised format.
type Format string

// The recognised formats.
const (
	Own      Format = "spliced"       // our JSONL, see Header
	Mooncake Format = "mooncake"      // JSONL with hash_ids of 512-token blocks
	Sessions Format = "session-order" // csv that names turns of sessions in another file
	Passages Format = "passage-list"  // csv of passage ids, with lengths in another file
	Depths   Format = "depths"        // csv of overlap depths of prompts with earlier ones
)

// Kind is the content of requests, which determines the possible simulations.
type Kind int

// The kinds of requests.
const (
	Prompts    Kind = iota // symbols: token ids, or ids of blocks
	FlatPieces             // segments by id and length, whatever their content
	Overlaps               // depths of overlap only
)

// Info describes an open trace.
type Info struct {
	Format      Format
	Kind        Kind
	BlockTokens int // tokens per symbol of Input and Output
}

// Request is one request. Next refills it and reuses its slices.
type Request struct {
	Line         int           // line number, from 1
	Time         time.Duration // since the trace's start; 0 if it has none
	Session      string        // empty when unknown
	Input        []uint32      // symbols of the prompt, without an incomplete last block
	Output       []uint32      // symbols generated; empty when unknown
	InputTokens  int           // of the whole prompt
	OutputTokens int           // 0 when unknown
	Cuts         []int         // application boundaries in tokens, ascending
	Pieces       []Piece       // in prompt order; tokens of the prompt that are in no piece follow them
	Overlap      Overlap
}

// Piece is a segment that may be at any position.
type Piece struct {
	ID     uint32
	Tokens int
}

// Overlap describes the longest prefix that a prompt shares with an earlier prompt.
type Overlap struct {
	Group    int // documents, as the trace numbers them
	Tokens   int // length of this prompt
	Boundary int // end of the application's shared part
	Entry    int // request whose prompt shares the longest prefix; -1 = none
	Depth    int // tokens shared with Entry's prompt
	EntryLen int // length of Entry's prompt
}

func (r *Request) reset(line int) {
	*r = Request{Line: line, Input: r.Input[:0], Output: r.Output[:0], Cuts: r.Cuts[:0], Pieces: r.Pieces[:0]}
}

// Bounds on the values in a line, far above any prompt.
const (
	maxLineBytes = 64 << 20
	maxTokens    = 1 << 26 // of one prompt
	maxPieces    = 1 << 20 // distinct passages, and of one prompt
	maxMembers   = 10_000  // of an archive
)
