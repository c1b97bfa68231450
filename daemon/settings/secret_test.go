package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Nothing but a file is waited for, and what everybody can read is said.
func TestSecretsAreFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		must(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	write("good", " sesame \n", 0o640)
	write("open", "sesame", 0o644)
	write("empty", " \n", 0o600)
	write("large", strings.Repeat("x", maxSecret+1), 0o600)
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	if err := os.Symlink("good", filepath.Join(dir, "link")); err != nil { // as in a volume of Kubernetes
		t.Fatal(err)
	}
	for name, want := range map[string]string{"good": "", "link": "", "open": "is world-readable: mode 0644"} {
		secret, warning, err := ReadSecret(filepath.Join(dir, name))
		if err != nil || secret != "sesame" || (warning == "") != (want == "") || !strings.Contains(warning, want) {
			t.Errorf("%s: %q, warning %q, %v", name, secret, warning, err)
		}
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "empty"): "is empty", filepath.Join(dir, "large"): "more than 8192 bytes", filepath.Join(dir, "fifo"): "is not a regular file",
		dir: "is not a regular file", "/dev/zero": "is not a regular file", filepath.Join(dir, "none"): "no such file",
	} {
		if secret, _, err := ReadSecret(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %q", path, secret, err, want)
		}
	}
}

func TestNamesThatNobodyCanBeShownAreRefused(t *testing.T) {
	for what, change := range map[string]func(*Config){
		"socket": func(c *Config) { c.Socket = "/tmp/a\x00b" }, "node": func(c *Config) { c.Node = "\x1b[2J" }, "disk": func(c *Config) { c.Disk = "/a\xff" },
		"tenants[0]: name": func(c *Config) { c.Tenants[0].Name = "line\nbreak" },
	} {
		c := Default()
		c.Resolve(bigMachine)
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), what+": ") || !strings.Contains(err.Error(), "control characters") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestATokenThatEverybodyCanReadIsWarnedOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(path, []byte("sesame"), 0o600))
	for mode, warnings := range map[os.FileMode]int{0o600: 0, 0o604: 1} {
		must(t, os.Chmod(path, mode))
		c, run, err := Load(from("tenants: [{name: a, token_file: "+path+"}]", nil, "-config", "config.yaml"))
		if err != nil || len(run.Warnings) != warnings || c.Tenants[0].Token != "sesame" {
			t.Errorf("mode %v: token %q, warnings %q, %v", mode, c.Tenants[0].Token, run.Warnings, err)
		}
	}
}

func TestAConfigurationHasAnEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(path, []byte("arena: 1GiB\n"), 0o600))
	read := func(path string) error {
		s := ProcessSources()
		s.Args, s.Environ = []string{"-config", path}, nil
		_, err := valid(s)
		return err
	}
	if err := read(path); err != nil {
		t.Error(err)
	}
	if err := read("/dev/zero"); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "more than 4194304 bytes") {
		t.Errorf("a device without an end: %v", err)
	}
}
