package profile

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestValidationNamesEveryProblem(t *testing.T) {
	for _, c := range []struct {
		name   string
		break_ func(id *Identity)
		want   string
	}{
		{"no model", func(id *Identity) { id.Model = "" }, "model: no name"},
		{"long name", func(id *Identity) { id.Adapter = strings.Repeat("x", 2000) }, "adapter: 2000 bytes"},
		{"unknown weights", func(id *Identity) { id.Weights = [32]byte{} }, "weights: digest unknown"},
		{"no ranks", func(id *Identity) { id.TPSize = 0 }, "tp size: 0"},
		{"not utf-8", func(id *Identity) { id.Model = "a\xff" }, `model: "a\xff" has bytes that are not UTF-8`},
		{"escapes", func(id *Identity) { id.Adapter = "\x1b]0;title\a" }, `adapter: "\x1b]0;title\a" has`},
		{"csi of one character", func(id *Identity) { id.Tokenizer = "\u009b31m" }, `tokenizer: "\u009b31m" has`},
		{"no layers", func(id *Identity) { id.Layers = nil }, "layers: 0"},
		{"kind", func(id *Identity) { id.Layers[2].Kind = 9 }, "layer 2: kind 9 is unknown"},
		{"family", func(id *Identity) { id.Layers[0].Linear.Family = 77 }, "linear family 77 has no kernels"},
		{"value heads", func(id *Identity) { id.Layers[0].Linear.ValueHeads = 5 }, "5 value heads are no multiple of 2 key heads"},
		{"heads over ranks", func(id *Identity) { id.TPSize = 3 }, "tp size: 3 ranks cannot share 2 key heads, 4 value heads, "},
		{"kv heads over ranks", func(id *Identity) { id.Layers[1].Attention.KVHeads = 3 }, "tp size: 2 ranks cannot share 3 key-value heads"},
		{"channels over ranks", func(id *Identity) { id.Layers[0].Linear.Conv.Channels[1] = 33 }, "cannot share 33 convolution channels"},
		{"negative dim", func(id *Identity) { id.Layers[1].Attention.KeyDim = -1 }, "key dim: -1"},
		{"state type", func(id *Identity) { id.Layers[0].Linear.StateDType = 9 }, "state type 9"},
		{"scalar in half", func(id *Identity) { id.Layers[3].Linear.TransitionDType = F16 }, "scalar transitions are kept in F32"},
		{"mamba1 shape", func(id *Identity) { id.Layers[0].Linear.Family = Mamba1 }, "Mamba1 heads are channels"},
		{"rope in dense", func(id *Identity) { id.Layers[0].Linear.Rope = Rope{Dims: 8, Theta: 1e4} }, "commutes with scalar transitions only"},
		{"odd rope", func(id *Identity) { id.Layers[1].Attention.Rope.Dims = 7 }, "rope turns 7 of 16"},
		{"wide rope", func(id *Identity) { id.Layers[1].Attention.Rope.Dims = 18 }, "rope turns 18 of 16"},
		{"theta", func(id *Identity) { id.Layers[1].Attention.Rope.Theta = math.Inf(1) }, "rope theta +Inf"},
		{"frequencies", func(id *Identity) { id.Layers[5].Attention.Rope.InvFreq = []float64{1} }, "1 inverse frequencies for 4"},
		{"nan frequency", func(id *Identity) { id.Layers[5].Attention.Rope.InvFreq[0] = math.NaN() }, "not a finite number"},
		{"rope rest", func(id *Identity) { id.Layers[1].Attention.Rope.Dims = 0 }, "rope parameters without rotated dimensions"},
		{"mla heads", func(id *Identity) { id.Layers[4].Attention.KVHeads = 2 }, "MLA has one latent row a token, not 2"},
		{"no window", func(id *Identity) { id.Layers[5].Attention.Window = 0 }, "window: 0"},
		{"window on full", func(id *Identity) { id.Layers[1].Attention.Window = 64 }, "window 64 on a layer without one"},
		{"key storage", func(id *Identity) { id.Layers[1].Attention.Keys = 0 }, "key storage 0 is unknown"},
		{"kernel without channels", func(id *Identity) { id.Layers[0].Linear.Conv.Channels = nil }, "convolution groups: 0"},
		{"channels without kernel", func(id *Identity) { id.Layers[0].Linear.Conv.Kernel = 0 }, "convolution kernel: 0"},
		{"convolution that keeps nothing", func(id *Identity) { id.Layers[2] = shortConv(1) }, "layer 2: convolution kernel: 1, want 2 to 64"},
		{"convolution of nothing", func(id *Identity) { id.Layers[2].Kind = KindConv }, "layer 2: convolution kernel: 0"},
		{"convolution over ranks", func(id *Identity) {
			id.Layers[2] = shortConv(3)
			id.Layers[2].Linear.Conv.Channels[0] = 33
		}, "cannot share 33 convolution channels"},
		{"slopes", func(id *Identity) { id.Layers[3].Linear.Slopes = []float64{1} }, "1 slopes for 4 lightning value heads"},
		{"no slopes", func(id *Identity) { id.Layers[3].Linear.Slopes = nil }, "0 slopes for 4 lightning value heads"},
		{"slopes of another family", func(id *Identity) { id.Layers[0].Linear.Slopes = []float64{1, 1, 1, 1} }, "4 slopes for 4 gdn value heads, want 0"},
		{"theta and frequencies", func(id *Identity) { id.Layers[5].Attention.Rope.Theta = 5 }, "rope theta 5 beside"},
		{"nan slope", func(id *Identity) { id.Layers[3].Linear.Slopes[2] = math.NaN() }, "a slope is not a finite number"},
		{"absurd row", func(id *Identity) {
			id.Layers[1].Attention.KVHeads, id.Layers[1].Attention.KeyDim = MaxHeads, MaxDim
		}, "elements a token"},
		{"absurd state", func(id *Identity) {
			l := &id.Layers[0].Linear
			l.KeyHeads, l.ValueHeads, l.KeyDim = 2, MaxHeads, MaxDim
		}, "elements of state"},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := hybrid()
			c.break_(&id)
			_, err := New(id)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}

	many := hybrid()
	many.Layers = make([]Layer, MaxLayers)
	for i := range many.Layers {
		many.Layers[i].Kind = 9 + Kind(i%200)
	}
	if _, err := New(many); err == nil || len(err.Error()) > 8<<10 {
		t.Error("the list of problems has no bound")
	}

	same := hybrid()
	same.Layers = slices.Repeat([]Layer{{Kind: 9}, {}}, 32)
	if _, err := New(same); err == nil || !strings.HasSuffix(err.Error(), ": layer 0 and 31 more: kind 9 is unknown") {
		t.Errorf("one problem of 32 layers: %v", err)
	}

	id := hybrid()
	id.Model, id.Weights, id.Layers[2].Kind = "", [32]byte{}, 9
	_, err := New(id)
	for _, want := range []string{"model: no name", "digest unknown", "kind 9"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not tell %q beside the others", err, want)
		}
	}
}

func TestProfileKeepsNoMemoryOfItsCaller(t *testing.T) {
	id := hybrid()
	p, err := New(id)
	must(t, err)
	before := p.Fingerprint()
	id.Layers[0].Linear.Conv.Channels[0] = 1
	id.Layers[3].Linear.Slopes[0] = 9
	p.Identity().Layers[0].Kind = KindNone
	q, err := New(p.Identity())
	if err != nil || q.Fingerprint() != before {
		t.Error("changing a caller's identity changed the profile: ", err)
	}
}

func TestParseRefusesWhatIsNotCanonical(t *testing.T) {
	p, err := New(hybrid())
	must(t, err)
	good := p.Canonical()
	for n := range good {
		if _, err := Parse(good[:n]); !errors.Is(err, ErrInvalid) {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(good), err)
		}
	}
	for _, b := range [][]byte{append(append([]byte{}, good...), 0), make([]byte, MaxCanonicalBytes+1)} {
		if _, err := Parse(b); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
	version := append([]byte{}, good...)
	for v := range byte(4) { // others begin with other numbers
		version[len(canonicalMagic)] = v
		if _, err := Parse(version); v != canonicalExact && !errors.Is(err, ErrInvalid) {
			t.Errorf("as of version %d: %v", v, err)
		}
	}
	version[len(canonicalMagic)] = 4
	if _, err := Parse(version); err == nil || !strings.Contains(err.Error(), "version 4") {
		t.Errorf("another version: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	p, err := New(hybrid())
	must(f, err)
	f.Add(p.Canonical())
	id := hybrid()
	id.Layers = append(id.Layers, shortConv(3))
	if p, err = New(id); err != nil {
		f.Fatal(err)
	}
	f.Add(p.Canonical())
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%v is not ErrInvalid", err)
			}
			return
		}
		if string(p.Canonical()) != string(b) {
			t.Fatal("accepted bytes are not the canonical ones")
		}
		if l := p.SegmentLayout(MaxTokens); l.Bytes < 0 {
			t.Fatal("sizes overflow")
		}
	})
}
