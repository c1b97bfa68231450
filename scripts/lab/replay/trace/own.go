package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Header is the first line of our own format:
//
//	{"spliced_trace": 1, "block_tokens": 512}
//
// Every other line is a request. It gives its prompt in one of these ways:
//
//	"tokens": [1, 2, 3]                  token ids
//	"blocks": [[1, 2], [3]]              token ids in runs, concatenated
//	"hashes": ["a7f3", 17]               hashes of blocks of block_tokens tokens, as strings or numbers;
//	                                     equal hashes mean equal blocks, after any other blocks
//	"segments": [["doc-7", 566], …]      ids and tokens of segments, in prompt order
//
// and may have more fields:
//
//	"input_length": 900      tokens of the whole prompt; the default is the number of given tokens.
//	                         Tokens after the given blocks or segments can never be reused
//	"output": [4, 5]         token ids, or hashes of blocks if the prompt is given as hashes
//	"output_length": 40      number of generated tokens, if their ids are unknown
//	"timestamp": 1500        milliseconds since the trace began, never decreasing
//	"session": "u-17"        a name
//	"cuts": [128, 640]       token positions in the prompt where the application joined its parts, ascending
//
// "segments" may be combined with tokens, blocks or hashes. Unknown fields are errors.
type Header struct {
	Version     int    `json:"spliced_trace"`
	BlockTokens int    `json:"block_tokens,omitempty"` // needed for hashes
	Source      string `json:"source,omitempty"`       // for display
}

// ownVersion is the version of the format.
const ownVersion = 1

type ownLine struct {
	Tokens       numbers           `json:"tokens"`
	Blocks       []numbers         `json:"blocks"`
	Hashes       []json.RawMessage `json:"hashes"`
	Segments     []ownSegment      `json:"segments"`
	InputLength  *int              `json:"input_length"`
	Output       json.RawMessage   `json:"output"`
	OutputLength *int              `json:"output_length"`
	Timestamp    *float64          `json:"timestamp"`
	Session      string            `json:"session"`
	Cuts         []int             `json:"cuts"`
}

// own reads the lines after a header.
type own struct {
	head  Header
	kind  ownKind
	names map[string]uint32 // hashes and segment ids, numbered as they appear
	last  float64
}

func newOwn(head []byte) (*own, error) {
	o := &own{names: map[string]uint32{}}
	if err := strict(head, &o.head); err != nil {
		return nil, err
	}
	if o.head.Version != ownVersion {
		return nil, fmt.Errorf("version %d of the format, this reads %d", o.head.Version, ownVersion)
	}
	if o.head.BlockTokens < 0 || o.head.BlockTokens > maxTokens {
		return nil, fmt.Errorf("block_tokens %d is not 0 to %d", o.head.BlockTokens, maxTokens)
	}
	return o, nil
}

func (o *own) decode(line []byte, r *Request) error {
	var l ownLine
	l.Tokens.into = r.Input
	if err := strict(line, &l); err != nil {
		return err
	}
	ways := 0
	for _, said := range []bool{l.Tokens.set, l.Blocks != nil, l.Hashes != nil} {
		if said {
			ways++
		}
	}
	if ways > 1 || ways == 0 && l.Segments == nil {
		return errors.New("want one of tokens, blocks, hashes, segments")
	}
	if err := o.oneKind(ways > 0, l.Hashes != nil); err != nil {
		return err
	}
	if err := o.input(&l, r); err != nil {
		return err
	}
	if err := o.output(&l, r); err != nil {
		return err
	}
	return o.rest(&l, r)
}

// oneKind returns an error if a request has another kind of content than the first request. A
// simulation needs either tokens, blocks or segments in all requests.
func (o *own) oneKind(prompt, hashed bool) error {
	kind := ownSegments
	switch {
	case prompt && hashed && o.head.BlockTokens == 0:
		return errors.New("hashes need block_tokens in the header")
	case prompt && hashed:
		kind = ownHashes
	case prompt:
		kind = ownTokens
	}
	if o.kind == 0 {
		o.kind = kind
	}
	if o.kind != kind {
		return errors.New("a trace is of token ids, of hashes or of segments, not of several")
	}
	return nil
}

// ownKind is the form of prompts; 0 = no request yet.
type ownKind int

const (
	ownTokens ownKind = 1 + iota
	ownHashes
	ownSegments
)

func (o *own) input(l *ownLine, r *Request) error {
	named := 0
	switch {
	case l.Tokens.set:
		r.Input = l.Tokens.into
		named = len(r.Input)
	case l.Blocks != nil:
		for _, b := range l.Blocks {
			r.Input = append(r.Input, b.into...)
		}
		named = len(r.Input)
	case l.Hashes != nil:
		var err error
		if r.Input, err = o.symbols(r.Input, l.Hashes); err != nil {
			return fmt.Errorf("hashes: %w", err)
		}
		named = len(r.Input) * o.head.BlockTokens
	}
	pieces, err := o.pieces(l.Segments, r)
	if err != nil {
		return err
	}
	r.InputTokens = max(named, pieces)
	if l.InputLength != nil {
		if *l.InputLength < r.InputTokens {
			return fmt.Errorf("input_length %d, named are %d tokens", *l.InputLength, r.InputTokens)
		}
		r.InputTokens = *l.InputLength
	}
	if r.InputTokens < 1 || r.InputTokens > maxTokens {
		return fmt.Errorf("a prompt of %d tokens, want 1 to %d", r.InputTokens, maxTokens)
	}
	return nil
}

func (o *own) pieces(segments []ownSegment, r *Request) (tokens int, err error) {
	if len(segments) > maxPieces {
		return 0, fmt.Errorf("%d segments, at most %d", len(segments), maxPieces)
	}
	for i, s := range segments {
		if s.tokens < 1 || s.tokens > maxTokens {
			return 0, fmt.Errorf("segment %d of %d tokens, want 1 to %d", i+1, s.tokens, maxTokens)
		}
		id, err := o.number(s.id)
		if err != nil {
			return 0, err
		}
		r.Pieces = append(r.Pieces, Piece{id, s.tokens})
		if tokens += s.tokens; tokens > maxTokens {
			return 0, fmt.Errorf("segments of more than %d tokens", maxTokens)
		}
	}
	return tokens, nil
}

func (o *own) output(l *ownLine, r *Request) error {
	if l.Output != nil {
		if o.kind == ownHashes {
			var raw []json.RawMessage
			if err := json.Unmarshal(l.Output, &raw); err != nil {
				return fmt.Errorf("output: %w", err)
			}
			var err error
			if r.Output, err = o.symbols(r.Output, raw); err != nil {
				return fmt.Errorf("output: %w", err)
			}
			r.OutputTokens = len(r.Output) * o.head.BlockTokens
		} else {
			n := numbers{into: r.Output}
			if err := json.Unmarshal(l.Output, &n); err != nil {
				return fmt.Errorf("output: %w", err)
			}
			r.Output = n.into
			r.OutputTokens = len(r.Output)
		}
	}
	if l.OutputLength != nil {
		if *l.OutputLength < r.OutputTokens || *l.OutputLength > maxTokens {
			return fmt.Errorf("output_length %d is not %d to %d", *l.OutputLength, r.OutputTokens, maxTokens)
		}
		r.OutputTokens = *l.OutputLength
	}
	return nil
}

func (o *own) rest(l *ownLine, r *Request) error {
	if l.Timestamp != nil {
		var err error
		if r.Time, err = seconds(*l.Timestamp, 1e-3); err != nil {
			return err
		}
		if *l.Timestamp < o.last {
			return fmt.Errorf("timestamp %g after %g", *l.Timestamp, o.last)
		}
		o.last = *l.Timestamp
	}
	for i, c := range l.Cuts {
		if c < 1 || c > r.InputTokens || i > 0 && c <= l.Cuts[i-1] {
			return fmt.Errorf("cut %d at %d of %d tokens", i+1, c, r.InputTokens)
		}
	}
	r.Session = l.Session
	r.Cuts = append(r.Cuts, l.Cuts...)
	return nil
}

func (o *own) symbols(out []uint32, hashes []json.RawMessage) ([]uint32, error) {
	for i, h := range hashes {
		id, err := o.number(h)
		if err != nil {
			return out, fmt.Errorf("number %d: %w", i+1, err)
		}
		out = append(out, id)
	}
	return out, nil
}

// number returns the number of a name. A name is a JSON string or number; a new name gets the
// next free number.
func (o *own) number(name json.RawMessage) (uint32, error) {
	if len(name) == 0 || name[0] != '"' && name[0] != '-' && (name[0] < '0' || name[0] > '9') {
		return 0, fmt.Errorf("%.40q is neither a string nor a number", name)
	}
	if id, known := o.names[string(name)]; known {
		return id, nil
	}
	if len(o.names) == math.MaxInt32 {
		return 0, fmt.Errorf("more than %d names", math.MaxInt32)
	}
	id := uint32(len(o.names))
	o.names[string(name)] = id
	return id, nil
}

// ownSegment is [id, tokens].
type ownSegment struct {
	id     json.RawMessage
	tokens int
}

func (s *ownSegment) UnmarshalJSON(text []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("a segment of %d parts, want [id, tokens]", len(pair))
	}
	s.id = pair[0]
	return json.Unmarshal(pair[1], &s.tokens)
}
