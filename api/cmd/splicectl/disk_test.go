package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/offline"
)

// onDisk runs a daemon in this process with a disk directory until stop.
func onDisk(t *testing.T, dir string) (socket string, stop func()) {
	t.Helper()
	c := settings.Default()
	sockets := t.TempDir()
	c.Socket, c.AdminSocket, c.HTTP = filepath.Join(sockets, "s"), filepath.Join(sockets, "a"), "off"
	c.Arena, c.Private, c.Staging, c.Slots = 64*settings.MiB, 16*settings.MiB, 16*settings.MiB, settings.MiB
	c.Disk, c.DiskSize, c.DiskPrivate, c.DiskSlab, c.DiskReserve = dir, 48*settings.MiB, 16*settings.MiB, 16*settings.MiB, 0
	c.DiskSyncEvery = time.Hour // its counters change while nobody writes
	d, err := daemon.New(c, daemon.Parts{})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	select {
	case <-d.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the daemon does not come up")
	}
	return d.Socket(), stop
}

// engine is a client with a small model registered, attached for as long as the test lasts.
func engine(t *testing.T, socket, name string, binding connector.Binding) (*connector.Client, *connector.Model) {
	t.Helper()
	id, err := profile.FromConfig([]byte(smallConfig), profile.ConfigOptions{Model: "small", Weights: [32]byte{1}})
	must(t, err)
	p, err := profile.New(id)
	must(t, err)
	client, err := connector.Open(connector.Options{Socket: socket, Name: name, Timeouts: patient})
	must(t, err)
	t.Cleanup(func() { client.Close() })
	m, err := client.Register(p, binding)
	must(t, err)
	must(t, m.WaitReady(t.Context()))
	return client, m
}

// putSynced publishes n segments and answers their keys.
func putSynced(t *testing.T, m *connector.Model, n int) (keys []profile.SegmentKey) {
	t.Helper()
	spec := profile.FirstSpec(3)
	for i := range uint32(n) {
		tokens := []uint32{i, 2, 3}
		fill := func(_ profile.Part, _ int, off int64, dst []byte) error {
			for j := range dst {
				dst[j] = byte(i) ^ byte(off) ^ byte(j)
			}
			return nil
		}
		stored, err := m.Put(t.Context(), &connector.PutQuery{Spec: spec, Tokens: tokens, Source: connector.Source{Fill: fill}, Level: wire.LevelSynced})
		if err != nil || stored.Level != wire.LevelSynced {
			t.Fatalf("%+v, %v", stored, err)
		}
		key, _ := m.SegmentKey(spec, tokens)
		keys = append(keys, key)
	}
	return keys
}

// filledDir is the directory of a daemon that has ended, with three segments.
func filledDir(t *testing.T) (dir string, keys []profile.SegmentKey) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "disk")
	socket, stop := onDisk(t, dir)
	_, m := engine(t, socket, "disk test", connector.Binding{Engine: "test 1"})
	keys = putSynced(t, m, 3)
	stop()
	return dir, keys
}

func diskJSON[T any](t *testing.T, want int, args ...string) (v T) {
	t.Helper()
	code, out, errs := ctl(t, append([]string{"disk", "--json", "-quiet"}, args...)...)
	if code != want {
		t.Fatalf("disk %q: exit %d, want %d: %s%s", args, code, want, out, errs)
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("disk %q: %v in %s", args, err, out)
	}
	return v
}

func TestDiskOfADaemonThatEndedIsClean(t *testing.T) {
	dir, keys := filledDir(t)
	for _, deep := range []string{"-deep=false", "-deep"} {
		r := diskJSON[offline.Report](t, cli.ExitOK, "check", deep, dir)
		if !r.Clean() || r.Segments != len(keys) || r.Profiles != 1 || (r.PayloadBytes > 0) != (deep == "-deep") {
			t.Errorf("check %s: %+v", deep, r)
		}
	}
	rows := diskJSON[rowsOut](t, cli.ExitOK, "dump", dir).Rows
	if len(rows) != len(keys) || rows[0].Model != "small" || rows[0].Tenant != "default" || len(rows[0].Runs) == 0 {
		t.Errorf("dump: %+v", rows)
	}
	code, out, _ := ctl(t, "disk", "dump", "-long", dir)
	for _, k := range keys {
		if !strings.Contains(out, fmt.Sprintf("%x", k)) {
			t.Errorf("exit %d: %x is not in\n%s", code, k, out)
		}
	}
	if code, out, errs := ctl(t, "disk", "check", "-deep", dir); code != cli.ExitOK || !strings.Contains(out, "nothing is wrong") || !strings.Contains(errs, "100 %") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if code, out, _ := ctl(t, "disk", "repair", dir); code != cli.ExitOK || !strings.Contains(out, "nothing was changed") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestDiskFindsAFlippedByteAndForgetsThatSegmentOnly(t *testing.T) {
	dir, keys := filledDir(t)
	row := diskJSON[rowsOut](t, cli.ExitOK, "dump", dir).Rows[1]
	// Past the header's block lies the payload.
	flipByte(t, filepath.Join(dir, "slabs", fmt.Sprintf("%06d.slab", row.Runs[0].Slab)), row.Runs[0].Off+4096+77)
	if r := diskJSON[offline.Report](t, cli.ExitOK, "check", dir); !r.Clean() {
		t.Errorf("without -deep payloads are not read: %+v", r.Problems)
	}
	r := diskJSON[offline.Report](t, cli.ExitFailed, "check", "-deep", dir)
	if len(r.Problems) != 1 || r.Problems[0].Key != row.Key || r.Problems[0].Kind != "segment" {
		t.Errorf("%+v", r.Problems)
	}
	code, out, _ := ctl(t, "disk", "check", "-deep", "-quiet", dir)
	if code != cli.ExitFailed || !strings.Contains(out, "! segment "+row.Key) || !strings.Contains(out, "1 wrong") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	fixed := diskJSON[repaired](t, cli.ExitOK, "repair", dir)
	if !fixed.Clean || fixed.Found.Forgotten != 1 || fixed.Found.Rebuilt || fixed.Now.Segments != len(keys)-1 {
		t.Errorf("%+v", fixed)
	}
	if r := diskJSON[offline.Report](t, cli.ExitOK, "check", "-deep", dir); !r.Clean() || r.Segments != len(keys)-1 {
		t.Errorf("%+v", r)
	}
}

func TestDiskRepairBringsAllBackWithoutACatalogue(t *testing.T) {
	dir, keys := filledDir(t)
	must(t, os.RemoveAll(filepath.Join(dir, "index")))
	if r := diskJSON[offline.Report](t, cli.ExitFailed, "check", dir); r.Clean() {
		t.Error("a lost catalogue is nothing wrong")
	}
	code, out, errs := ctl(t, "disk", "repair", "-quiet", dir)
	if code != cli.ExitOK || !strings.Contains(out, fmt.Sprintf("%d segments and 0 checkpoints are in it", len(keys))) {
		t.Fatalf("exit %d:\n%s%s", code, out, errs)
	}
	socket, stop := onDisk(t, dir)
	defer stop()
	_, m := engine(t, socket, "disk test", connector.Binding{Engine: "test 1"})
	rows, err := m.Acquire(t.Context(), keys, connector.AcquireOptions{Digests: true})
	must(t, err)
	for i, r := range rows {
		if r.Err != nil {
			t.Errorf("segment %d: %v", i, r.Err)
			continue
		}
		if err := r.Lease.Verify(); err != nil {
			t.Errorf("segment %d: %v", i, err)
		}
		if part := r.Lease.Part(0); len(part) < 2 || part[1] != byte(i)^1 {
			t.Errorf("segment %d begins with %x", i, part[:2])
		}
		r.Lease.Release()
	}
}

func TestDiskRepairSaysWhatItDid(t *testing.T) {
	dir, keys := filledDir(t)
	name := filepath.Join(dir, "slabs", "000001.slab")
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	must(t, err)
	if _, err := f.WriteAt([]byte{1}, 100); err != nil {
		t.Fatal(err)
	}
	must(t, f.Close())
	must(t, os.WriteFile(filepath.Join(dir, "slabs", "000007.slab"), make([]byte, 8192), 0o600))
	if r := diskJSON[offline.Report](t, cli.ExitFailed, "check", dir); r.Clean() {
		t.Error("a damaged header is nothing wrong")
	}
	code, out, errs := ctl(t, "disk", "repair", "-quiet", dir)
	if code != cli.ExitOK || strings.Contains(out, "nothing was changed") || strings.Contains(out, "deleted") ||
		!strings.Contains(out, "1 headers of slab files were written anew") || !strings.Contains(out, "1 slab files that held nothing were removed") {
		t.Fatalf("exit %d:\n%s%s", code, out, errs)
	}
	if r := diskJSON[offline.Report](t, cli.ExitOK, "check", "-deep", dir); !r.Clean() || r.Segments != len(keys) {
		t.Errorf("%+v", r)
	}
	// A catalogue that cannot be opened is not one that is damaged.
	index := filepath.Join(dir, "index")
	must(t, errors.Join(os.Rename(index, index+".away"), os.WriteFile(index, nil, 0o600)))
	if code, out, errs := ctl(t, "disk", "check", dir); code != cli.ExitFailed || !strings.Contains(out, "index is a file, not a directory") {
		t.Errorf("check: exit %d, %q, %q", code, out, errs)
	}
	for _, verb := range []string{"repair", "dump"} {
		if code, out, errs := ctl(t, "disk", verb, dir); code != cli.ExitRefused || out != "" || !strings.Contains(errs, "index is a file, not a directory. Nothing was changed.") {
			t.Errorf("%s: exit %d, %q, %q", verb, code, out, errs)
		}
	}
}

func TestDiskWithTheKeyOfAnotherStoreIsNotChanged(t *testing.T) {
	dir, keys := filledDir(t)
	other, _ := filledDir(t)
	path := filepath.Join(dir, "KEY")
	own := mustRead(t, path)
	must(t, os.WriteFile(path, []byte(mustRead(t, filepath.Join(other, "KEY"))), 0o600))
	if code, out, errs := ctl(t, "disk", "check", dir); code != cli.ExitFailed || !strings.HasPrefix(out, "! KEY does not belong to this store: put back its own KEY\n") {
		t.Errorf("check: exit %d, %q, %q", code, out, errs)
	}
	if code, out, errs := ctl(t, "disk", "repair", dir); code != cli.ExitRefused || out != "" ||
		!strings.Contains(errs, "KEY does not belong to this store: put back its own KEY. Nothing was changed.\n") {
		t.Errorf("repair: exit %d, %q, %q", code, out, errs)
	}
	must(t, os.WriteFile(path, []byte(own), 0o600))
	if r := diskJSON[offline.Report](t, cli.ExitOK, "check", "-deep", dir); !r.Clean() || r.Segments != len(keys) {
		t.Errorf("%+v", r)
	}
}

func TestDiskThatIsNotLookedAtIsThree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "disk")
	_, stop := onDisk(t, dir)
	for _, verb := range []string{"check", "repair", "dump"} {
		code, out, errs := ctl(t, "disk", verb, dir)
		if code != cli.ExitRefused || out != "" || !strings.Contains(errs, "Stop the daemon") {
			t.Errorf("%s while a daemon runs: exit %d, %q, %q", verb, code, out, errs)
		}
	}
	stop()
	format := filepath.Join(dir, "FORMAT")
	must(t, os.WriteFile(format, regexp.MustCompile(`version \d+`).ReplaceAll([]byte(mustRead(t, format)), []byte("version 77")), 0o600))
	for at, want := range map[string]string{dir: "77", t.TempDir(): "is the -disk directory", filepath.Join(dir, "absent"): "absent does not exist\n"} {
		code, out, errs := ctl(t, "disk", "check", at)
		if code != cli.ExitRefused || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, %q, %q", at, code, out, errs)
		}
	}
}

func TestDiskOfADirectoryWithoutANameIsWrongUsage(t *testing.T) {
	for _, verb := range []string{"check", "repair", "dump"} {
		if code, out, errs := ctl(t, "disk", verb, ""); code != cli.ExitUsage || out != "" || !strings.Contains(errs, "the directory has no name") {
			t.Errorf("%s: exit %d, %q, %q", verb, code, out, errs)
		}
	}
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

func flipByte(t *testing.T, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x20
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}
