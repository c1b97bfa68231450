package cuda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// roleVariable makes the test binary play another process, which has the fake
// driver at libraryVariable.
const (
	roleVariable    = "CUDA_TEST_ROLE"
	libraryVariable = "CUDA_TEST_LIBRARY"
)

var roles = map[string]func() error{
	"adder": adderRole,
	"owner": ownerRole,
	"tour":  tourRole,
}

func TestMain(m *testing.M) {
	if !driver.Built {
		fmt.Println("skipped: built with the tag nocuda")
		os.Exit(0)
	}
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := roles[role](); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// otherProcess prepares the test binary in a role, with a driver of its own.
func otherProcess(role string, library string, setup fakecuda.Setup, files ...*os.File) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), setup.Env(library)...)
	cmd.Env = append(cmd.Env, roleVariable+"="+role, libraryVariable+"="+library)
	cmd.ExtraFiles = files
	cmd.Stderr = os.Stderr
	return cmd
}

// openFake opens a device of the fake driver. When the test ends it must close,
// and nothing may be left of it.
func openFake(t testing.TB, o Options) (*device, *fakecuda.Library) {
	t.Helper()
	lib := fakecuda.Open(t)
	lib.LeakCheck(t)
	o.Library = lib.Path
	acc, err := Open(o)
	must(t, err)
	t.Cleanup(func() { must(t, acc.Close()) })
	return acc.(*device), lib
}

// newRegion makes a region that the test's end closes.
func newRegion(t testing.TB, d gpuipc.Device, spec gpuipc.RegionSpec) gpuipc.Region {
	t.Helper()
	spec.Name, spec.Access = "test", gpuipc.ClientWrites
	r, err := d.NewRegion(spec)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

func at(r gpuipc.Region, off, n int64) gpuipc.Ref {
	return gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Off: off, Len: n}}}
}

// wireShare is a share without its descriptors, between the processes of a test.
type wireShare struct {
	Way    gpuipc.Way
	Device gpuipc.UUID
	Chunks []wireChunk
}

type wireChunk struct {
	Bytes  int64
	Handle []byte
	Off    int64
}

func toWire(s *gpuipc.Share) (w wireShare, files []*os.File) {
	w = wireShare{Way: s.Way, Device: s.Device}
	for i := range s.Chunks {
		c := &s.Chunks[i]
		w.Chunks = append(w.Chunks, wireChunk{c.Bytes, c.Handle[:], c.Off})
		if c.File != nil {
			files = append(files, c.File)
		}
	}
	return w, files
}

// fromWire takes the descriptors from 3 on.
func fromWire(w wireShare) gpuipc.Share {
	s := gpuipc.Share{Way: w.Way, Device: w.Device}
	for i, c := range w.Chunks {
		chunk := gpuipc.Chunk{Bytes: c.Bytes, Off: c.Off}
		copy(chunk.Handle[:], c.Handle)
		if w.Way == gpuipc.WayDescriptor {
			chunk.File = os.NewFile(uintptr(3+i), "share")
		}
		s.Chunks = append(s.Chunks, chunk)
	}
	return s
}

// adderRole imports the share that comes on standard input and adds one to every
// byte of it.
func adderRole() error {
	var w wireShare
	if err := json.NewDecoder(os.Stdin).Decode(&w); err != nil {
		return err
	}
	d, err := Open(Options{Library: os.Getenv(libraryVariable)})
	if err != nil {
		return err
	}
	r, err := d.ImportShare(context.Background(), fromWire(w))
	if err != nil {
		return err
	}
	b := make([]byte, r.Bytes())
	all := at(r, 0, r.Bytes())
	if err := d.Load(context.Background(), b, all); err != nil {
		return err
	}
	for i := range b {
		b[i]++
	}
	return errors.Join(d.Store(context.Background(), all, b), r.Close(), d.Close())
}

// ownerRole plays an engine: it makes a region of fours, sends its share and waits
// for standard input to end. Then every byte must be five.
func ownerRole() error {
	d, err := Open(Options{Library: os.Getenv(libraryVariable)})
	if err != nil {
		return err
	}
	r, err := d.NewRegion(gpuipc.RegionSpec{Name: "engine", Bytes: 4 << 20, Access: gpuipc.ClientWrites, Way: gpuipc.WayHandle})
	if err != nil {
		return err
	}
	b := make([]byte, r.Bytes())
	for i := range b {
		b[i] = 4
	}
	all := at(r, 0, r.Bytes())
	if err := d.Store(context.Background(), all, b); err != nil {
		return err
	}
	share, err := r.(gpuipc.SharedRegion).Share(gpuipc.WayHandle)
	if err != nil {
		return err
	}
	w, _ := toWire(&share)
	if err := json.NewEncoder(os.Stdout).Encode(w); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	if err := d.Load(context.Background(), b, all); err != nil {
		return err
	}
	for i, v := range b {
		if v != 5 {
			return fmt.Errorf("byte %d is %d", i, v)
		}
	}
	return errors.Join(r.Close(), d.Close())
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
