package profile

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestReadConfigNotesDefaultsAndMisspeltFields(t *testing.T) {
	for _, c := range []struct {
		name, config string
		defaults     string // as printed
		warned       []string
	}{
		{"all given", `{"model_type":"llama","num_hidden_layers":2,"head_dim":64,"num_attention_heads":8,"num_key_value_heads":2,"rope_theta":5e5,"rotary_dim":32,"partial_rotary_factor":1}`, "", nil},
		{"computed and assumed", `{"model_type":"llama","num_hidden_layers":2,"hidden_size":512,"num_attention_heads":8}`, "head_dim 64, num_key_value_heads 8, partial_rotary_factor 1, rope_theta 10000", nil},
		{"of the class", `{"model_type":"qwen3","num_hidden_layers":2,"num_attention_heads":64,"rope_parameters":{"rope_theta":1e6}}`, "head_dim 128, num_key_value_heads 32, partial_rotary_factor 1", nil},
		{"null", `{"model_type":"llama","num_hidden_layers":2,"head_dim":64,"num_attention_heads":8,"num_key_value_heads":null,"rope_theta":1e6,"partial_rotary_factor":1}`, "num_key_value_heads 8", nil},
		{"inside", `{"model_type":"minicpmv4_6","text_config":{"model_type":"llama","num_hidden_layers":2,"head_dim":64,"num_attention_heads":8,"num_key_value_heads":2,"partial_rotary_factor":1}}`, "text_config.rope_theta 10000", nil},
		{"misspelt", `{"model_type":"qwen2","num_hidden_layers":2,"hed_dim":64,"hidden_size":512,"num_attention_heads":32,"num_key_value_head":2,"sliding_windows":64,"rope_parameters":{"rope_thetta":1e6,"partial_rotary_factor":1}}`,
			"head_dim 16, num_key_value_heads 32, rope_theta 10000", []string{"hed_dim", "num_key_value_head", "rope_parameters.rope_thetta", "sliding_windows"}},
		{"similar, and something else", `{"model_type":"llama","num_hidden_layers":2,"hidden_size":512,"num_attention_heads":8,"num_key_value_heads":8,"dtype":"bfloat16","v_head_dim":64,"rope_theta":1e4,"partial_rotary_factor":1}`, "head_dim 64", nil},
	} {
		_, notes, err := ReadConfig([]byte(c.config), ConfigOptions{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var warned []string
		for _, w := range notes.Warnings {
			name, _, _ := strings.Cut(w, " ")
			warned = append(warned, name)
		}
		if got := notes.assumed(); got != c.defaults || !slices.Equal(warned, c.warned) {
			t.Errorf("%s: defaults %s, want %s; warnings %q, want of %q", c.name, got, c.defaults, notes.Warnings, c.warned)
		}
	}
}

// The names of no published file look misspelt, and a required field is never assumed.
func TestPublishedConfigsGiveNoWarnings(t *testing.T) {
	files, err := filepath.Glob("testdata/config/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no configs: ", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		_, notes, err := ReadConfig(text, ConfigOptions{Slopes: flatSlopes})
		if err != nil || len(notes.Warnings) > 0 || slices.Contains(slices.Collect(maps.Keys(notes.Defaults)), "num_hidden_layers") {
			t.Errorf("%s: %v, %+v", file, err, notes)
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"head_dim", "head_dim", 0}, {"hed_dim", "head_dim", 1}, {"head_dmi", "head_dim", 2}, {"kitten", "sitting", 3}} {
		if got := EditDistance(c.a, c.b); got != c.want {
			t.Errorf("%q, %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
