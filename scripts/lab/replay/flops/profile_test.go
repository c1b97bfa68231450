package flops

import (
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
)

// hybrid has 30 dense recurrent and 10 full layers with the sizes of HYPIC's storage arithmetic.
func hybrid(t *testing.T) *profile.Profile {
	t.Helper()
	id := profile.Identity{Model: "hybrid", Weights: [32]byte{1}, Tokenizer: "bytes", TPSize: 1}
	for i := range 40 {
		if i%4 == 3 {
			id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindFull, Attention: profile.Attention{
				KVHeads: 4, KeyDim: 128, ValueDim: 128, DType: profile.BF16, Keys: profile.AtZero,
			}})
			continue
		}
		id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: profile.GDN, KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128,
			StateDType: profile.F32, TransitionDType: profile.F16,
		}})
	}
	p, err := profile.New(id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWorkFromAProfileAndWidths(t *testing.T) {
	w, err := ReadWidths([]byte(`{"hidden_size":2048,"num_attention_heads":16,"intermediate_size":5120,
		"moe_intermediate_size":512,"num_experts_per_tok":8,"shared_expert_intermediate_size":512}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := (Widths{Hidden: 2048, QueryHeads: 16, FeedForward: 9 * 512}); w != want {
		t.Fatalf("widths %+v, want %+v", w, want)
	}
	s := OfProfile(hybrid(t), w)
	if OfProfile(hybrid(t), Widths{}).Known() {
		t.Error("work is counted without a hidden size")
	}
	const d = 2048
	if want := 10.0 * 2 * d * (16*128 + 4*256 + 16*128); s.Attention.PerToken != want {
		t.Errorf("attention: %v a token, want %v", s.Attention.PerToken, want)
	}
	if want := 10.0 * 2 * 16 * 256; s.Attention.PerTokenSquared != want {
		t.Errorf("attention: %v a token squared, want %v", s.Attention.PerTokenSquared, want)
	}
	if want := 30.0 * (2*d*(2*2048+3*4096) + 6*32*128*128); s.Linear.PerToken != want {
		t.Errorf("linear: %v a token, want %v", s.Linear.PerToken, want)
	}
	if want := 40.0 * 6 * d * 9 * 512; s.MLP.PerToken != want {
		t.Errorf("MLP: %v a token, want %v", s.MLP.PerToken, want)
	}
}

func TestWidthsOfNestedAndPatternedConfigs(t *testing.T) {
	w, err := ReadWidths([]byte(`{"hidden_size":1,"text_config":{"hidden_size":64,"intermediate_size":128,"num_experts_per_tok":2}}`))
	if want := (Widths{Hidden: 64, FeedForward: 256}); err != nil || w != want {
		t.Errorf("nested: %+v, %v, want %+v", w, err, want)
	}
	w, err = ReadWidths([]byte(`{"hidden_size":64,"intermediate_size":128,"hybrid_override_pattern":"M-M*-"}`))
	if want := (Widths{Hidden: 64, FeedForward: 128, MLPLayers: 2, Matrices: 2}); err != nil || w != want {
		t.Errorf("pattern: %+v, %v, want %+v", w, err, want)
	}
	for config, want := range map[string]Widths{
		`{"hidden_size":64,"intermediate_size":128,"layers_block_type":["mamba","mlp","mamba","mlp"]}`:                    {Hidden: 64, FeedForward: 128, MLPLayers: 2, Matrices: 2},
		`{"num_hidden_layers":3,"hidden_size":64,"intermediate_size":128,"layers_block_type":["mamba","hybrid","mamba"]}`: {Hidden: 64, FeedForward: 128, MLPLayers: 1},
		`{"model_type":"falcon_h1","num_hidden_layers":3,"hidden_size":64,"intermediate_size":128}`:                       {Hidden: 64, FeedForward: 128, MLPLayers: 3},
		`{"model_type":"mamba","num_hidden_layers":3,"hidden_size":64,"intermediate_size":128}`:                           {Hidden: 64, MLPLayers: 3},
		`{"hidden_size":64,"time_step_limit":[0.0,Infinity],"initializer_range":NaN}`:                                     {Hidden: 64},
		`{"llm_config":{"hidden_size":64,"num_attention_heads":4}}`:                                                       {Hidden: 64, QueryHeads: 4},
	} {
		if w, err := ReadWidths([]byte(config)); err != nil || w != want {
			t.Errorf("%s: %+v, %v, want %+v", config, w, err, want)
		}
	}
	if _, err = ReadWidths([]byte(`[`)); err == nil {
		t.Error("a broken config is taken")
	}
}
