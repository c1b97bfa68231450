// Command wiregen rewrites all files and parts of files that are generated from package schema.
// Its argument is the root of the repository.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spliced-kv/spliced/connector/wire/internal/codegen"
	"github.com/spliced-kv/spliced/connector/wire/schema"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: wiregen ROOT")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "wiregen:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	files, err := codegen.Files(&schema.Wire, root)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(root, f.Path), f.Data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
