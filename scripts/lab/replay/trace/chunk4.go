package trace

import "encoding/binary"

// chunk4 appends the tokens of text to out. A token is four bytes of the text, read as a
// little-endian number; the last token is padded with zeros. This needs no vocabulary. If two
// texts have a common prefix, its tokens are equal, except perhaps the last.
func chunk4(out []uint32, text []byte) []uint32 {
	for ; len(text) >= 4; text = text[4:] {
		out = append(out, binary.LittleEndian.Uint32(text))
	}
	if len(text) > 0 {
		var last [4]byte
		copy(last[:], text)
		out = append(out, binary.LittleEndian.Uint32(last[:]))
	}
	return out
}
