package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
)

func TestWhatKeepsAGPUFromBeingSharedIsToldWithTheRemedy(t *testing.T) {
	good := cuda.Info{UUID: gpuipc.UUID{1}, Name: "test", Bytes: 1 << 30, Driver: 12040, Major: 9, Mode: "default", MPS: cuda.No, Descriptors: true, WaitValues: true}
	with := func(change func(*cuda.Info)) cuda.Info {
		d := good
		change(&d)
		return d
	}
	rows := []struct {
		name   string
		device cuda.Info
		state  string
		text   string
		remedy string
	}{
		{"good", good, OK, "CUDA 12.4, compute mode default, no MPS", ""},
		{"under MPS", with(func(d *cuda.Info) { d.MPS = cuda.Yes }), OK, "side by side", ""},
		{"old driver", with(func(d *cuda.Info) { d.MPS = cuda.Unknown }), OK, "does not say", ""},
		{"too old", with(func(d *cuda.Info) { d.Major = 7 }), Warn, "capability 7.0", "8.0"},
		{"prohibited", with(func(d *cuda.Info) { d.Mode = "prohibited" }), Warn, "no process", "-c DEFAULT"},
		{"exclusive", with(func(d *cuda.Info) { d.Mode = "exclusive process" }), Warn, "cannot both", "MPS"},
		{"exclusive under MPS", with(func(d *cuda.Info) { d.Mode, d.MPS = "exclusive process", cuda.Yes }), OK, "side by side", ""},
		{"no descriptors", with(func(d *cuda.Info) { d.Descriptors = false }), Warn, "descriptors", "PID"},
		{"no waits in memory", with(func(d *cuda.Info) { d.WaitValues = false }), Warn, "on the host", ""},
	}
	for _, r := range rows {
		got := describeDevices([]cuda.Info{r.device}, nil, true)
		if len(got) != 1 || got[0].State != r.state || !strings.Contains(got[0].Detail, r.text) || !strings.Contains(got[0].Remedy, r.remedy) {
			t.Errorf("%s: %+v", r.name, got)
		}
	}
	missing := errors.New("no libcuda.so.1")
	if got := describeDevices(nil, missing, false); got[0].State != OK || !strings.Contains(got[0].Detail, "no libcuda.so.1") {
		t.Errorf("no driver and none needed: %+v", got)
	}
	if got := describeDevices(nil, missing, true); got[0].State != Warn || !strings.Contains(got[0].Remedy, "NVIDIA_VISIBLE_DEVICES") {
		t.Errorf("no driver where the daemon shares memory: %+v", got)
	}
}

func TestTheDaemonsGPUIsTold(t *testing.T) {
	g := api.GPU{UUID: "GPU-1", State: api.GPUServing, Name: "test", Driver: "12.4", Mode: "default", MPS: "no", Way: "descriptor"}
	if got := describeGPU(&g); got.State != OK || !strings.Contains(got.Detail, "take turns") {
		t.Errorf("%+v", got)
	}
	g.Stuck = 2
	if got := describeGPU(&g); got.State != Warn || !strings.Contains(got.Detail, "2 calls") || got.Remedy == "" {
		t.Errorf("%+v", got)
	}
	g.State, g.Trouble = api.GPULost, "GPU-1 was lost"
	if got := describeGPU(&g); got.State != Warn || !strings.Contains(got.Detail, "was lost") || !strings.Contains(got.Name, "GPU-1") || got.Remedy == "" {
		t.Errorf("%+v", got)
	}
}
