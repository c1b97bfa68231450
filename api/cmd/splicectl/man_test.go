package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/clitest"
	"github.com/spliced-kv/spliced/policy/goldentest"
)

//go:generate go test . -run Reference -update

// reference is docs/splicectl.md: every command, on one page.
func reference() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# splicectl\n\nEvery command with its flags. This page is written by `make generate`; `splicectl COMMAND -h` says the same, and `make man`\n" +
		"writes manual pages. `splicectl completion bash`, `zsh` and `fish` print what completes commands, flags and names of daemons.\n")
	err := clitest.Reference(&b, program(), "splicelab.md")
	return b.Bytes(), err
}

func TestTheReferenceTellsOfEveryCommand(t *testing.T) {
	const path = "../../../docs/splicectl.md"
	made, err := reference()
	must(t, err)
	text := string(goldentest.File(t, path, made, "the commands differ; run make generate"))
	for _, c := range commands() {
		if heading := "\n## splicectl " + c.Name + "\n"; strings.Contains(text, heading) == c.Hidden {
			t.Errorf("%q is there: %v", heading, !c.Hidden)
		}
		for _, sub := range c.Subs {
			if !strings.Contains(text, "\n## splicectl "+c.Name+" "+sub.Name+"\n") {
				t.Errorf("%s %s is not there", c.Name, sub.Name)
			}
		}
	}
	// Links lead somewhere.
	for _, part := range strings.Split(text, "](#")[1:] {
		anchor, _, _ := strings.Cut(part, ")")
		if !strings.Contains(text, "\n## "+strings.ReplaceAll(anchor, "-", " ")+"\n") && !strings.Contains(text, "\n## "+strings.Replace(anchor, "-", " ", 1)+"\n") {
			t.Errorf("no heading for #%s", anchor)
		}
	}
}

func TestEveryCommandHasAManualPage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if code, _, errs := ctl(t, "man", dir); code != cli.ExitOK {
		t.Fatalf("exit %d, %s", code, errs)
	}
	for _, c := range commands() {
		text, err := os.ReadFile(filepath.Join(dir, "splicectl-"+c.Name+".1"))
		if c.Hidden || c.Verbatim {
			if err == nil {
				t.Errorf("%s has a page", c.Name)
			}
			continue
		}
		if err != nil || !strings.Contains(string(text), ".SH EXAMPLE") {
			t.Errorf("%s: %v\n%s", c.Name, err, text)
		}
	}
}

func TestShellsCompleteWhatThereIs(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, out, errs := ctl(t, "completion", shell); code != cli.ExitOK || errs != "" || !strings.Contains(out, "splicectl") {
			t.Errorf("%s: exit %d, %s", shell, code, errs)
		}
	}
	for _, r := range []struct {
		args []string
		want string
	}{
		{[]string{"st"}, "stats"},
		{[]string{"ls", ""}, "segments\ncheckpoints\nrequests\ntenants\nleases"},
		{[]string{"ls", "pools", "--sort", ""}, "pool\ntier\nused"},
		{[]string{"usage", "--sort", ""}, "tenant\nmodel"},
		{[]string{"ls", "-o", ""}, "table\nwide\njson\nyaml"},
		{[]string{"stats", "-o", ""}, "table\njson\nyaml"},
		{[]string{"events", "--kind", ""}, "published\nevicted"},
		{[]string{"rm", ""}, "segments\ncheckpoints"},
		{[]string{"config", ""}, "get"},
		{[]string{"inspect", "--what", ""}, "admitted\nrefused"},
		{[]string{"ls", "--all-c"}, "--all-contexts"},
	} {
		code, out, _ := ctl(t, append([]string{"__completeNoDesc"}, r.args...)...)
		if code != cli.ExitOK || !strings.HasPrefix(out, r.want) {
			t.Errorf("%q: exit %d, %q, want %q", r.args, code, out, r.want)
		}
	}
}

func TestWhatWasMeantIsSuggested(t *testing.T) {
	for line, want := range map[string]string{"stat": "did you mean stats?", "insect": "inspect", "config gt": "get"} {
		if code, _, errs := ctl(t, strings.Fields(line)...); code != cli.ExitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, %s", line, code, errs)
		}
	}
}
