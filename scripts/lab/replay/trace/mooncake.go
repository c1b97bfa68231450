package trace

import (
	"encoding/json"
	"fmt"
	"math"
)

// mooncakeBlock is the block size of the Mooncake traces in tokens.
const mooncakeBlock = 512

type mooncakeLine struct {
	Timestamp    *float64 `json:"timestamp"` // milliseconds
	InputLength  *int     `json:"input_length"`
	OutputLength *int     `json:"output_length"`
	HashIDs      numbers  `json:"hash_ids"`
}

// mooncake reads {"timestamp", "input_length", "output_length", "hash_ids"}.
func mooncake(line []byte, r *Request) error {
	var l mooncakeLine
	l.HashIDs.into = r.Input
	if err := json.Unmarshal(line, &l); err != nil {
		return err
	}
	switch {
	case l.Timestamp == nil || l.InputLength == nil || l.OutputLength == nil || !l.HashIDs.set:
		return fmt.Errorf("lacks one of timestamp, input_length, output_length, hash_ids")
	case *l.InputLength < 0 || *l.InputLength > maxTokens || *l.OutputLength < 0 || *l.OutputLength > maxTokens:
		return fmt.Errorf("lengths %d and %d are not 0 to %d", *l.InputLength, *l.OutputLength, maxTokens)
	}
	if want := (*l.InputLength + mooncakeBlock - 1) / mooncakeBlock; len(l.HashIDs.into) != want {
		return fmt.Errorf("%d hash_ids for %d tokens, want %d", len(l.HashIDs.into), *l.InputLength, want)
	}
	var err error
	r.Time, err = seconds(*l.Timestamp, 1e-3)
	r.Input = l.HashIDs.into[:*l.InputLength/mooncakeBlock]
	r.InputTokens, r.OutputTokens = *l.InputLength, *l.OutputLength
	return err
}

// numbers is a JSON array of numbers below 2^32, which is decoded into an existing slice. It has
// its own decoder, because prompts are long and a replay spends most of its reading time here.
type numbers struct {
	into []uint32
	set  bool
}

// UnmarshalJSON decodes the array. text must be valid JSON.
func (n *numbers) UnmarshalJSON(text []byte) error {
	n.into, n.set = n.into[:0], true
	if len(text) < 2 || text[0] != '[' {
		return fmt.Errorf("%.40q is no list of numbers", text)
	}
	var v uint64
	digits := 0
	for _, c := range text[1:] {
		switch {
		case c >= '0' && c <= '9':
			if v = 10*v + uint64(c-'0'); v > math.MaxUint32 {
				return fmt.Errorf("number %d does not fit in 32 bits", len(n.into)+1)
			}
			digits++
		case c == ',' || c == ']':
			if digits > 0 {
				n.into = append(n.into, uint32(v))
			}
			v, digits = 0, 0
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		default:
			return fmt.Errorf("%q in number %d of a list of whole numbers", c, len(n.into)+1)
		}
	}
	return nil
}
