package fakecuda_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// probes are the test's kernels.
func (r *rig) probes(t testing.TB) (fill, add driver.Function) {
	t.Helper()
	m, err := r.ModuleLoad(fakecuda.ProbePTX)
	must(t, err)
	t.Cleanup(func() { must(t, r.ModuleUnload(m)) })
	fill, err = r.ModuleFunction(m, "probe_fill")
	must(t, err)
	add, err = r.ModuleFunction(m, "probe_add")
	must(t, err)
	_, err = r.ModuleFunction(m, "probe_")
	wants(t, err, driver.NotFound)
	if !strings.Contains(err.Error(), "probe_") {
		t.Errorf("the function that there is not has no name: %v", err)
	}
	return fill, add
}

var one = [3]uint32{1, 1, 1}

func TestLaunchesThatADeviceRefuses(t *testing.T) {
	r := newRig(t)
	fill, add := r.probes(t)
	p := r.alloc(t, 256, 0)
	good := args(p, uint32(1), uint32(1))
	for name, c := range map[string]struct {
		f           driver.Function
		grid, block [3]uint32
		shared      uint32
		args        []byte
		want        driver.Result
	}{
		"no blocks":                     {fill, [3]uint32{0, 1, 1}, one, 0, good, driver.InvalidValue},
		"too many blocks":               {fill, [3]uint32{1, 65536, 1}, one, 0, good, driver.InvalidValue},
		"too many threads":              {add, one, [3]uint32{1025, 1, 1}, 0, args(p, p, uint32(1)), driver.InvalidValue},
		"more than it was compiled for": {fill, one, [3]uint32{512, 1, 1}, 0, good, 701},
		"shared memory not asked for":   {fill, one, one, 48<<10 + 1, good, driver.InvalidValue},
		"an argument short":             {fill, one, one, 0, good[:12], driver.InvalidValue},
		"an argument more":              {fill, one, one, 0, append(bytes.Clone(good), good...), driver.InvalidValue},
		"more bytes of arguments":       {fill, one, one, 0, make([]byte, driver.MaxLaunchBytes+1), driver.InvalidValue},
		"no function":                   {fill + 1, one, one, 0, good, driver.InvalidHandle},
	} {
		if err := r.Launch(c.f, c.grid, c.block, c.shared, r.stream, c.args); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, not %v", name, err, c.want)
		}
	}
	must(t, r.FunctionMaxDynamicShared(fill, 100<<10))
	must(t, r.Launch(fill, one, one, 100<<10, r.stream, good))
	must(t, r.StreamSynchronize(r.stream))
}

func TestModulesThatADriverRefuses(t *testing.T) {
	r := newRig(t)
	text := string(fakecuda.ProbePTX)
	for name, c := range map[string]struct {
		from, to string
		want     driver.Result
		says     string
	}{
		"newer ISA":        {".version 7.8", ".version 9.9", 222, "9.9"},
		"newer processor":  {"sm_80", "sm_100", 209, ""},
		"special":          {"sm_80", "sm_90a", 209, ""},
		"no version":       {".version 7.8", "", 218, ""},
		"two modules":      {".address_size 64", ".address_size 64\n.version 7.8", 218, ""},
		"32 bit addresses": {".address_size 64", ".address_size 32", 218, ""},
	} {
		_, err := r.ModuleLoad([]byte(strings.Replace(text, c.from, c.to, 1)))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "ptxas") || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\x00") {
			t.Errorf("%s: %q, not %v with the compiler's log", name, err, c.want)
		}
	}
}

func TestAnOlderDriverKnowsOlderPTX(t *testing.T) {
	r := newRig(t)
	r.fake.Set(t, "VERSION", "11080")
	m, err := r.ModuleLoad(fakecuda.ProbePTX)
	must(t, err)
	must(t, r.ModuleUnload(m))
	_, err = r.ModuleLoad(bytes.Replace(fakecuda.ProbePTX, []byte("7.8"), []byte("8.0"), 1))
	wants(t, err, 222)
}

func TestABadAddressBreaksTheContext(t *testing.T) {
	for name, address := range map[string]func(*testing.T, *rig) driver.DevicePtr{
		"free": func(t *testing.T, r *rig) driver.DevicePtr {
			p, err := r.MemAlloc(4096)
			must(t, err)
			must(t, r.MemFree(p))
			return p
		},
		"no access": func(t *testing.T, r *rig) driver.DevicePtr {
			p, err := r.AddressReserve(2 << 20)
			must(t, err)
			return p
		},
		"null": func(*testing.T, *rig) driver.DevicePtr { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			r := newBrokenRig(t)
			m, err := r.ModuleLoad(fakecuda.ProbePTX)
			must(t, err)
			fill, err := r.ModuleFunction(m, "probe_fill")
			must(t, err)
			must(t, r.Launch(fill, one, one, 0, r.stream, args(address(t, r), uint32(1), uint32(1))))
			wants(t, r.StreamSynchronize(r.stream), driver.IllegalAddress)
			_, err = r.MemAlloc(1)
			wants(t, err, driver.IllegalAddress)
		})
	}
}
