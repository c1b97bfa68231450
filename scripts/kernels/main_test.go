package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPackageHoldsWhatIsGenerated(t *testing.T) {
	folder := t.TempDir()
	if err := generate(folder); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(folder)
	if err != nil || len(files) != 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		want, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", "..", "gpuipc", "kernel", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s is not what this program writes: run make generate", f.Name())
		}
	}
}
