package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/scripts/lab/bench"
)

// One round of every row of the disk, on whatever disk this is.
func TestBenchOfTheDiskPrintsEveryRow(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a few GB")
	}
	dir, err := os.MkdirTemp(".", "bench-disk-") // temporary files may lie in memory
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	out, _ := splicectl(t, cli.ExitOK, "bench", "--suite", "disk-smoke", "--dir", dir, "--json", "-quiet")
	var r bench.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"disk_write_16MiB", "disk_write_synced_16MiB", "disk_read_16MiB", "disk_write_64MiB", "disk_write_synced_64MiB", "disk_read_64MiB",
		"disk_write_1MiB", "disk_write_synced_1MiB", "disk_read_1MiB", "disk_write_cpu_64MiB", "disk_read_cpu_64MiB",
		"disk_promotion_64MiB", "disk_open_2000", "match_32_p99_disk_busy", "match_32_p99_plain_busy", "disk_busy_node_written", "disk_busy_node_read",
		"codec_kv_bf16_smaller", "codec_kv_bf16_encode", "codec_kv_bf16_decode", "codec_synthetic_bf16_smaller",
		"put_synced_1MiB", "get_copied_1MiB", "put_synced_16MiB",
	}
	for _, row := range r.Rows {
		if row.Value <= 0 {
			t.Errorf("%+v", row)
		}
		if strings.HasPrefix(row.Name, "disk_write_") && row.Unit == "GB/s" && row.Limit == nil {
			t.Errorf("%s has no limit", row.Name)
		}
		want = slices.DeleteFunc(want, func(name string) bool { return name == row.Name })
	}
	if len(want) > 0 {
		t.Errorf("missing: %q", want)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
