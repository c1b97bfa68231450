package events

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// engines is a Python that has vLLM, pyzmq and msgspec: SPLICED_ENGINES, or bin/engines.
func engines(t *testing.T) string {
	t.Helper()
	python := os.Getenv("SPLICED_ENGINES")
	if python == "" {
		python = filepath.Join("..", "..", "bin", "engines", "bin", "python")
	}
	if _, err := os.Stat(python); err != nil {
		t.Skipf("no engines: %v", err)
	}
	return python
}

// importTime is how long an import of vLLM may take: ten seconds by itself, minutes where
// other tests run.
const importTime = 8 * time.Minute

// What is published is what vLLM's own classes read, over libzmq.
func TestVLLMReadsWhatIsPublished(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts Python and vLLM")
	}
	python := engines(t)
	n := newNode(t, nil)
	pub, router := n.Addrs()
	const batches = 4
	cmd := exec.CommandContext(t.Context(), python, "testdata/subscriber.py", "tcp://"+pub.String(), "tcp://"+router.String(), "0", fmt.Sprint(batches))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // where it has not ended
		_ = cmd.Wait()
	}()
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	within := func(limit time.Duration) string {
		t.Helper()
		select {
		case l, ok := <-lines:
			if !ok {
				t.Fatal("the subscriber has ended")
			}
			return l
		case <-time.After(limit):
			t.Fatal("the subscriber says nothing")
		}
		return ""
	}
	line := func() string { t.Helper(); return within(3 * patience) }
	first := within(importTime)
	if why, missing := strings.CutPrefix(first, "missing "); missing {
		t.Skipf("no vLLM, pyzmq or msgspec in %s: %s", python, why)
	}
	if first != "ready" {
		t.Fatal(first)
	}
	eventually(t, "it has subscribed", func() bool { return n.subscriptions() == 1 })
	ids := make([]uint32, 40)
	for i := range ids {
		ids[i] = uint32(i)
	}
	var got []string
	live := func(events int) {
		for range events {
			got = append(got, strings.TrimPrefix(line(), "live "+theTopic+" 0 "))
		}
	}
	exact := n.checkpoint(tier.Exact, ids[:16])
	n.serve(ids, 16, 32)
	n.set.Add(exact)
	live(2)
	n.set.Add(n.checkpoint(tier.Spliced, ids[:32]))
	live(2)
	n.set.Remove(exact)
	live(1)
	n.set.Remove(n.checkpoint(tier.Spliced, ids[:32]))
	live(2)
	want := []string{
		"stored 0 full_attention CPU parent=False blocks=4 ids=120", "stored 1 mamba CPU parent=True blocks=1 ids=54",
		"stored 0 full_attention CPU parent=True blocks=4 ids=376", "stored 1 mamba CPU parent=True blocks=1 ids=118",
		"removed 1 CPU blocks=1", "removed 1 CPU blocks=1", "removed 0 CPU blocks=8",
	}
	if !slices.Equal(got, want) {
		t.Errorf("vLLM reads\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if l := line(); l != "replayed to REQ "+theTopic+" 0 cleared" {
		t.Errorf("a REQ socket is sent %q", l)
	}
	got = nil
	for l := line(); l != "end"; l = line() {
		got = append(got, strings.TrimPrefix(l, "replayed "+theTopic+" 0 "))
	}
	if want = append([]string{"cleared", "cleared"}, want...); !slices.Equal(got, want) { // of the answer, and of the start
		t.Errorf("replayed\n%s", strings.Join(got, "\n"))
	}
}
