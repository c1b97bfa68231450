package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPackagesHoldWhatIsGenerated(t *testing.T) {
	for _, c := range []struct {
		name, folder string
		files        int
	}{{"kernel", "gpuipc/kernel", 4}, {"codec", "tiering/disk/codec", 2}, {"enginekernel", "scripts/lab/refengine/enginekernel", 4}} {
		folder := t.TempDir()
		if err := packages[c.name](folder); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(folder)
		if err != nil || len(files) != c.files {
			t.Fatalf("%s: %d files, %v", c.name, len(files), err)
		}
		for _, f := range files {
			want, err := os.ReadFile(filepath.Join(folder, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join("..", "..", c.folder, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("%s/%s is not what this program writes: run make generate", c.folder, f.Name())
			}
		}
	}
}
