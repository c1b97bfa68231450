package modelfile

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/safetensors"
)

func TestMissingHeadMeansTiedEmbeddings(t *testing.T) {
	c := Small("tied")
	w, err := Seeded(c, 5)
	if err != nil {
		t.Fatal(err)
	}
	w.tensors = w.tensors[:len(w.tensors)-1]
	var file bytes.Buffer
	if err := w.Save(&file, safetensors.F32); err != nil {
		t.Fatal(err)
	}
	r, err := Load(c, file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.Data("lm_head.weight"), r.Data("model.embed_tokens.weight")) {
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
