package cuda

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
)

// giveTo has another process import a share and add one to every byte.
func giveTo(t *testing.T, lib *fakecuda.Library, setup fakecuda.Setup) func(gpuipc.Share) {
	return func(s gpuipc.Share) {
		w, files := toWire(&s)
		text, err := json.Marshal(w)
		must(t, err)
		cmd := otherProcess("adder", lib.Path, setup, files...)
		cmd.Stdin = bytes.NewReader(text)
		must(t, cmd.Run())
		must(t, s.Close())
	}
}

func TestAnotherProcessSeesAndWritesWhatIsShared(t *testing.T) {
	for name, way := range map[string]gpuipc.Way{"descriptors": gpuipc.WayDescriptor, "handles": gpuipc.WayHandle} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fakecuda.Open(t).Set(t, "DIR", dir)
			d, lib := openFake(t, Options{ChunkBytes: 1})
			gpuipctest.ShareConformance(t, d, way, giveTo(t, lib, fakecuda.Setup{Dir: dir}))
		})
	}
}

func TestARegionLeavesOneWay(t *testing.T) {
	d, _ := openFake(t, Options{ChunkBytes: 2 << 20})
	chunks := newRegion(t, d, gpuipc.RegionSpec{Bytes: 5 << 20}).(gpuipc.SharedRegion)
	whole := newRegion(t, d, gpuipc.RegionSpec{Bytes: 5 << 20, Way: gpuipc.WayHandle}).(gpuipc.SharedRegion)
	for _, c := range []struct {
		region gpuipc.SharedRegion
		way    gpuipc.Way
		kind   error
		chunks int
	}{
		{chunks, gpuipc.WayDescriptor, nil, 3},
		{chunks, gpuipc.WayHandle, gpuipc.ErrUnavailable, 0},
		{whole, gpuipc.WayHandle, nil, 1},
		{whole, gpuipc.WayDescriptor, gpuipc.ErrUnavailable, 0},
		{chunks, 0, gpuipc.ErrInvalid, 0},
		{chunks, 3, gpuipc.ErrInvalid, 0},
	} {
		s, err := c.region.Share(c.way)
		if !errors.Is(err, c.kind) || len(s.Chunks) != c.chunks {
			t.Errorf("way %d: %d chunks, %v", c.way, len(s.Chunks), err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestADeviceWithoutVMMSharesByHandles(t *testing.T) {
	fakecuda.Open(t).Set(t, "NOVMM", "1")
	d, _ := openFake(t, Options{})
	if _, err := d.NewRegion(gpuipc.RegionSpec{Name: "r", Bytes: 1, Access: gpuipc.ClientReads, Way: gpuipc.WayDescriptor}); !errors.Is(err, gpuipc.ErrUnavailable) {
		t.Errorf("a region of descriptors: %v", err)
	}
	s, err := newRegion(t, d, gpuipc.RegionSpec{Bytes: 1}).(gpuipc.SharedRegion).Share(gpuipc.WayHandle)
	if err != nil || len(s.Chunks) != 1 {
		t.Errorf("%d chunks, %v", len(s.Chunks), err)
	}
}

// engine is another process that owns memory.
type engine struct {
	share gpuipc.Share
	end   func() // has it check its memory and go
}

func startEngine(t *testing.T, lib *fakecuda.Library, setup fakecuda.Setup) *engine {
	t.Helper()
	cmd := otherProcess("owner", lib.Path, setup)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var w wireShare
	if err := json.NewDecoder(out).Decode(&w); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatal(err)
	}
	ended := false
	e := &engine{share: fromWire(w)}
	e.end = func() {
		if ended {
			return
		}
		ended = true
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the engine: %v", err)
		}
	}
	t.Cleanup(func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return e
}

func TestMemoryOfAnEngineIsImportedInPieces(t *testing.T) {
	dir := t.TempDir()
	fakecuda.Open(t).Set(t, "DIR", dir)
	d, lib := openFake(t, Options{})
	e := startEngine(t, lib, fakecuda.Setup{Dir: dir})
	// Two layers of one allocation, the second one first.
	base := e.share.Chunks[0]
	const half = 2 << 20
	first, second := base, base
	first.Bytes, second.Bytes = half, half
	second.Off += half
	share := gpuipc.Share{Way: gpuipc.WayHandle, Device: e.share.Device, Chunks: []gpuipc.Chunk{second, first}}
	r, err := d.ImportShare(t.Context(), share)
	must(t, err)
	if n := lib.Stats().Imports; n != 1 || r.Bytes() != 2*half {
		t.Errorf("%d handles opened for one allocation, %d bytes", n, r.Bytes())
	}
	b := make([]byte, 2*half)
	if err := d.Load(t.Context(), b, at(r, 0, 2*half)); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{4}, 2*half)) {
		t.Errorf("loaded %d, %d...: %v", b[0], b[half], err)
	}
	// What straddles the chunks is written in two pieces.
	if err := d.Store(t.Context(), at(r, 0, 2*half), bytes.Repeat([]byte{5}, 2*half)); err != nil {
		t.Error(err)
	}
	if _, err := r.(gpuipc.SharedRegion).Share(gpuipc.WayHandle); !errors.Is(err, gpuipc.ErrUnavailable) {
		t.Errorf("share of memory of another process: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	e.end()
}

func TestRefusedImportsSayWhatHelps(t *testing.T) {
	dir := t.TempDir()
	lib := fakecuda.Open(t)
	lib.Set(t, "DIR", dir)
	d, _ := openFake(t, Options{})
	e := startEngine(t, lib, fakecuda.Setup{Dir: dir})
	with := func(change func(s *gpuipc.Share)) gpuipc.Share {
		s := e.share
		s.Chunks = append([]gpuipc.Chunk(nil), s.Chunks...)
		change(&s)
		return s
	}
	for _, c := range []struct {
		name  string
		share gpuipc.Share
		kind  error
		says  string
	}{
		{"another device", with(func(s *gpuipc.Share) { s.Device[0]++ }), gpuipc.ErrInvalid, d.UUID().String()},
		{"no way", with(func(s *gpuipc.Share) { s.Way = 0 }), gpuipc.ErrInvalid, "way 0"},
		{"no chunks", with(func(s *gpuipc.Share) { s.Chunks = nil }), gpuipc.ErrInvalid, "0 chunks"},
		{"too many chunks", with(func(s *gpuipc.Share) { s.Chunks = make([]gpuipc.Chunk, importChunks+1) }), gpuipc.ErrInvalid, "4097 chunks"},
		{"an empty chunk", with(func(s *gpuipc.Share) { s.Chunks[0].Bytes = 0 }), gpuipc.ErrInvalid, "0 bytes"},
		{"a chunk before its allocation", with(func(s *gpuipc.Share) { s.Chunks[0].Off = -1 }), gpuipc.ErrInvalid, "at -1"},
		{"a chunk behind its allocation", with(func(s *gpuipc.Share) { s.Chunks[0].Off = 16 }), gpuipc.ErrInvalid, "of an allocation of"},
		{"a chunk that is larger", with(func(s *gpuipc.Share) { s.Chunks[0].Bytes++ }), gpuipc.ErrInvalid, "of an allocation of"},
		{"no descriptor", with(func(s *gpuipc.Share) { s.Way = gpuipc.WayDescriptor }), gpuipc.ErrInvalid, "no descriptor"},
		{"handle of nothing", with(func(s *gpuipc.Share) { s.Chunks[0].Handle = [64]byte{1} }), gpuipc.ErrUnavailable, "expandable segments"},
	} {
		r, err := d.ImportShare(t.Context(), c.share)
		if r != nil || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if n := lib.Stats().Imports; n != 0 {
		t.Errorf("%d handles are open", n)
	}
	e.fillAndEnd(t, d)
}

// fillAndEnd makes the engine's check pass and ends it.
func (e *engine) fillAndEnd(t *testing.T, d *device) {
	t.Helper()
	r, err := d.ImportShare(t.Context(), e.share)
	must(t, err)
	n := r.Bytes()
	if err := errors.Join(d.Store(t.Context(), at(r, 0, n), bytes.Repeat([]byte{5}, int(n))), r.Close()); err != nil {
		t.Error(err)
	}
	e.end()
}

func TestEqualProcessIDsAreNamed(t *testing.T) {
	dir := t.TempDir()
	lib := fakecuda.Open(t)
	lib.Set(t, "DIR", dir)
	lib.Set(t, "PID", "1")
	d, _ := openFake(t, Options{})
	e := startEngine(t, lib, fakecuda.Setup{Dir: dir, PID: 1})
	_, err := d.ImportShare(t.Context(), e.share)
	if !errors.Is(err, gpuipc.ErrUnavailable) || !errors.Is(err, driver.InvalidContext) || !strings.Contains(err.Error(), "shareProcessNamespace") {
		t.Errorf("%v", err)
	}
}

func TestDescriptorsAreClosedWhateverHappens(t *testing.T) {
	d, lib := openFake(t, Options{})
	own := newRegion(t, d, gpuipc.RegionSpec{Bytes: 2 << 20}).(gpuipc.SharedRegion)
	null, err := os.Open(os.DevNull)
	must(t, err)
	share := func(change func(s *gpuipc.Share)) gpuipc.Share {
		s, err := own.Share(gpuipc.WayDescriptor)
		must(t, err)
		change(&s)
		return s
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, s := range map[string]gpuipc.Share{
		"another device":   share(func(s *gpuipc.Share) { s.Device[3]++ }),
		"odd size":         share(func(s *gpuipc.Share) { s.Chunks[0].Bytes-- }),
		"larger":           share(func(s *gpuipc.Share) { s.Chunks[0].Bytes *= 2 }),
		"not the driver's": {Way: gpuipc.WayDescriptor, Device: d.UUID(), Chunks: []gpuipc.Chunk{{Bytes: 2 << 20, File: null}}},
	} {
		f := s.Chunks[0].File
		if r, err := d.ImportShare(t.Context(), s); r != nil || !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if f.Close() == nil {
			t.Errorf("%s: the descriptor is still open", name)
		}
	}
	s := share(func(*gpuipc.Share) {})
	f := s.Chunks[0].File
	if _, err := d.ImportShare(ended, s); !errors.Is(err, context.Canceled) || f.Close() == nil {
		t.Errorf("an ended context: %v", err)
	}
	if n := lib.Stats().Physical; n != 1 {
		t.Errorf("%d allocations are held", n)
	}
	// In one process a descriptor is as good as in another.
	r, err := d.ImportShare(t.Context(), share(func(*gpuipc.Share) {}))
	must(t, err)
	b := make([]byte, 1)
	if err := errors.Join(d.Store(t.Context(), at(own, 77, 1), []byte{7}), d.Load(t.Context(), b, at(r, 77, 1)), r.Close()); err != nil || b[0] != 7 {
		t.Errorf("%d, %v", b[0], err)
	}
}

func TestNoBadImportTakesTheDeviceFromTheOthers(t *testing.T) {
	d, lib := openFake(t, Options{})
	own := newRegion(t, d, gpuipc.RegionSpec{Bytes: 2 << 20}).(gpuipc.SharedRegion)
	for _, call := range []string{"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"} {
		for _, result := range []driver.Result{driver.Unknown, driver.DeviceUnavailable, driver.OperatingSystem, driver.MapFailed, driver.IllegalAddress} {
			s, err := own.Share(gpuipc.WayDescriptor)
			must(t, err)
			lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: call, Nth: 1, Value: int(result)})
			if _, err := d.ImportShare(t.Context(), s); !errors.Is(err, gpuipc.ErrUnavailable) || !errors.Is(err, result) {
				t.Errorf("%s answers %v: %v", call, result, err)
			}
			lib.Clear()
			if err := d.Store(t.Context(), at(own, 0, 3), []byte("abc")); err != nil {
				t.Fatalf("after %s answered %v: %v", call, result, err)
			}
		}
	}
}

func TestADoubtfulResultLosesTheDeviceOnlyWithTheNextCall(t *testing.T) {
	d, lib := openFake(t, Options{})
	r := newRegion(t, d, gpuipc.RegionSpec{Bytes: 4096})
	for _, result := range []driver.Result{driver.Unknown, driver.DeviceUnavailable} {
		lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuMemcpyHtoDAsync_v2", Nth: 1, Value: int(result)})
		if err := d.Store(t.Context(), at(r, 0, 3), []byte("abc")); !errors.Is(err, result) {
			t.Errorf("%v: %v", result, err)
		}
		lib.Clear()
		if err := d.Store(t.Context(), at(r, 0, 3), []byte("abc")); err != nil {
			t.Errorf("after %v: %v", result, err)
		}
	}
}
