package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/doctor"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// patient is for calls that must succeed on a busy machine.
var patient = connector.Timeouts{Lookup: time.Minute, Transfer: 10 * time.Second, Attach: 10 * time.Second}

var binDir string // of programs built for these tests; removed by TestMain

func TestMain(m *testing.M) {
	code := m.Run()
	if binDir != "" {
		_ = os.RemoveAll(binDir) // in the temporary directory anyway
	}
	os.Exit(code)
}

// built compiles both programs once.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "splicectl-test-")
	if err != nil {
		return "", err
	}
	binDir = dir
	cmd := exec.Command("go", "build", "-o", dir, "../../../daemon/cmd/spliced", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return dir, nil
})

// splicectl runs the built program.
func splicectl(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	dir, err := built()
	must(t, err)
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "splicectl"), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		t.Fatalf("splicectl %q: exit %d, want %d\n%s%s", args, got, want, &out, &errs)
	}
	return out.String(), errs.String()
}

func daemonForTest(t *testing.T, args ...string) *child.Daemon {
	t.Helper()
	return startChild(t, child.Options{Args: append([]string{"-arena", "64MiB", "-private", "16MiB"}, args...)})
}

func TestDoctorProvesARoundTripOnItsOwnDaemon(t *testing.T) {
	out, _ := splicectl(t, cli.ExitOK, "doctor", "--self", "--json")
	var d diagnosis
	must(t, json.Unmarshal([]byte(out), &d))
	states := map[string]string{}
	for _, c := range d.Checks {
		states[c.Name] = c.State
		if c.State != doctor.OK && c.Remedy == "" {
			t.Errorf("%s is %s without a remedy", c.Name, c.State)
		}
	}
	for _, name := range []string{"memfd seals", "socket", "peer credentials", "hello", "pools", "slots", "staging", "layout", "round trip", "clean-up", "admin"} {
		if states[name] != doctor.OK {
			t.Errorf("%s: %q", name, states[name])
		}
	}
}

func TestDoctorNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for socket, want := range map[string]string{filepath.Join(dir, "absent"): "does not exist", file: "is not a socket"} {
		out, _ := splicectl(t, cli.ExitFailed, "doctor", "-socket", socket)
		if !strings.Contains(out, want) || !strings.Contains(out, "→") {
			t.Errorf("%s: %q or a remedy is missing in:\n%s", socket, want, out)
		}
	}
}

func TestDoctorChecksWithATenantOfTheNode(t *testing.T) {
	dir := t.TempDir()
	token, config := filepath.Join(dir, "token"), filepath.Join(dir, "config.yaml")
	must(t, os.WriteFile(token, []byte("secret of team-a\n"), 0o600))
	must(t, os.WriteFile(config, []byte("tenants:\n- name: team-a\n  token_file: "+token+"\n"), 0o600))
	d := daemonForTest(t, "-config", config, "-max-connections", "1")
	if out, _ := splicectl(t, cli.ExitFailed, "doctor", "--socket", d.Socket); !strings.Contains(out, `tenant "default": unknown`) || !strings.Contains(out, "--tenant-token-file") {
		t.Errorf("without a tenant:\n%s", out)
	}
	nobodyConnected(t, d) // the one place is free again
	splicectl(t, cli.ExitOK, "doctor", "--socket", d.Socket, "--tenant", "team-a", "--tenant-token-file", token)
}

// nobodyConnected waits until the daemon has noticed that all clients are gone.
func nobodyConnected(t *testing.T, d *child.Daemon) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		connections, err := d.API().Connections(t.Context())
		must(t, err)
		if len(connections) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("connections: %+v", connections)
		}
	}
}

func TestDoctorLeavesNothingBehindInALivingDaemon(t *testing.T) {
	d := daemonForTest(t)
	splicectl(t, cli.ExitOK, "doctor", "-socket", d.Socket)
	nobodyConnected(t, d)
	pools, err := d.API().Pools(t.Context())
	must(t, err)
	for _, p := range pools {
		if p.UsedBytes != 0 || p.Objects != 0 || p.LeasedBytes != 0 || p.PendingBytes != 0 {
			t.Errorf("after doctor: %+v", p)
		}
	}
}

func TestListingsOfALivingDaemon(t *testing.T) {
	d := daemonForTest(t)
	for _, kind := range []string{"segments", "checkpoints", "profiles", "pools", "connections"} {
		out, _ := splicectl(t, cli.ExitOK, "ls", kind, "--json", "-admin", d.Admin)
		var v struct {
			Items []any
			More  bool
		}
		if err := json.Unmarshal([]byte(out), &v); err != nil || v.Items == nil {
			t.Errorf("%s: %v in %s", kind, err, out)
		}
		splicectl(t, cli.ExitOK, "ls", kind, "-admin", d.Admin)
	}
	out, _ := splicectl(t, cli.ExitOK, "stats", "--json", "-admin", d.Admin)
	var s nodeStats
	if err := json.Unmarshal([]byte(out), &s); err != nil || !s.Status.Ready || len(s.Pools) < 2 || len(s.Counters) == 0 {
		t.Errorf("stats: %v %s", err, out)
	}
	_, errs := splicectl(t, cli.ExitFailed, "inspect", "ab", "-admin", d.Admin)
	if !strings.Contains(errs, "no segment begins with") {
		t.Errorf("inspect: %s", errs)
	}
	file := filepath.Join(t.TempDir(), "tokens")
	must(t, os.WriteFile(file, []byte("1 2 3"), 0o600))
	if _, errs = splicectl(t, cli.ExitFailed, "locate", "-admin", d.Admin, "-model", "nobody's", file); !strings.Contains(errs, "no engine has registered") {
		t.Errorf("locate: %s", errs)
	}
	if ready, err := d.API().Ready(t.Context()); err != nil || ready.Status == api.HealthUnavailable {
		t.Errorf("ready: %+v, %v", ready, err)
	}
}

// publish puts one segment of a small model and answers its key.
func publish(t *testing.T, socket string) api.Digest {
	t.Helper()
	client, m := engine(t, socket, "publisher", connector.Binding{Engine: "test 1"})
	defer client.Close()
	spec, tokens := profile.FirstSpec(3), []uint32{1, 2, 3}
	fill := func(_ profile.Part, _ int, _ int64, dst []byte) error { clear(dst); return nil }
	if _, err := m.Put(t.Context(), &connector.PutQuery{Spec: spec, Tokens: tokens, Source: connector.Source{Fill: fill}}); err != nil {
		t.Fatal(err)
	}
	key, ok := m.SegmentKey(spec, tokens)
	if !ok {
		t.Fatal("no salt")
	}
	return api.Digest(key)
}

func TestSegmentIsListedInspectedAndRemoved(t *testing.T) {
	d := daemonForTest(t)
	key := publish(t, d.Socket)
	out, _ := splicectl(t, cli.ExitOK, "ls", "-admin", d.Admin, "-long", "-tenant", "default")
	if !strings.Contains(out, key.String()) || !strings.Contains(out, "small") {
		t.Errorf("ls:\n%s", out)
	}
	for filter, want := range map[string]int{key.String()[:7]: 1, "": 1, flip(key).String()[:1]: 0} {
		out, _ := splicectl(t, cli.ExitOK, "ls", "--json", "-admin", d.Admin, "-key-prefix", filter)
		var v listed[api.Segment]
		if err := json.Unmarshal([]byte(out), &v); err != nil || len(v.Items) != want {
			t.Errorf("prefix %q: %d items, want %d (%v)", filter, len(v.Items), want, err)
		}
	}
	out, _ = splicectl(t, cli.ExitOK, "inspect", key.String()[:12], "--json", "-admin", d.Admin)
	var s api.SegmentDetail
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Key != key || s.Publisher != "publisher" || s.Tokens != 3 {
		t.Errorf("inspect: %v %s", err, out)
	}
	// Two linear layers with T, S and convolution tail, two of attention with K and V.
	if len(s.Parts) != 2*3+2*2 || s.State != "published" || s.Role != "first" || !slices.Equal(s.Tiers, []string{"dram"}) || s.Level != api.LevelMemory {
		t.Errorf("inspect: %d parts of %+v", len(s.Parts), s.Segment)
	}
	if out, _ = splicectl(t, cli.ExitOK, "inspect", key.String(), "-admin", d.Admin); !strings.Contains(out, "conv") {
		t.Errorf("inspect:\n%s", out)
	}
	if _, err := d.API().Remove(t.Context(), key, false); err != nil {
		t.Error(err)
	}
	splicectl(t, cli.ExitFailed, "inspect", key.String(), "-admin", d.Admin)
}

func flip(d api.Digest) api.Digest {
	d[0] ^= 0xff
	return d
}
