package profile

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func flatSlopes(_, heads int) []float64 { return slices.Repeat([]float64{0.01}, heads) }

func loadConfig(t *testing.T, name string) *Profile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "config", name+".json"))
	must(t, err)
	id, err := FromConfig(text, ConfigOptions{Weights: [32]byte{1}, Slopes: flatSlopes})
	must(t, err)
	p, err := New(id)
	must(t, err)
	return p
}

// The published shapes of these models give these sizes by hand: S in F32, T in
// F16 (scalar T in F32), convolution tails and rows in BF16, one rank.
func TestConfigsOfKnownModelsGiveTheirSizes(t *testing.T) {
	for _, m := range []struct {
		name               string
		linear, attention  int
		kv                 int64   // bytes a token
		state, trans, conv float64 // MiB
		breakEven          int64
	}{
		{"qwen3-next-80b-a3b", 36, 12, 24576, 72, 36, 1.69, 4608},
		{"qwen3.5-35b-a3b", 30, 10, 20480, 60, 30, 1.41, 4608},
		{"qwen3.5-122b-a10b", 36, 12, 24576, 144, 72, 2.53, 9216},
		{"kimi-linear-48b-a3b", 20, 7, 8064, 40, 20, 1.41, 7802},
		{"ring-mini-linear-2.0", 16, 4, 8192, 16, 0.001, 0, 2048},
		{"ring-flash-linear-2.0", 28, 4, 8192, 56, 0.003, 0, 7168},
		{"minimax-m1", 70, 10, 40960, 280, 0.017, 0, 7168},
		{"nemotron-h-8b", 24, 4, 16384, 96, 0.012, 1.41, 6145},
		{"granite-4.0-h-350m", 28, 4, 4096, 21, 0.005, 0.29, 5377},
		{"granite-4.0-h-small", 36, 4, 16384, 144, 0.018, 1.74, 9217},
		// One F16 factor for every channel and state element; the weight A and
		// the summed time steps would take 0.875 MiB, a form not built yet.
		{"jamba-1.5-mini", 28, 4, 16384, 14, 7, 1.31, 1344},
		{"llama-3.1-8b", 0, 32, 131072, 0, 0, 0, 0},
		{"mistral-7b-v0.1", 0, 32, 131072, 0, 0, 0, 0},
		{"qwen2-7b", 0, 28, 57344, 0, 0, 0, 0},
		{"qwen3.5-tiny-dense", 3, 1, 512, 0.1875, 0.0938, 0.009, 576},
		{"minimax-tiny", 2, 2, 1024, 0.125, 0, 0, 128},
		{"bamba-tiny", 3, 1, 512, 0.1875, 0, 0.0099, 384},
		{"falcon-h1-0.5b", 36, 36, 18432, 27, 0.0033, 0.37, 1536}, // two layers for each decoder layer
		{"zamba2-2.7b", 54, 9, 184320, 67.5, 0.0165, 1.62, 384},
		{"zamba2-tiny", 4, 2, 2048, 0.0625, 0, 0.0073, 32},
		{"zamba-7b", 76, 13, 386048, 34.44, 17.22, 3.23, 140},
		{"mamba-130m", 24, 0, 0, 2.25, 1.125, 0.211, 0},
		{"falcon-mamba-7b", 64, 0, 0, 32, 16, 3, 0},
		{"mamba-codestral-7b", 64, 0, 0, 256, 0.031, 3.75, 0},
		{"lfm2-1.2b", 0, 6, 12288, 0, 0, 0.0781, 0},
		{"bailing-2.5-tiny", 6, 2, 512, 0.375, 0, 0, 768},
		{"bailing-3-tiny", 4, 3, 768, 0.25, 0.125, 0.0176, 512},
		{"ling-3-flash", 35, 7, 8064, 70, 35, 2.46, 13653},
		{"kimi-k3-tiny", 3, 1, 320, 0.0469, 0.0234, 0.0066, 230},
		{"nemotron-vl-tiny", 2, 1, 512, 0.125, 0, 0.0073, 256},
		{"olmo-hybrid-7b", 24, 8, 122880, 50.625, 12.656, 1.58, 540},
		{"olmo-hybrid-tiny", 3, 1, 1024, 0.211, 0.0527, 0.0132, 270},
	} {
		t.Run(m.name, func(t *testing.T) {
			p := loadConfig(t, m.name)
			r := p.Report(512)
			if len(p.LinearLayers()) != m.linear || len(p.AttentionLayers()) != m.attention {
				t.Errorf("layers: %d linear, %d attention", len(p.LinearLayers()), len(p.AttentionLayers()))
			}
			if r.KVBytesPerToken != m.kv || r.KVBytes != 512*m.kv {
				t.Errorf("keys and values: %d B a token, %d B", r.KVBytesPerToken, r.KVBytes)
			}
			checkMebibytes(t, "S", r.StateBytes, m.state)
			checkMebibytes(t, "T", r.TransitionBytes, m.trans)
			checkMebibytes(t, "conv", r.ConvBytes, m.conv)
			if r.BreakEvenTokens != m.breakEven {
				t.Errorf("break-even: %d tokens, want %d", r.BreakEvenTokens, m.breakEven)
			}
			var text strings.Builder
			if err := r.WriteText(&text); err != nil || strings.Contains(text.String(), "break-even") != (m.breakEven > 0) {
				t.Errorf("report: %v\n%s", err, &text)
			}
		})
	}
}

func checkMebibytes(t *testing.T, what string, bytes int64, want float64) {
	t.Helper()
	half := 0.005
	if want < 0.1 {
		half = 0.0005
	}
	if got := float64(bytes) / (1 << 20); math.Abs(got-want) > half {
		t.Errorf("%s: %.4f MiB, want %.3f", what, got, want)
	}
}

// What reads images and text has the states of its text model.
func TestAWrapperIsReadAsItsTextModel(t *testing.T) {
	for wrapper, plain := range map[string]string{
		`{"model_type":"qwen3_5","text_config":%s}`:             "qwen3.5-tiny-dense",
		`{"model_type":"minicpmv4_6","text_config":%s}`:         "qwen3.5-tiny-dense",
		`{"model_type":"intern_s2_preview","text_config":%s}`:   "qwen3-next-80b-a3b.transformers5",
		`{"model_type":"lfm2_vl","text_config":%s}`:             "lfm2-1.2b",
		`{"model_type":"NemotronH_Nano_VL_V2","llm_config":%s}`: "nemotron-h-8b",
	} {
		text, err := os.ReadFile(filepath.Join("testdata", "config", plain+".json"))
		must(t, err)
		id, err := FromConfig(fmt.Appendf(nil, wrapper, text), ConfigOptions{Model: "m"})
		must(t, err)
		want, err := FromConfig(text, ConfigOptions{Model: "m"})
		if err != nil || !reflect.DeepEqual(id, want) {
			t.Errorf("%s: other layers than %s's (%v)", wrapper, plain, err)
		}
	}
}

func TestConfigTellsRopeAndWindow(t *testing.T) {
	qwen := loadConfig(t, "qwen3.5-35b-a3b")
	if r := qwen.Rope(3); r.Dims != 64 || r.Theta != 1e7 || r.Interleaved {
		t.Errorf("qwen3.5 rope: %+v", r)
	}
	if r := qwen.Rope(0); r.Dims != 0 {
		t.Errorf("qwen3.5 turns keys inside a linear layer: %+v", r)
	}
	if r := loadConfig(t, "ring-mini-linear-2.0").Rope(0); r.Dims != 64 {
		t.Errorf("ring does not turn keys inside linear layers: %+v", r)
	}
	if r := loadConfig(t, "minimax-m1").Rope(7); r.Dims != 64 {
		t.Errorf("minimax rope: %+v", r)
	}
	if a := loadConfig(t, "mistral-7b-v0.1").Layer(0); a.Kind != KindWindow || a.Attention.Window != 4096 {
		t.Errorf("mistral window: %+v", a)
	}
	if a := loadConfig(t, "qwen2-7b").Layer(0); a.Kind != KindFull {
		t.Errorf("qwen2 with its window off: %+v", a)
	}
	text, err := os.ReadFile("testdata/config/qwen2-7b.json")
	must(t, err)
	on := strings.Replace(string(text), `"use_sliding_window": false`, `"use_sliding_window": true, "max_window_layers": 20`, 1)
	id, err := FromConfig([]byte(on), ConfigOptions{})
	if err != nil || id.Layers[19].Kind != KindFull || id.Layers[20].Kind != KindWindow {
		t.Errorf("qwen2 with a window from layer 20 on: %v", err)
	}
	small := loadConfig(t, "granite-4.0-h-350m").Identity()
	if c := small.Layers[0].Linear.Conv.Channels; c[1] != 128 {
		t.Errorf("granite groups on one rank: %v", c)
	}
	text, err = os.ReadFile("testdata/config/granite-4.0-h-350m.json")
	must(t, err)
	split, err := FromConfig(text, ConfigOptions{Weights: [32]byte{1}, TPSize: 2})
	must(t, err)
	if p, err := New(split); err != nil || p.RankConvChannels(0) != 1536/2+2*128 {
		t.Errorf("granite on two ranks: %v", err) // its one group is on both
	}
	freq := loadConfig(t, "llama-3.1-8b").InvFreq(0)
	last := math.Pow(5e5, -126.0/128)
	if freq[0] != 1 || freq[63] != float64(float32(last/8)) {
		t.Errorf("llama3 scaling: first %g, last %g, want 1 and %g", freq[0], freq[63], last/8)
	}
}

// transformers 5 renames layers, lists and rope fields when it saves a model.
func TestConfigsThatTransformersRewroteSayTheSame(t *testing.T) {
	again, err := filepath.Glob("testdata/config/*.transformers5.json")
	if err != nil || len(again) != 8 {
		t.Fatal(again, err)
	}
	for _, name := range again {
		name = strings.TrimSuffix(filepath.Base(name), ".json")
		published := strings.TrimSuffix(name, ".transformers5")
		if loadConfig(t, name).Fingerprint() != loadConfig(t, published).Fingerprint() {
			t.Errorf("%s is another model than %s", name, published)
		}
	}
}

func TestAConvolutionAloneKeepsItsTail(t *testing.T) {
	p := loadConfig(t, "lfm2-1.2b")
	if got := p.ConvLayers(); len(got) != 10 || got[0] != 0 || got[2] != 3 {
		t.Fatalf("convolutions: %v", got)
	}
	if p.HeadExclusion(0) != 2 {
		t.Errorf("head of %d tokens, a kernel of 3 looks back on 2", p.HeadExclusion(0))
	}
	for name, l := range map[string]Layout{"segment": p.SegmentLayout(5), "checkpoint": p.CheckpointLayout(5)} {
		part := l.Find(0, PartConv)
		if part != 0 || l.Parts[part].Shape != [3]int{2, 2048, 1} || l.Find(0, PartS) != -1 {
			t.Errorf("%s: %+v", name, l.Parts[0])
		}
	}
	if n := p.BufferLayout(8).Bytes; n != 0 {
		t.Errorf("a buffer of %d bytes for states that no rows move", n)
	}
}

func TestADecoderLayerWithTwoMixersIsTwoLayers(t *testing.T) {
	for _, c := range []struct {
		name string
		want []Kind
	}{
		{"falcon-h1-0.5b", []Kind{KindLinear, KindFull, KindLinear, KindFull}},
		{"zamba2-tiny", []Kind{KindLinear, KindFull, KindLinear, KindLinear, KindFull, KindLinear}},
		{"zamba-7b", []Kind{KindLinear, KindLinear, KindFull, KindLinear, KindLinear}},
	} {
		p := loadConfig(t, c.name)
		for i, want := range c.want {
			if got := p.Layer(i).Kind; got != want {
				t.Errorf("%s, layer %d: %s, want %s", c.name, i, got, want)
			}
		}
	}
}

func TestConfigTellsRopeOfTransformersModels(t *testing.T) {
	for _, c := range []struct {
		name  string
		layer int
		want  Rope
	}{
		{"qwen3.5-tiny-dense", 3, Rope{Dims: 16, Theta: 1e4}},
		{"minimax-tiny", 0, Rope{Dims: 64, Theta: 1e6}}, // rotary_dim is not used there
		{"minimax-tiny", 1, Rope{}},
		{"bamba-tiny", 2, Rope{Dims: 32, Theta: 1e4}},
		{"kimi-linear-48b-a3b.transformers5", 3, Rope{}},
		{"falcon-h1-0.5b", 1, Rope{Dims: 64, Theta: 1e11}},
		{"zamba2-2.7b", 6, Rope{}},
		{"zamba2-tiny", 1, Rope{Dims: 64, Theta: 1e4}},
		{"olmo-hybrid-7b", 3, Rope{}},
		{"bailing-2.5-tiny", 0, Rope{Dims: 32, Theta: 6e5}},                    // half of each head
		{"bailing-2.5-tiny", 3, Rope{Dims: 32, Theta: 6e5, Interleaved: true}}, // the whole shared key
		{"bailing-3-tiny", 0, Rope{}},
		{"bailing-3-tiny", 2, Rope{Dims: 32, Theta: 6e5, Interleaved: true}},
		{"ling-3-flash.transformers5", 5, Rope{Dims: 64, Theta: 6e6, Interleaved: true}},
		{"lfm2-1.2b", 2, Rope{Dims: 64, Theta: 1e6}},
		{"lfm2-1.2b", 1, Rope{}},
		{"olmo-hybrid-tiny", 3, Rope{Dims: 64, Theta: 5e5}},
	} {
		if got := loadConfig(t, c.name).Rope(c.layer); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s, layer %d: %+v, want %+v", c.name, c.layer, got, c.want)
		}
	}
}

func TestConfigsThatCannotBeReadAreRefusedByName(t *testing.T) {
	for _, c := range []struct{ name, config, want string }{
		{"not json", `{`, "not JSON"},
		{"not an object", `[1]`, "not a JSON object"},
		{"unknown model", `{"model_type":"perceptron"}`, `"perceptron" is not known`},
		{"no model", `{}`, "model_type: missing"},
		{"missing fields", `{"model_type":"qwen3_next","num_hidden_layers":4}`, "linear_num_key_heads: missing"},
		{"second missing field too", `{"model_type":"qwen3_next","num_hidden_layers":4}`, "linear_conv_kernel_dim: missing"},
		{"wrong type", `{"model_type":"llama","num_hidden_layers":"many"}`, "num_hidden_layers"},
		{"absurd layers", `{"model_type":"llama","num_hidden_layers":1000000000}`, "want 1 to 4096"},
		{"negative layers", `{"model_type":"llama","num_hidden_layers":-1}`, "want 1 to 4096"},
		{"short list", `{"model_type":"minimax_m1","num_hidden_layers":2,"head_dim":128,"num_attention_heads":8,"attn_type_list":[0]}`, "1 entries for 2 layers"},
		{"odd pattern", `{"model_type":"nemotron_h","num_hidden_layers":1,"hybrid_override_pattern":"X"}`, `"X" at layer 0`},
		{"layer far behind", `{"model_type":"bamba","num_hidden_layers":2,"attn_layer_indices":[2]}`, "attn_layer_indices: layer 2, want 0 to 1"},
		{"layer of a kind far behind", `{"model_type":"kimi_linear","num_hidden_layers":2,"linear_attn_config":{"kda_layers":[1,3],"full_attn_layers":[2]}}`, "linear_attn_config.kda_layers: layer 3, want 1 to 2"},
		{"layer counted from 0", `{"model_type":"kimi_linear","num_hidden_layers":2,"linear_attn_config":{"kda_layers":[1],"full_attn_layers":[0,2]}}`, "linear_attn_config.full_attn_layers: layer 0, want 1 to 2"},
		{"default key heads that do not divide", `{"model_type":"qwen2","num_hidden_layers":1,"hidden_size":3584,"num_attention_heads":28}`, "num_key_value_heads: missing, and the default 32 does not divide num_attention_heads, which is 28"},
		{"key heads that do not divide", `{"model_type":"qwen2","num_hidden_layers":1,"hidden_size":3584,"num_attention_heads":28,"num_key_value_heads":8}`, "num_key_value_heads: 8 does not divide num_attention_heads, which is 28"},
		{"odd block", `{"model_type":"nemotron_h","layers_block_type":["mlp","conv"]}`, `layers_block_type: "conv" at layer 1`},
		{"yarn", `{"model_type":"llama","num_hidden_layers":1,"head_dim":64,"num_attention_heads":8,"rope_scaling":{"rope_type":"yarn","factor":4}}`, `"yarn" is not supported`},
		{"head dim unknown", `{"model_type":"llama","num_hidden_layers":1,"hidden_size":100,"num_attention_heads":3}`, "head_dim: missing"},
		{"huge head with scaled rope", `{"model_type":"llama","num_hidden_layers":1,"head_dim":4000000000,"num_attention_heads":8,"rope_scaling":{"rope_type":"linear","factor":4}}`, "rope turns 4000000000"},
		{"negative head with scaled rope", `{"model_type":"llama","num_hidden_layers":1,"head_dim":-64,"num_attention_heads":8,"rope_scaling":{"rope_type":"linear","factor":4}}`, "rope turns -64"},
		{"no interval", `{"model_type":"qwen3_next","num_hidden_layers":4,"full_attention_interval":0}`, "full_attention_interval: 0"},
		{"no slopes", `{"model_type":"bailing_moe_linear","num_hidden_layers":2,"layer_group_size":2,"head_dim":64,"num_attention_heads":8}`, "decay slopes"},
		{"base of the rope unsaid", `{"model_type":"falcon_h1","num_hidden_layers":1,"head_dim":64}`, "rope_theta: missing"},
		{"odd shared block", `{"model_type":"zamba2","num_hidden_layers":1,"layers_block_type":["moe"]}`, `layers_block_type: "moe" at layer 0`},
		{"open last group", `{"model_type":"bailing_hybrid","num_hidden_layers":5,"layer_group_size":4,"head_dim":64,"num_attention_heads":8,"kv_lora_rank":32,"qk_rope_head_dim":32}`, "4 of 5 layers"},
		{"latents without positions", `{"model_type":"bailing_hybrid","num_hidden_layers":2,"layer_group_size":2,"use_mla_nope":true}`, "use_mla_nope: set"},
		{"unknown text model", `{"model_type":"minicpmv4_6","text_config":{"model_type":"perceptron"}}`, `"perceptron" is not known`},
		{"wrapper of nothing", `{"model_type":"kimi_k3"}`, `"kimi_k3" is not known`},
		{"zero period", `{"model_type":"jamba","num_hidden_layers":2,"attn_layer_period":0}`, "attn_layer_period: 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := FromConfig([]byte(c.config), ConfigOptions{})
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func FuzzFromConfig(f *testing.F) {
	names, err := filepath.Glob("testdata/config/*.json")
	if err != nil || len(names) == 0 {
		f.Fatal("no configs: ", err)
	}
	for _, n := range names {
		text, err := os.ReadFile(n)
		must(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		id, err := FromConfig(text, ConfigOptions{Weights: [32]byte{1}, Slopes: flatSlopes})
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%v is not ErrInvalid", err)
			}
			return
		}
		if p, err := New(id); err == nil {
			if _, err := json.Marshal(p.Report(512)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
