package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// One linear layer in two: 2 heads of 4 by 8, and 1 key head of 16.
const smallConfig = `{"model_type": "qwen3_next", "num_hidden_layers": 4, "hidden_size": 64, "head_dim": 16,
	"num_attention_heads": 4, "num_key_value_heads": 1, "full_attention_interval": 2, "partial_rotary_factor": 0.5, "rope_theta": 10000,
	"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4}`

func TestProfilePrintsSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(path, []byte(smallConfig), 0o600))
	code, out, errs := ctl(t, "profile", path, "-tokens", "10", "--json")
	var r map[string]any
	if err := json.Unmarshal([]byte(out), &r); code != cli.ExitOK || err != nil {
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
	code, out, _ = ctl(t, "profile", path)
	if code != cli.ExitOK || !strings.Contains(out, "break-even") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// Python writes infinities as words that JSON does not have.
func TestProfileReadsWordsOfPython(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	config := strings.Replace(smallConfig, "{", `{"time_step_limit": [0.0, Infinity], "initializer_range": NaN, `, 1)
	must(t, os.WriteFile(path, []byte(config), 0o600))
	if code, out, errs := ctl(t, "profile", path); code != cli.ExitOK || !strings.Contains(out, "break-even") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}

func TestProfilePrintsWhatItAssumes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	config := strings.Replace(smallConfig, `"num_key_value_heads": 1`, `"num_key_value_head": 1`, 1)
	must(t, os.WriteFile(path, []byte(config), 0o600))
	for _, form := range []string{"table", "json"} {
		code, out, errs := ctl(t, "profile", path, "-o", form)
		if code != cli.ExitOK || strings.Count(out, "num_key_value_head is ignored") != 1 || strings.Count(out, "defaults") != 1 {
			t.Errorf("%s: exit %d: %s%s", form, code, out, errs)
		}
	}
}

func TestProfileRefusesByName(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	must(t, os.WriteFile(bad, []byte(`{"model_type": "nobody_knows"}`), 0o600))
	empty, small := filepath.Join(dir, "empty.json"), filepath.Join(dir, "small.json")
	must(t, os.WriteFile(empty, []byte("\n"), 0o600))
	must(t, os.WriteFile(small, []byte(smallConfig), 0o600))
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	rows := []struct {
		args []string
		code int
		text string
	}{
		{[]string{"profile"}, cli.ExitUsage, "want one config.json"},
		{[]string{"profile", bad, "-kv-dtype", "int4"}, cli.ExitUsage, "int4"},
		{[]string{"profile", bad, "-tokens", "0"}, cli.ExitUsage, "-tokens 0"},
		{[]string{"profile", bad, "-tp", "0"}, cli.ExitUsage, "--tp 0 is not above 0"},
		{[]string{"profile", bad}, cli.ExitFailed, "nobody_knows"},
		{[]string{"profile", write("list", "[1]")}, cli.ExitFailed, "not a JSON object"},
		{[]string{"profile", write("words", "surely not")}, cli.ExitFailed, "not JSON"},
		{[]string{"profile", dir}, cli.ExitFailed, "read " + dir + ": is a directory"},
		{[]string{"profile", filepath.Join(dir, "absent")}, cli.ExitFailed, "absent"},
		{[]string{"profile", empty}, cli.ExitFailed, "empty.json is empty, want a model's config.json"},
		{[]string{"profile", small, "-tp", "3"}, cli.ExitFailed, "tp size: 3 ranks cannot share 2 value heads, "},
	}
	for _, r := range rows {
		if code, _, errs := ctl(t, r.args...); code != r.code || !strings.Contains(errs, r.text) {
			t.Errorf("%q: exit %d, %s", r.args, code, errs)
		}
	}
}

func TestProfileIsSwitchedOffAndOn(t *testing.T) {
	d := daemonForTest(t)
	c, err := connector.Open(connector.Options{Socket: d.Socket, Name: "canary test", Timeouts: patient})
	must(t, err)
	defer c.Close()
	p, err := profile.New(profile.Identity{
		Model: "tiny", Weights: [32]byte{1}, Tokenizer: "bytes", TPSize: 1,
		Layers: []profile.Layer{{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: profile.GDN, KeyHeads: 1, ValueHeads: 1, KeyDim: 8, ValueDim: 8, StateDType: profile.F32, TransitionDType: profile.F16}}},
	})
	must(t, err)
	m, err := c.Register(p, connector.Binding{})
	must(t, err)
	must(t, m.WaitReady(t.Context()))
	// Nothing was reported yet: a dry run says what it is about all the same.
	fingerprint := fmt.Sprintf("%x", p.Fingerprint())
	out, _ := splicectl(t, cli.ExitOK, "profile", "off", fingerprint[:12], "-dry-run", "-tenant", "default", "-admin", d.Admin)
	if !strings.Contains(out, "nothing was changed") || !strings.Contains(out, fingerprint[:12]+" of tenant default, on which no engine has reported yet") {
		t.Errorf("%s", out)
	}
	if off, err := m.Report(t.Context(), &connector.Report{Compared: 8, Failed: 2, Worst: 0.5, Bound: 0.1, Off: true, Text: "too far"}); err != nil || !off {
		t.Fatal(off, err)
	}
	out, _ = splicectl(t, cli.ExitOK, "ls", "canaries", "-admin", d.Admin)
	if !strings.Contains(out, "off for") || !strings.Contains(out, "too far") {
		t.Errorf("%s", out)
	}
	out, _ = splicectl(t, cli.ExitOK, "doctor", "-socket", d.Socket)
	if !strings.Contains(out, "daemon: splicing") || !strings.Contains(out, "too far") {
		t.Errorf("%s", out)
	}
	digits := fmt.Sprintf("%x", p.Fingerprint())[:12]
	splicectl(t, cli.ExitFailed, "profile", "on", "ffff"+digits, "-admin", d.Admin)
	out, _ = splicectl(t, cli.ExitOK, "profile", "on", digits, "-dry-run", "-admin", d.Admin)
	if !strings.Contains(out, "nothing was changed") || !strings.Contains(out, "off for") {
		t.Errorf("%s", out)
	}
	splicectl(t, cli.ExitOK, "profile", "on", digits, "-admin", d.Admin)
	var found connector.Found
	if err := m.Match(t.Context(), &connector.MatchQuery{Keys: make([]profile.SegmentKey, 1)}, &found); err != nil || found.Segments[0].Reason == wire.ReasonOff {
		t.Fatalf("%+v, %v", found, err)
	}
	out, _ = splicectl(t, cli.ExitOK, "profile", "off", digits, "-why", "maintenance", "-admin", d.Admin)
	if !strings.Contains(out, "maintenance") {
		t.Errorf("%s", out)
	}
	if err := m.Match(t.Context(), &connector.MatchQuery{Keys: make([]profile.SegmentKey, 1)}, &found); err != nil || found.Segments[0].Reason != wire.ReasonOff {
		t.Fatalf("%+v, %v", found, err)
	}
}
