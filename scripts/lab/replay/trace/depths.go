package trace

import "fmt"

// depthsHead is the first line of a file of overlap depths.
const depthsHead = "req,group,entry_len_L,app_boundary,best_entry_req,overlap_depth_t,best_entry_len"

// depths reads the lines after the head.
type depths struct{ requests int }

func (d *depths) decode(line []byte, r *Request) error {
	fields, err := signedFields(line, 7)
	if err != nil {
		return err
	}
	o := Overlap{Group: fields[1], Tokens: fields[2], Boundary: fields[3], Entry: fields[4], Depth: fields[5], EntryLen: fields[6]}
	switch {
	case fields[0] != d.requests:
		return fmt.Errorf("request %d, expected %d", fields[0], d.requests)
	case o.Tokens < 1 || o.Tokens > maxTokens || o.Boundary < 0 || o.Boundary > o.Tokens:
		return fmt.Errorf("boundary %d of %d tokens", o.Boundary, o.Tokens)
	case o.Entry >= d.requests || o.Entry < 0 && (o.Entry != -1 || o.Depth != 0 || o.EntryLen != 0):
		return fmt.Errorf("entry %d of depth %d and length %d for request %d", o.Entry, o.Depth, o.EntryLen, d.requests)
	case o.Entry >= 0 && (o.Depth < 0 || o.Depth > o.Tokens || o.Depth > o.EntryLen || o.EntryLen > maxTokens):
		return fmt.Errorf("depth %d of %d tokens in an entry of %d", o.Depth, o.Tokens, o.EntryLen)
	}
	d.requests++
	r.InputTokens, r.Overlap = o.Tokens, o
	return nil
}
