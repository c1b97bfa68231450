package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// DecodeConfig unmarshals a Hugging Face config.json. Python writes infinities
// and NaN as bare words, which are not JSON. They are read as the objects that
// newer files have instead, {"__float__":"Infinity"}, so that they are accepted
// in unused fields and refused where a number is expected.
func DecodeConfig(configJSON []byte, into any) error {
	err := json.Unmarshal(quoteFloats(configJSON), into)
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		return errors.New("not JSON")
	}
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && kind.Field == "" {
		return errors.New("not a JSON object")
	}
	return err
}

// floatTag is the only key of an object that stands for infinity or NaN.
const floatTag = "__float__"

// floatWords are the words that Python's json module writes.
var floatWords = [][]byte{[]byte("-Infinity"), []byte("Infinity"), []byte("NaN")}

// quoteFloats replaces the floatWords outside strings. It returns the parameter text itself
// if there are none.
func quoteFloats(text []byte) []byte {
	var out []byte
	copied, inString := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++ // an escaped character does not end the string
		case c == '"':
			inString = !inString
		case !inString && (c == '-' || c == 'I' || c == 'N'):
			for _, word := range floatWords {
				if bytes.HasPrefix(text[i:], word) {
					out = append(out, text[copied:i]...)
					out = fmt.Appendf(out, "{%q:%q}", floatTag, word)
					copied = i + len(word)
					i = copied - 1
					break
				}
			}
		}
	}
	if copied == 0 {
		return text
	}
	return append(out, text[copied:]...)
}
