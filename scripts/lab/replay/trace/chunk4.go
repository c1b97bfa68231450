package trace

import "encoding/binary"

// chunk4 appends the tokens of text to out: its UTF-8 bytes in groups of four, each read as
// a little-endian number, the last one padded with zeros. It needs no vocabulary, and equal
// prefixes of texts have equal tokens except for the last.
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
