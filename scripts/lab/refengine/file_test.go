package refengine

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/safetensors"
)

func saved(t *testing.T, w *modelfile.Weights, d safetensors.DType) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := w.Save(&buf, d); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestAModelReadBackComputesTheSame(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			c := tiny(f.family, f.rope, "LF")
			w, err := modelfile.Seeded(c, 5)
			if err != nil {
				t.Fatal(err)
			}
			r, err := modelfile.Load(c, saved(t, w, safetensors.F32))
			if err != nil {
				t.Fatal(err)
			}
			if r.Digest() != w.Digest() {
				t.Error("digest changed")
			}
			a, err := New[float32](w)
			if err != nil {
				t.Fatal(err)
			}
			b, err := New[float32](r)
			if err != nil {
				t.Fatal(err)
			}
			tokens := text(1, 40)
			if !slices.Equal(prefill(t, a, a.NewState(), tokens), prefill(t, b, b.NewState(), tokens)) {
				t.Error("logits changed")
			}
		})
	}
}

func TestSmallerTypesRoundOnce(t *testing.T) {
	c := tiny(profile.GDN, profile.Rope{}, "LF")
	w, err := modelfile.Seeded(c, 5)
	if err != nil {
		t.Fatal(err)
	}
	for d, round := range map[safetensors.DType]func([]float32){
		safetensors.BF16: roundBF16, safetensors.F16: roundF16,
	} {
		r, err := modelfile.Load(c, saved(t, w, d))
		if err != nil {
			t.Fatal(err)
		}
		for i, tensor := range w.Tensors() {
			want := slices.Clone(tensor.Data)
			round(want)
			if !slices.Equal(r.Tensors()[i].Data, want) {
				t.Errorf("%s: %s is not its rounded self", d, tensor.Name)
			}
		}
		if r.Digest() == w.Digest() {
			t.Errorf("%s: rounded weights have the digest of the original", d)
		}
		again, err := modelfile.Load(c, saved(t, r, d))
		if err != nil || again.Digest() != r.Digest() {
			t.Errorf("%s: a second round trip changed the weights (%v)", d, err)
		}
	}
}

func TestNamesAreThoseOfQwen3Next(t *testing.T) {
	w, err := modelfile.Seeded(tiny(profile.GDN, profile.Rope{}, "LF"), 1)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tensor := range w.Tensors() {
		got = append(got, strings.TrimSuffix(tensor.Name, ".weight"))
	}
	want := strings.Fields(`
		model.embed_tokens
		model.layers.0.input_layernorm
		model.layers.0.linear_attn.in_proj_qkvz model.layers.0.linear_attn.in_proj_ba
		model.layers.0.linear_attn.dt_bias model.layers.0.linear_attn.A_log
		model.layers.0.linear_attn.conv1d model.layers.0.linear_attn.norm model.layers.0.linear_attn.out_proj
		model.layers.0.post_attention_layernorm
		model.layers.0.mlp.gate_proj model.layers.0.mlp.up_proj model.layers.0.mlp.down_proj
		model.layers.1.input_layernorm
		model.layers.1.self_attn.q_proj model.layers.1.self_attn.k_proj model.layers.1.self_attn.v_proj
		model.layers.1.self_attn.q_norm model.layers.1.self_attn.k_norm model.layers.1.self_attn.o_proj
		model.layers.1.post_attention_layernorm
		model.layers.1.mlp.gate_proj model.layers.1.mlp.up_proj model.layers.1.mlp.down_proj
		model.norm lm_head`)
	if !slices.Equal(got, want) {
		t.Errorf("names\n%v\nwant\n%v", got, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	c := tiny(profile.GDN, profile.Rope{}, "LF")
	w, err := modelfile.Seeded(c, 5)
	if err != nil {
		t.Fatal(err)
	}
	other := c
	other.Linear.ValueDim++
	another := c
	another.Layers = append(slices.Clone(c.Layers), profile.KindFull)
	fewer := c
	fewer.Layers = c.Layers[:1]
	for name, wrong := range map[string]modelfile.Config{
		"another shape": other, "missing tensors": another, "unknown tensors": fewer,
	} {
		if _, err := modelfile.Load(wrong, saved(t, w, safetensors.F32)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := modelfile.Load(c, []byte("no such file")); !errors.Is(err, safetensors.ErrInvalid) {
		t.Errorf("garbage: %v", err)
	}
}
