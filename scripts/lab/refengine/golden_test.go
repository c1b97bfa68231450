package refengine

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// golden is a model that another program wrote, and the logits that it computed.
type golden struct {
	config, weights []byte
	Tokens          []uint32  `json:"tokens"`
	Logits          []float64 `json:"logits"`
}

func readGolden(t *testing.T, name string) (g golden) {
	t.Helper()
	read := func(file string) []byte {
		b, err := os.ReadFile(filepath.Join("testdata", name, file))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	g.config, g.weights = read("config.json"), read("model.safetensors")
	if err := json.Unmarshal(read("golden.json"), &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// offBy computes the golden's logits in F and says how far off they are. No logit
// may be further off than any engine's from the library.
func offBy[F Float](t *testing.T, g golden, config []byte) float64 {
	t.Helper()
	c, err := modelfile.ConfigFromHF("golden", config, modelfile.Exact())
	if err != nil {
		t.Fatal(err)
	}
	w, err := modelfile.Load(c, g.weights)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New[F](w)
	if err != nil {
		t.Fatal(err)
	}
	got := convert64(prefill(t, m, m.NewState(), g.Tokens))
	for i, x := range got {
		if d := math.Abs(x - g.Logits[i]); d > 1e-4 {
			t.Fatalf("logit %d is %v, want %v", i, x, g.Logits[i])
		}
	}
	return distance(got, g.Logits)
}

func convert64[F Float](x []F) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// A model written and computed by another program, one token after another in
// float64 (scripts/qwen3next): names, row order, both norms, the convolution,
// the recurrence, rope and gates must all be as there.
func TestQwen3NextAgreesWithASecondImplementation(t *testing.T) {
	g := readGolden(t, "qwen3next")
	if d := offBy[float64](t, g, g.config); d > 1e-12 {
		t.Errorf("float64 logits are %.2g off", d)
	}
	if d := offBy[float32](t, g, g.config); d > 1e-5 {
		t.Errorf("float32 logits are %.2g off", d)
	}
}

// A Qwen3.5 model as transformers computes it in float32 (scripts/goldens-hf):
// input projections of their own, embeddings that are also the head.
func TestQwen35AgreesWithTransformers(t *testing.T) {
	g := readGolden(t, "qwen35")
	if d := offBy[float64](t, g, g.config); d > 1e-5 {
		t.Errorf("float64 logits are %.2g off", d)
	}
	if d := offBy[float32](t, g, g.config); d > 1e-5 {
		t.Errorf("float32 logits are %.2g off", d)
	}
	nested := []byte(`{"model_type": "qwen3_5", "text_config": ` + string(g.config) + `}`)
	if d := offBy[float32](t, g, nested); d > 1e-5 {
		t.Errorf("with a nested configuration the logits are %.2g off", d)
	}
}

func TestSeparateProjectionsAreOfGDNOnly(t *testing.T) {
	c := tiny(profile.DeltaNet, profile.Rope{}, "LF")
	c.Linear.Separate = true
	err := c.Validate()
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "GDN only") {
		t.Error(err)
	}
}
