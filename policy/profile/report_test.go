package profile

import (
	"strings"
	"testing"
)

// A report says only what applies to a model: sizes in 8 bits where something is packed,
// and a warning of windows, as adapters refuse them and sizes alone would promise reuse.
func TestAReportLeavesOutWhatDoesNotApply(t *testing.T) {
	for name, want := range map[string]struct{ packed, window bool }{
		"qwen3-next-80b-a3b": {packed: true},
		"mamba-130m":         {},
		"llama-3.1-8b":       {},
		"mistral-7b-v0.1":    {window: true},
	} {
		var b strings.Builder
		must(t, loadConfig(t, name).Report(500).WriteText(&b))
		if got := strings.Contains(b.String(), "in 8 bits"); got != want.packed {
			t.Errorf("%s: mentions 8 bits: %v, want %v\n%s", name, got, want.packed, &b)
		}
		if got := strings.Contains(b.String(), "a sliding window"); got != want.window {
			t.Errorf("%s: warns of a window: %v, want %v\n%s", name, got, want.window, &b)
		}
	}
}

// Each fault of a config is reported once.
func TestAMissingNumberOfLayersIsReportedOnce(t *testing.T) {
	for _, config := range []string{`{"model_type":"llama"}`, `{"model_type":"llama","num_hidden_layers":"two"}`, `{"model_type":"llama","num_hidden_layers":0}`} {
		_, err := FromConfig([]byte(config), ConfigOptions{})
		if err == nil || strings.Count(err.Error(), "num_hidden_layers") != 1 {
			t.Errorf("%s: %v", config, err)
		}
	}
}
