package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// One linear layer in two: 2 heads of 4 by 8, and 1 key head of 16.
const smallConfig = `{"model_type": "qwen3_next", "num_hidden_layers": 4, "hidden_size": 64, "head_dim": 16,
	"num_attention_heads": 4, "num_key_value_heads": 1, "full_attention_interval": 2, "partial_rotary_factor": 0.5, "rope_theta": 10000,
	"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4}`

func TestProfilePrintsSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(smallConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := cli(t, "profile", path, "-tokens", "10", "--json")
	var r map[string]any
	if err := json.Unmarshal([]byte(out), &r); code != exitOK || err != nil {
		t.Fatalf("exit %d, %v: %s%s", code, err, out, errs)
	}
	// T: 2 layers, 2 heads, 4x4 fp16; S: 2 layers, 2 heads, 4x8 fp32; rows: 2 layers, K and V of 16 bf16.
	for name, want := range map[string]float64{"transition_bytes": 128, "state_bytes": 512, "kv_bytes_per_token": 128, "kv_bytes": 1280} {
		if r[name] != want {
			t.Errorf("%s: %v, want %v", name, r[name], want)
		}
	}
	if r["fingerprint"] != "" {
		t.Errorf("a fingerprint of weights nobody named: %v", r["fingerprint"])
	}
	code, out, _ = cli(t, "profile", path)
	if code != exitOK || !strings.Contains(out, "break-even") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestProfileRefusesByName(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte(`{"model_type": "nobody_knows"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	rows := []struct {
		args []string
		code int
		text string
	}{
		{[]string{"profile"}, exitUsage, "want one config.json"},
		{[]string{"profile", bad, "-kv-dtype", "int4"}, exitUsage, "int4"},
		{[]string{"profile", bad, "-tokens", "0"}, exitUsage, "-tokens 0"},
		{[]string{"profile", bad}, exitFailed, "nobody_knows"},
		{[]string{"profile", filepath.Join(dir, "absent")}, exitFailed, "absent"},
	}
	for _, r := range rows {
		if code, _, errs := cli(t, r.args...); code != r.code || !strings.Contains(errs, r.text) {
			t.Errorf("%q: exit %d, %s", r.args, code, errs)
		}
	}
}
