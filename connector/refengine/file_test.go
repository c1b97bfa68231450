package refengine

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/connector/refengine/safetensors"
	"github.com/spliced-kv/spliced/policy/profile"
)

func saved(t *testing.T, w *Weights, d safetensors.DType) []byte {
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
			w, err := Seeded(c, 5)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Load(c, saved(t, w, safetensors.F32))
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
	w, err := Seeded(c, 5)
	if err != nil {
		t.Fatal(err)
	}
	for d, round := range map[safetensors.DType]func([]float32){
		safetensors.BF16: roundBF16, safetensors.F16: roundF16,
	} {
		r, err := Load(c, saved(t, w, d))
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
		again, err := Load(c, saved(t, r, d))
		if err != nil || again.Digest() != r.Digest() {
			t.Errorf("%s: a second round trip changed the weights (%v)", d, err)
		}
	}
}

func TestNamesAreThoseOfQwen3Next(t *testing.T) {
	w, err := Seeded(tiny(profile.GDN, profile.Rope{}, "LF"), 1)
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
	w, err := Seeded(c, 5)
	if err != nil {
		t.Fatal(err)
	}
	other := c
	other.Linear.ValueDim++
	another := c
	another.Layers = append(slices.Clone(c.Layers), profile.KindFull)
	fewer := c
	fewer.Layers = c.Layers[:1]
	for name, wrong := range map[string]Config{
		"another shape": other, "missing tensors": another, "unknown tensors": fewer,
	} {
		if _, err := Load(wrong, saved(t, w, safetensors.F32)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Load(c, []byte("no such file")); !errors.Is(err, safetensors.ErrInvalid) {
		t.Errorf("garbage: %v", err)
	}
}

func TestMissingHeadMeansTiedEmbeddings(t *testing.T) {
	c := tiny(profile.GDN, profile.Rope{}, "L")
	w, err := Seeded(c, 5)
	if err != nil {
		t.Fatal(err)
	}
	w.tensors = w.tensors[:len(w.tensors)-1]
	r, err := Load(c, saved(t, w, safetensors.F32))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.data("lm_head.weight"), r.data("model.embed_tokens.weight")) {
		t.Error("head is not the embedding")
	}
}

func TestConfigFromHF(t *testing.T) {
	const config = `{"model_type":"qwen3_next","vocab_size":512,"hidden_size":64,"intermediate_size":128,
		"num_hidden_layers":4,"rms_norm_eps":1e-6,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
		"rope_parameters":{"rope_type":"default","rope_theta":1e7,"partial_rotary_factor":0.5},
		"linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":8,"linear_value_head_dim":12,
		"linear_conv_kernel_dim":4`
	c, err := ConfigFromHF("m", []byte(config+"}"), Exact())
	if err != nil {
		t.Fatal(err)
	}
	l, f := profile.KindLinear, profile.KindFull
	if !slices.Equal(c.Layers, []profile.Kind{l, l, l, f}) || c.Attention.Rope.Dims != 8 || c.Attention.Rope.Theta != 1e7 ||
		c.Linear.ValueDim != 12 || !c.Attention.Gate {
		t.Errorf("%+v", c)
	}
	c, err = ConfigFromHF("m", []byte(config+`,"layer_types":["full_attention","linear_attention","linear_attention","linear_attention"]}`), Exact())
	if err != nil || !slices.Equal(c.Layers, []profile.Kind{f, l, l, l}) {
		t.Errorf("layer types: %v, %v", c.Layers, err)
	}
	for name, extra := range map[string]string{
		"experts": `,"num_experts":8}`, "bias": `,"attention_bias":true}`, "type": `,"model_type":"llama"}`,
		"layer types": `,"layer_types":["full_attention"]}`, "not JSON": `,`,
	} {
		if _, err := ConfigFromHF("m", []byte(config+extra), Exact()); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
