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
	const messages = 1 + 4 // the clear of the subscription
	lines := printed(t, python, "testdata/subscriber.py", "tcp://"+pub.String(), "tcp://"+router.String(), fmt.Sprint(messages))
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
	live(1)
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
	if !slices.Equal(got, append([]string{"cleared"}, want...)) {
		t.Errorf("vLLM reads\n%s\nwant a clear and\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if l := line(); l != "replayed to REQ "+theTopic+" 0 "+want[0] {
		t.Errorf("a REQ socket is sent %q", l)
	}
	if l := line(); l != "replayed to REQ "+theTopic+" 0 "+want[1] {
		t.Errorf("a REQ socket is sent %q", l)
	}
	got = nil
	for l := line(); l != "end"; l = line() {
		got = append(got, strings.TrimPrefix(l, "replayed "+theTopic+" 0 "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("replayed\n%s", strings.Join(got, "\n"))
	}
}

// printed starts a script that ends with the test, and returns its lines.
func printed(t *testing.T, python string, args ...string) <-chan string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // where it has not ended
		_ = cmd.Wait()
	})
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}

// A subscriber of libzmq that stays over a restart believes what the new run holds, and
// nothing else.
func TestASubscriberOverARestartKeepsNoBlock(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts Python")
	}
	python := engines(t)
	first := newNode(t, nil)
	pub, router := first.Addrs()
	lines := printed(t, python, "testdata/index.py", "tcp://"+pub.String())
	next := func() string {
		t.Helper()
		select {
		case l, ok := <-lines:
			if why, missing := strings.CutPrefix(l, "missing "); missing {
				t.Skipf("no pyzmq or msgspec in %s: %s", python, why)
			}
			if !ok {
				t.Fatal("the subscriber has ended")
			}
			return l
		case <-time.After(importTime):
			t.Fatal("the subscriber says nothing")
		}
		return ""
	}
	until := func(want string) (messages []string) {
		t.Helper()
		for len(messages) == 0 || messages[len(messages)-1] != want {
			messages = append(messages, next())
		}
		return messages
	}
	until("ready")
	for i := range 10 {
		first.first(prompt(i, 8))
	}
	until("on 30") // two rows and a state of each
	first.stop()
	again := newNode(t, func(c *Config) { c.Bind, c.Replay = pub.String(), router.String() })
	again.first(prompt(3, 8))
	again.first(prompt(100, 8))
	if messages := until("on 6"); messages[0] != "back 0" {
		t.Errorf("behind the restart %v", messages)
	}
}
