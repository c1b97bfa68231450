package refengine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// A model written and computed by another program, one token after another in
// float64 (scripts/qwen3next): names, row order, both norms, the convolution,
// the recurrence, rope and gates must all be as there.
func TestQwen3NextAgreesWithASecondImplementation(t *testing.T) {
	dir := filepath.Join("testdata", "qwen3next")
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var golden struct {
		Tokens []uint32  `json:"tokens"`
		Logits []float64 `json:"logits"`
	}
	if err := json.Unmarshal(read("golden.json"), &golden); err != nil {
		t.Fatal(err)
	}
	c, err := ConfigFromHF("golden", read("config.json"), Exact())
	if err != nil {
		t.Fatal(err)
	}
	w, err := Load(c, read("model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	double, err := New[float64](w)
	if err != nil {
		t.Fatal(err)
	}
	if d := distance(prefill(t, double, double.NewState(), golden.Tokens), golden.Logits); d > 1e-12 {
		t.Errorf("float64 logits are %.2g off", d)
	}
	single, err := New[float32](w)
	if err != nil {
		t.Fatal(err)
	}
	if d := distance(convert[float64](prefill(t, single, single.NewState(), golden.Tokens)), golden.Logits); d > 1e-5 {
		t.Errorf("float32 logits are %.2g off", d)
	}
}
