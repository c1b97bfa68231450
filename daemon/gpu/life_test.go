package gpu

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/policy/errkind"
)

func TestWhoListensHearsOfEachStateOnce(t *testing.T) {
	opening, missing := &GPU{Name: "1"}, &GPU{Name: "2"}
	missing.Fail(errors.New("no driver"))
	heard := ""
	Devices{opening, missing}.Listen(func(g *GPU, to State, why error) { heard += fmt.Sprintf("%s %v %v; ", g.Name, to, why) })
	opening.Serve()
	opening.Serve()
	missing.Fail(errors.New("still"))
	opening.Fail(errors.New("off the bus"))
	if want := "2 missing no driver; 1 serving <nil>; 1 lost off the bus; "; heard != want {
		t.Errorf("heard %q, want %q", heard, want)
	}
}

func TestTheLifeOfADevice(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	for name, row := range map[string]struct {
		happens func(*GPU)
		state   State
		why     error
	}{
		"nothing":                   {func(*GPU) {}, Opening, nil},
		"it serves":                 {func(g *GPU) { g.Serve() }, Serving, nil},
		"it cannot be opened":       {func(g *GPU) { g.Fail(first) }, Missing, first},
		"it fails before it serves": {func(g *GPU) { g.Fail(first); g.Serve() }, Missing, first},
		"it is lost":                {func(g *GPU) { g.Serve(); g.Fail(first) }, Lost, first},
		"it is lost once":           {func(g *GPU) { g.Serve(); g.Fail(first); g.Fail(second); g.Serve() }, Lost, first},
		"the first reason is told":  {func(g *GPU) { g.Fail(first); g.Fail(second) }, Missing, first},
		"serving twice is serving":  {func(g *GPU) { g.Serve(); g.Serve() }, Serving, nil},
	} {
		g := &GPU{Name: "GPU-1"}
		row.happens(g)
		if state, why := g.State(); state != row.state || !errors.Is(why, row.why) || g.Serving() != (state == Serving) {
			t.Errorf("%s: %v, %v", name, state, why)
		}
		if trouble := g.Trouble(); (trouble == "") != (row.why == nil) || row.why != nil && (!strings.Contains(trouble, "GPU-1") || !strings.Contains(trouble, "first")) {
			t.Errorf("%s: %q", name, trouble)
		}
	}
	g := &GPU{Name: "GPU-1"}
	g.Fail(errkind.With(errors.New("no GPU driver: libcuda.so.1: not found"), cuda.ErrNoLibrary))
	if got, want := g.Trouble(), "GPU-1 is unavailable: no GPU driver: libcuda.so.1: not found (hbm-library names another library)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for s := range States {
		if s.String() == "" {
			t.Errorf("state %d has no name", s)
		}
	}
}
