package trace

import (
	"errors"
	"fmt"
	"io"
)

// passages reads lines of the form "id,…,id,query tokens": the ids of the passages that were
// retrieved for a question, and the number of tokens of the question. Another file has the
// lengths of passages.
type passages struct {
	lengths map[int]int
	file    string // file with the lengths
	fields  []int
}

func (p *passages) decode(line []byte, r *Request) error {
	var err error
	if p.fields, err = integers(p.fields[:0], line, maxTokens); err != nil {
		return err
	}
	last := len(p.fields) - 1
	if last < 1 || last > maxPieces {
		return fmt.Errorf("%d fields, want passage ids and the tokens of the query", last+1)
	}
	r.InputTokens = p.fields[last]
	for _, id := range p.fields[:last] {
		n, ok := p.lengths[id]
		if !ok {
			return &Error{Mismatch, p.file, 0, fmt.Errorf("no length for passage %d", id)}
		}
		r.Pieces = append(r.Pieces, Piece{uint32(id), n})
		r.InputTokens += n
	}
	if r.InputTokens > maxTokens {
		return fmt.Errorf("%d tokens in a prompt, at most %d", r.InputTokens, maxTokens)
	}
	return nil
}

// readLengths reads "id,tokens" lines.
func readLengths(in *lines) (map[int]int, error) {
	out := map[int]int{}
	var fields []int
	for {
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if fields, err = integers(fields[:0], line, maxTokens); err != nil {
			return nil, in.bad(err)
		}
		if len(fields) != 2 || fields[1] < 1 {
			return nil, in.bad(errors.New("want an id and its tokens"))
		}
		if _, twice := out[fields[0]]; twice {
			return nil, in.bad(fmt.Errorf("passage %d a second time", fields[0]))
		}
		if out[fields[0]] = fields[1]; len(out) > maxPieces {
			return nil, in.bad(fmt.Errorf("more than %d passages", maxPieces))
		}
	}
}
