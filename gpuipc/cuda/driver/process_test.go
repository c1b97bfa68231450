package driver_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// loadRole loads the library it is told and says how that went.
func loadRole(in *bufio.Reader, out io.Writer) error {
	path, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	_, err = driver.Load(strings.TrimSpace(path))
	_, werr := fmt.Fprintln(out, err)
	return werr
}

// readAndTurn reads size bytes at p, says them, and writes their complement.
func (g *gpu) readAndTurn(p driver.DevicePtr, size int, out io.Writer) error {
	s, err := g.StreamCreate()
	if err != nil {
		return err
	}
	buf := make([]byte, size)
	// Go's memory, but the copies have ended before this function has.
	read := errors.Join(g.MemcpyDtoHAsync(pointer(buf), p, int64(size), s), g.StreamSynchronize(s))
	fmt.Fprintf(out, "%x\n", buf)
	for i := range buf {
		buf[i] = ^buf[i]
	}
	return errors.Join(read, g.MemcpyHtoDAsync(p, pointer(buf), int64(size), s), g.StreamSynchronize(s), g.StreamDestroy(s))
}

// handleRole opens the handles that it is told, one a line, twice each, and
// works on the memory 256 bytes behind the base.
func handleRole(in *bufio.Reader, out io.Writer) error {
	g, leave, err := enter(os.Getenv("DRIVER_TEST_LIBRARY"))
	if err != nil {
		return err
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return leave()
		}
		var h [driver.IPCHandleBytes]byte
		if _, err := hex.Decode(h[:], []byte(strings.TrimSpace(line))); err != nil {
			return err
		}
		p, err := g.IPCOpen(h)
		if err != nil {
			fmt.Fprintln(out, err)
			continue
		}
		again, err := g.IPCOpen(h)
		if err != nil || again != p {
			return fmt.Errorf("opened at %#x and then at %#x: %w", p, again, err)
		}
		err = errors.Join(g.IPCClose(again), g.readAndTurn(p+256, 16, out), g.IPCClose(p))
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "closed")
	}
}

// descriptorRole maps the memory of descriptor 3 and works on it.
func descriptorRole(in *bufio.Reader, out io.Writer) error {
	g, leave, err := enter(os.Getenv("DRIVER_TEST_LIBRARY"))
	if err != nil {
		return err
	}
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	m, err := g.ImportFD(3)
	if err != nil {
		return err
	}
	grain, err1 := g.Granularity(g.dev)
	p, err2 := g.AddressReserve(grain)
	err = errors.Join(err1, err2, g.MemMap(p, grain, m), g.MemSetAccess(p, grain, g.dev), g.readAndTurn(p+256, 16, out),
		g.MemUnmap(p, grain), g.MemRelease(m), g.AddressFree(p, grain), leave())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "closed")
	return err
}

// filled sets 16 bytes behind p+256 and gives them as hexadecimal digits, and
// those of their complement.
func (g *gpu) filled(t *testing.T, p driver.DevicePtr) (set, turned string) {
	t.Helper()
	s := must(g.StreamCreate())(t)
	text := host(t, 16)
	copy(text, "sixteen bytes :)")
	check(t, g.MemcpyHtoDAsync(p+256, pointer(text), 16, s), g.StreamSynchronize(s), g.StreamDestroy(s))
	set = hex.EncodeToString(text)
	for i := range text {
		text[i] = ^text[i]
	}
	return set, hex.EncodeToString(text)
}

func (g *gpu) read(t *testing.T, p driver.DevicePtr) string {
	t.Helper()
	s := must(g.StreamCreate())(t)
	text := host(t, 16)
	check(t, g.MemcpyDtoHAsync(pointer(text), p+256, 16, s), g.StreamSynchronize(s), g.StreamDestroy(s))
	return hex.EncodeToString(text)
}

// The handle goes by value, 64 bytes that no register holds.
func TestAHandleOpensInAnotherProcess(t *testing.T) {
	g, fake := newGPU(t)
	dir, path := t.TempDir(), fake.Path
	fake.Set(t, "DIR", dir)
	p := must(g.MemAlloc(4096))(t)
	set, turned := g.filled(t, p)
	h := must(g.IPCMemHandle(p + 700))(t)
	if other := must(g.IPCMemHandle(p))(t); other != h {
		t.Error("two addresses of one allocation have two handles")
	}
	env := append(fakecuda.Setup{Dir: dir}.Env(path), "DRIVER_TEST_LIBRARY="+path)
	c := startPeer(t, "handle", env)
	if got := c.Ask(t, "%x", h); got != set {
		t.Errorf("the other process reads %s, written was %s", got, set)
	}
	if got := c.Answer(t); got != "closed" {
		t.Errorf("%s", got)
	}
	if got := g.read(t, p); got != turned {
		t.Errorf("read %s, the other process wrote %s", got, turned)
	}
	if got := c.Ask(t, "%x", bytes.Repeat([]byte{3}, driver.IPCHandleBytes)); !strings.Contains(got, "cuIpcOpenMemHandle_v2: ") {
		t.Errorf("a handle of nothing: %s", got)
	}
	// Both are process 1 of their containers.
	env = append(fakecuda.Setup{Dir: dir, PID: os.Getpid()}.Env(path), "DRIVER_TEST_LIBRARY="+path)
	if got := startPeer(t, "handle", env).Ask(t, "%x", h); got != "cuIpcOpenMemHandle_v2: 201 CUDA_ERROR_INVALID_CONTEXT" {
		t.Errorf("equal process ids: %s", got)
	}
	check(t, g.MemFree(p))
}

func TestADescriptorOpensInAnotherProcess(t *testing.T) {
	g, fake := newGPU(t)
	path := fake.Path
	grain := must(g.Granularity(g.dev))(t)
	if grain < 4096 || grain&(grain-1) != 0 {
		t.Fatalf("granularity %d", grain)
	}
	m, p := must(g.MemCreate(grain, g.dev))(t), must(g.AddressReserve(grain))(t)
	check(t, g.MemMap(p, grain, m), g.MemSetAccess(p, grain, g.dev))
	set, turned := g.filled(t, p)
	f := os.NewFile(uintptr(must(g.ExportFD(m))(t)), "chunk")
	c := startPeer(t, "descriptor", append(fakecuda.Setup{}.Env(path), "DRIVER_TEST_LIBRARY="+path), f)
	check(t, f.Close())
	if got := c.Ask(t, ""); got != set {
		t.Errorf("the other process reads %s, written was %s", got, set)
	}
	if got := c.Answer(t); got != "closed" {
		t.Errorf("%s", got)
	}
	if got := g.read(t, p); got != turned {
		t.Errorf("read %s, the other process wrote %s", got, turned)
	}
	check(t, g.MemUnmap(p, grain), g.MemRelease(m), g.AddressFree(p, grain))
	if _, err := g.ImportFD(int(os.Stdin.Fd())); err == nil {
		t.Error("a descriptor of something else was imported")
	}
}
