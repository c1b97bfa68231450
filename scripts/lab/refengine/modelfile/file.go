package modelfile

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/safetensors"
)

// Save writes the weights as a safetensors file in the element type d. Tensors have the names
// that Config.tensors lists.
func (w *Weights) Save(out io.Writer, d safetensors.DType) error {
	f := &safetensors.File{Metadata: map[string]string{"format": "pt"}}
	for _, t := range w.tensors {
		s, err := safetensors.New(t.Name, d, t.Shape, t.Data)
		if err != nil {
			return err
		}
		f.Tensors = append(f.Tensors, s)
	}
	return f.Write(out)
}

// Load reads weights for a configuration from a safetensors file. The file must have every
// tensor of the model, with the right shape, and no other tensors. Tensors of multi-token
// prediction (mtp.*) and of images (model.visual.*) are allowed and ignored. A missing
// lm_head.weight means tied embeddings.
func Load(c Config, file []byte) (*Weights, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	f, err := safetensors.Parse(file)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]safetensors.Tensor, len(f.Tensors))
	for _, t := range f.Tensors {
		if name, ok := ofText(t.Name); ok {
			byName[name] = t
		}
	}
	specs := c.tensors()
	w := newWeights(c, len(specs))
	var bad []string
	for _, s := range specs {
		t, ok := byName[s.name]
		delete(byName, s.name)
		if !ok && s.name == "lm_head.weight" {
			w.add(Tensor{Name: s.name, Shape: s.shape, Data: w.Data("model.embed_tokens.weight")})
			continue
		}
		if !ok {
			bad = append(bad, s.name+" is missing")
		} else if !slices.Equal(t.Shape, s.shape) {
			bad = append(bad, fmt.Sprintf("%s has shape %v, expected %v", s.name, t.Shape, s.shape))
		}
		w.add(Tensor{Name: s.name, Shape: s.shape, Data: t.Float32()})
	}
	for name := range byName {
		bad = append(bad, name+" is unknown")
	}
	if len(bad) > 0 {
		slices.Sort(bad)
		return nil, fmt.Errorf("weights of %q: %s: %w", c.Name, strings.Join(bad, "; "), ErrInvalid)
	}
	return w, nil
}

// ofText converts the name of a tensor in the file to its name in a text-only model. It returns
// false if a text-only model has no such tensor. In a model with a vision part, names of the
// text part have an additional prefix.
func ofText(name string) (string, bool) {
	if strings.HasPrefix(name, "mtp.") || strings.HasPrefix(name, "model.visual.") {
		return "", false
	}
	if rest, ok := strings.CutPrefix(name, "model.language_model."); ok {
		return "model." + rest, true
	}
	return name, true
}

// hfConfig holds the fields that we read from a config.json of Qwen3-Next or Qwen3.5.
type hfConfig struct {
	ModelType     string   `json:"model_type"`
	Vocab         int      `json:"vocab_size"`
	Dim           int      `json:"hidden_size"`
	Hidden        int      `json:"intermediate_size"`
	Layers        int      `json:"num_hidden_layers"`
	LayerTypes    []string `json:"layer_types"`
	FullEvery     int      `json:"full_attention_interval"`
	Eps           float64  `json:"rms_norm_eps"`
	Heads         int      `json:"num_attention_heads"`
	KVHeads       int      `json:"num_key_value_heads"`
	HeadDim       int      `json:"head_dim"`
	Theta         float64  `json:"rope_theta"`
	PartialRotary float64  `json:"partial_rotary_factor"`
	Rope          struct {
		Type    string  `json:"rope_type"`
		Theta   float64 `json:"rope_theta"`
		Partial float64 `json:"partial_rotary_factor"`
	} `json:"rope_parameters"`
	KeyHeads   int  `json:"linear_num_key_heads"`
	ValueHeads int  `json:"linear_num_value_heads"`
	KeyDim     int  `json:"linear_key_head_dim"`
	ValueDim   int  `json:"linear_value_head_dim"`
	Kernel     int  `json:"linear_conv_kernel_dim"`
	Experts    int  `json:"num_experts"`
	Bias       bool `json:"attention_bias"`
	// Nested is the text part of a model that also reads images.
	Nested json.RawMessage `json:"text_config"`
}

// ConfigFromHF reads the shape of a dense Qwen3-Next or Qwen3.5 model from its config.json. It
// rejects models with experts, because the engine has only dense MLPs.
func ConfigFromHF(name string, configJSON []byte, storage Storage) (Config, error) {
	h := hfConfig{FullEvery: 4, Eps: 1e-6, Theta: 10000, PartialRotary: 0.25}
	if err := profile.DecodeConfig(configJSON, &h); err != nil {
		return Config{}, fmt.Errorf("config of %q: %v: %w", name, err, ErrInvalid)
	}
	refuse := func(what string) (Config, error) {
		return Config{}, fmt.Errorf("config of %q: %s: %w", name, what, ErrInvalid)
	}
	if len(h.Nested) > 0 {
		return ConfigFromHF(name, h.Nested, storage)
	}
	switch {
	case h.ModelType != "qwen3_next" && h.ModelType != "qwen3_5_text":
		return refuse(fmt.Sprintf("model type %q, only dense qwen3_next and qwen3_5_text are read", h.ModelType))
	case h.Experts > 0:
		return refuse(fmt.Sprintf("%d experts, only dense MLPs are computed", h.Experts))
	case h.Bias:
		return refuse("attention_bias is not supported")
	case h.Rope.Type != "" && h.Rope.Type != "default":
		return refuse(fmt.Sprintf("rope type %q is not supported", h.Rope.Type))
	case h.Layers < 1 || h.Layers > 1024 || h.FullEvery < 1:
		return refuse(fmt.Sprintf("%d layers, every %d full", h.Layers, h.FullEvery))
	}
	if h.Rope.Theta != 0 {
		h.Theta = h.Rope.Theta
	}
	if h.Rope.Partial != 0 {
		h.PartialRotary = h.Rope.Partial
	}
	c := Config{
		Name: name, Vocab: h.Vocab, Dim: h.Dim, Hidden: h.Hidden, Eps: h.Eps, Storage: storage,
		Linear: LinearConfig{
			Family: profile.GDN, KeyHeads: h.KeyHeads, ValueHeads: h.ValueHeads,
			KeyDim: h.KeyDim, ValueDim: h.ValueDim, Kernel: h.Kernel, Separate: h.ModelType == "qwen3_5_text",
		},
		Attention: AttentionConfig{
			Heads: h.Heads, KVHeads: h.KVHeads, HeadDim: h.HeadDim, Gate: true,
			Rope: profile.Rope{Dims: int(float64(h.HeadDim) * h.PartialRotary), Theta: h.Theta},
		},
	}
	for i := range h.Layers {
		kind := profile.KindLinear
		if len(h.LayerTypes) == 0 && (i+1)%h.FullEvery == 0 || i < len(h.LayerTypes) && h.LayerTypes[i] == "full_attention" {
			kind = profile.KindFull
		}
		c.Layers = append(c.Layers, kind)
	}
	if len(h.LayerTypes) != 0 && len(h.LayerTypes) != h.Layers {
		return refuse(fmt.Sprintf("%d layer types for %d layers", len(h.LayerTypes), h.Layers))
	}
	return c, c.Validate()
}
