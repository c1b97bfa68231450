package main

import (
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// Every GPU of a daemon has a line of its own, whether it serves or not.
func TestEachGPUOfADaemonIsShown(t *testing.T) {
	const absent = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
	library := fakecuda.Build(t)
	t.Setenv("FAKECUDA_DIR", t.TempDir())
	t.Setenv("FAKECUDA_DEVICES", "2")
	d := startChild(t, child.Options{Args: []string{"-arena", "32MiB", "-private", "16MiB", "-hbm-public", "8MiB", "-hbm-library", library, "-hbm-device", "0,1," + absent}})
	for _, text := range [][]string{
		{"stats", "degraded: hbm: " + absent, "-00000000d001  serving  0", "-00000000d002  serving  0", absent + "  missing"},
		{"ls pools", "8 MiB", "-00000000d001", "-00000000d002"},
		{"doctor -socket " + d.Socket + " -driver " + library, "gpu of the daemon GPU-fa4e0000-0000-0000-0000-00000000d001", "gpu of the daemon GPU-fa4e0000-0000-0000-0000-00000000d002",
			"missing: " + absent, "mapped by descriptors"},
	} {
		out, _ := splicectl(t, cli.ExitOK, append(strings.Fields(text[0]), "-admin", d.Admin)...)
		for _, part := range text[1:] {
			if !strings.Contains(out, part) {
				t.Errorf("%s has no %q:\n%s", text[0], part, out)
			}
		}
	}
}
