// Package goldentest compares what a test makes with a committed file.
package goldentest

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite files that tests compare with")

// File fails the test unless the file has the given content, and returns the file's content.
// With the flag -update, it writes the file first. The message says what a difference means
// and what to do.
func File(t testing.TB, path string, made []byte, message string) []byte {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, made, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, file) {
		t.Errorf("%s: %s", path, message)
	}
	return file
}
