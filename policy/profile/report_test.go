package profile

import (
	"strings"
	"testing"
)

// A report says only what applies to a model: sizes in 8 bits where something is packed,
// a break-even where there are keys and values as well as states.
func TestAReportLeavesOutWhatDoesNotApply(t *testing.T) {
	for name, test := range map[string]struct {
		config            string
		packed, breakEven bool
	}{
		"dense states and attention": {`{"model_type":"qwen3_next","num_hidden_layers":4,"hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
			"linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":16,"linear_value_head_dim":16,"linear_conv_kernel_dim":4,"full_attention_interval":4,"rope_theta":10000,"partial_rotary_factor":0.25}`, true, true},
		"attention alone":       {`{"model_type":"llama","num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,"rope_theta":10000}`, false, false},
		"diagonal states alone": {`{"model_type":"mamba","num_hidden_layers":2,"hidden_size":64,"intermediate_size":128,"state_size":16,"conv_kernel":4}`, false, false},
	} {
		id, err := FromConfig([]byte(test.config), ConfigOptions{Weights: [32]byte{1}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p, err := New(id)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var b strings.Builder
		if err := p.Report(500).WriteText(&b); err != nil {
			t.Error(err)
		}
		if got := strings.Contains(b.String(), "in 8 bits"); got != test.packed {
			t.Errorf("%s: mentions 8 bits: %v, want %v\n%s", name, got, test.packed, b.String())
		}
		if got := strings.Contains(b.String(), "break-even"); got != test.breakEven {
			t.Errorf("%s: mentions a break-even: %v, want %v\n%s", name, got, test.breakEven, b.String())
		}
	}
}

// Adapters refuse sliding windows, and sizes alone would promise reuse.
func TestAReportWarnsOfWindows(t *testing.T) {
	for name, warns := range map[string]bool{"mistral-7b-v0.1": true, "llama-3.1-8b": false} {
		var b strings.Builder
		must(t, loadConfig(t, name).Report(500).WriteText(&b))
		if got := strings.Contains(b.String(), "a sliding window"); got != warns {
			t.Errorf("%s: warns of a window: %v\n%s", name, got, b.String())
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
