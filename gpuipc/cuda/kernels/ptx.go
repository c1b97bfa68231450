package kernels

import (
	"bytes"
	_ "embed"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// The text is stored compressed, because uncompressed it is seven times as large, and a
// process reads it only once or twice.
//
//go:embed spliced.ptx.zst
var compressed []byte

// PTX returns the text of all kernels. Callers add a zero byte before cuModuleLoadDataEx. Each
// call expands the text again, which takes some ten milliseconds, and keeps nothing.
func PTX() []byte {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		panic(fmt.Sprintf("kernels: a decoder of zstd: %v", err)) // the options of the decoder are wrong
	}
	defer d.Close()
	text, err := d.DecodeAll(compressed, nil)
	if err != nil {
		panic(fmt.Sprintf("kernels: %d bytes of spliced.ptx.zst: %v", len(compressed), err)) // the bytes are part of the program
	}
	return text
}

// Entries returns the names of all kernels in the text of PTX.
func Entries(text []byte) []string {
	var names []string
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(".visible .entry ")); ok {
			name, _, _ := bytes.Cut(rest, []byte("("))
			names = append(names, string(name))
		}
	}
	return names
}
