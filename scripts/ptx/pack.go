// Command ptx stores the text of kernels in compressed form:
//
//	go run ./scripts/ptx TEXT FILE.zst
//
// FILE.zst is not written if it already expands to the content of TEXT. Another release of the
// compressor therefore does not change FILE.zst.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/klauspost/compress/zstd"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: ptx TEXT FILE.zst")
		os.Exit(2)
	}
	if err := pack(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "ptx:", err)
		os.Exit(1)
	}
}

func pack(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	kept, err := os.ReadFile(to)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	expander, err := zstd.NewReader(nil)
	if err != nil {
		return err
	}
	defer expander.Close()
	if was, err := expander.DecodeAll(kept, nil); err == nil && bytes.Equal(was, text) {
		return nil
	}
	// With one goroutine, the compressed bytes depend only on the text.
	compressor, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	return os.WriteFile(to, compressor.EncodeAll(text, nil), 0o644)
}
