package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/doctor"
)

var smallDaemon = []string{"-arena", "64MiB", "-private", "16MiB", "-disk-size", "64MiB", "-disk-private", "16MiB", "-disk-slab", "16MiB", "-disk-reserve", "0"}

func startChild(t *testing.T, o child.Options) *child.Daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	dir, err := built()
	must(t, err)
	o.Binary = filepath.Join(dir, "spliced")
	d, err := child.Start(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { must(t, d.Stop()) })
	return d
}

func TestWhatIsOnDiskIsShownAfterARestart(t *testing.T) {
	d := startChild(t, child.Options{Args: smallDaemon, Disk: true})
	key := publish(t, d.Socket)
	must(t, d.End())
	must(t, d.Restart(t.Context()))
	out, _ := splicectl(t, cli.ExitOK, "ls", "--json", "-admin", d.Admin)
	var v listed[api.Segment]
	if err := json.Unmarshal([]byte(out), &v); err != nil || len(v.Items) != 1 || v.Items[0].Key != key || !slices.Equal(v.Items[0].Tiers, []string{"disk"}) ||
		v.Items[0].Level == api.LevelMemory || v.Items[0].DiskBytes == 0 {
		t.Errorf("ls: %v %s", err, out)
	}
	for _, text := range [][]string{
		{"ls", "published", "disk"},
		{"inspect " + key.String()[:12], "published in disk, ", "codec none"},
		{"stats -all", "disk_entries", "disk_pool_public_used_bytes"},
		{"ls pools", "disk", "private"},
		{"doctor -socket " + d.Socket, "round trip"},
	} {
		args := append(strings.Fields(text[0]), "-admin", d.Admin)
		out, _ := splicectl(t, cli.ExitOK, args...)
		for _, part := range text[1:] {
			if !strings.Contains(out, part) {
				t.Errorf("%s has no %q:\n%s", text[0], part, out)
			}
		}
	}
}

func TestDoctorTellsOfADiskInTrouble(t *testing.T) {
	d := startChild(t, child.Options{Args: append([]string{"-disk", "/proc/self/none"}, smallDaemon...)})
	out, _ := splicectl(t, cli.ExitOK, "doctor", "-socket", d.Socket, "-admin", d.Admin, "--json")
	var v diagnosis
	must(t, json.Unmarshal([]byte(out), &v))
	at := slices.IndexFunc(v.Checks, func(c doctor.Check) bool { return c.Name == "daemon: disk" })
	if at < 0 || v.State != doctor.Warn || v.Checks[at].State != doctor.Warn || v.Checks[at].Remedy == "" || !strings.HasPrefix(v.Checks[at].Detail, "missing since ") {
		t.Errorf("%s", out)
	}
	if out, _ = splicectl(t, cli.ExitOK, "stats", "-admin", d.Admin); !strings.Contains(out, "degraded: disk: missing since ") {
		t.Errorf("stats:\n%s", out)
	}
}
