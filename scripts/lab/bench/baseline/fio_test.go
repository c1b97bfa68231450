package baseline

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"golang.org/x/sys/unix"
)

const fioOutput = `fio: this platform does not support process shared mutexes
{
  "fio version" : "fio-3.33",
  "jobs" : [
    {
      "jobname" : "spliced", "error" : 0,
      "read" : { "io_bytes" : 0, "bw_bytes" : 0, "runtime" : 0 },
      "write" : { "io_bytes" : 268435456, "bw_bytes" : 2855696340, "runtime" : 94, "total_ios" : 256 },
      "job_runtime" : 359, "usr_cpu" : 4.0, "sys_cpu" : 1.0
    }
  ]
}
`

func TestFioIsReadBehindWarnings(t *testing.T) {
	job := Transfer{Write: true, Bytes: 256 << 20, Block: 1 << 20, Workers: 4}
	got, err := parseFio([]byte(fioOutput), job)
	if err != nil {
		t.Fatal(err)
	}
	if got.Bytes != 256<<20 || got.Rate() < 2.8556 || got.Rate() > 2.8558 {
		t.Errorf("%d bytes at %v GB/s", got.Bytes, got.Rate())
	}
	if got.CPU < 0.01794 || got.CPU > 0.01796 { // 5 % of 359 ms
		t.Errorf("%v s of processor time", got.CPU)
	}
}

func TestFioThatDidSomethingElseIsRefused(t *testing.T) {
	job := Transfer{Write: true, Bytes: 256 << 20, Block: 1 << 20, Workers: 4}
	for name, text := range map[string]string{
		"an error":     strings.Replace(fioOutput, `"error" : 0`, `"error" : 28`, 1),
		"fewer bytes":  strings.Replace(fioOutput, "268435456", "268435455", 1),
		"no time":      strings.Replace(fioOutput, "2855696340", "0", 1),
		"no job":       `{"jobs": []}`,
		"no JSON":      "fio: pid=7, err=22/file:filesetup.c",
		"nothing":      "",
		"cut in parts": fioOutput[:len(fioOutput)/2],
	} {
		if got, err := parseFio([]byte(text), job); err == nil {
			t.Errorf("%s: read as %d bytes", name, got.Bytes)
		}
	}
	if _, err := parseFio([]byte(fioOutput), Transfer{Bytes: 256 << 20, Block: 1 << 20, Workers: 4}); err == nil {
		t.Error("a write was taken for a read")
	}
}

func TestFioGetsTheFlagsOfOurTransfers(t *testing.T) {
	args := Transfer{Path: "/d/f", Write: true, Bytes: 1 << 30, Block: 16 << 20, Workers: 2, Apart: true, SyncEvery: 1}.fioArgs()
	for _, want := range []string{"--rw=write", "--direct=1", "--bs=16777216", "--numjobs=2", "--size=536870912",
		"--offset_increment=536870912", "--fdatasync=1", "--filename=/d/f"} {
		if !slices.Contains(args, want) {
			t.Errorf("%s is missing in %v", want, args)
		}
	}
	args = Transfer{Path: "/d/f", Bytes: 1 << 20, Block: 1 << 18, Workers: 4}.fioArgs()
	for _, want := range []string{"--rw=read", "--size=1048576", "--iodepth=4", "--ioengine=libaio"} {
		if !slices.Contains(args, want) {
			t.Errorf("%s is missing in %v", want, args)
		}
	}
}

// directDir is a directory whose file system takes direct transfers.
func directDir(t *testing.T) *machine.Scratch {
	t.Helper()
	dir := t.TempDir()
	fd, err := unix.Open(filepath.Join(dir, "probe"), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o600)
	if errors.Is(err, unix.EINVAL) {
		t.Skip("this file system does not take direct transfers")
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return &machine.Scratch{Dir: dir}
}

func TestOurLoopAndFioMoveTheSameBytes(t *testing.T) {
	d := directDir(t)
	path, err := d.Fallocated("file", 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := machine.PageAligned(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Unmap(memory)
	job := Transfer{Path: path, Write: true, Bytes: 4 << 20, Block: 1 << 20, Workers: 2, Apart: true, SyncEvery: 1}
	if got, err := job.Run(t.Context(), memory); err != nil || got.Bytes != 4<<20 || got.Rate() <= 0 {
		t.Fatalf("wrote %d bytes of %d: %v", got.Bytes, job.Bytes, err)
	}
	if text, err := os.ReadFile(path); err != nil || !bytes.Equal(text, memory) {
		t.Errorf("%d bytes, not all blocks were written: %v", len(text), err)
	}
	written := bytes.Clone(memory)
	clear(memory)
	if err := machine.DropCached(d.Dir); err != nil {
		t.Error(err)
	}
	job.Write, job.Apart = false, false
	if got, err := job.Run(t.Context(), memory); err != nil || got.Seconds <= 0 || !bytes.Equal(memory, written) {
		t.Errorf("read %d bytes in %v s, or not those written: %v", got.Bytes, got.Seconds, err)
	}
	f, err := FindFio()
	if err != nil {
		t.Skip(err)
	}
	if got, err := f.Run(t.Context(), job); err != nil || got.Bytes != job.Bytes || got.Seconds <= 0 {
		t.Errorf("fio read %d bytes of %d in %v s: %v", got.Bytes, job.Bytes, got.Seconds, err)
	}
	job.Path = filepath.Join(path, "below")
	if _, err := f.Run(t.Context(), job); err == nil {
		t.Error("fio read what lies below a file")
	}
}
