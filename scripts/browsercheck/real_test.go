package browsercheck

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/spliced-kv/spliced/api/loopback"
)

// programs are spliced, splicectl and splicelab, built once; SPLICED_BIN names a directory that has
// them already.
var programs = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("SPLICED_BIN"); dir != "" {
		return dir, nil
	}
	dir, err := filepath.Abs("../../bin/browsercheck")
	if err != nil {
		return "", err
	}
	for module, commands := range map[string][]string{"../..": {"./daemon/cmd/spliced", "./api/cmd/splicectl"}, "../lab": {"./cmd/splicelab"}} {
		cmd := exec.Command("go", append([]string{"build", "-tags", "nocuda", "-o", dir + "/"}, commands...)...)
		cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return "", err
		}
	}
	return dir, nil
})

// node is a daemon of ours, as a process.
type node struct {
	t    *testing.T
	bin  string
	dir  string
	http string
	cmd  *exec.Cmd
	log  bytes.Buffer
}

func startNode(t *testing.T, arguments ...string) *node {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatalf("build the programs: %v", err)
	}
	dir, err := os.MkdirTemp("", "spl") // short: a socket's path is
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, bin: bin, dir: dir, http: address(t)}
	n.start(arguments...)
	t.Cleanup(func() {
		n.kill()
		os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", &n.log)
		}
	})
	return n
}

// address is of this machine, and nobody else's until the test ends.
func address(t *testing.T) string {
	t.Helper()
	list, release, err := loopback.Reserve(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return list[0]
}

func (n *node) start(arguments ...string) {
	n.t.Helper()
	n.cmd = exec.Command(filepath.Join(n.bin, "spliced"), append([]string{
		"-socket", n.socket(), "-http", n.http, "-arena", "256MiB", "-private", "64MiB",
		"-disk", filepath.Join(n.dir, "disk"), "-disk-size", "1GiB", "-disk-slab", "64MiB",
	}, arguments...)...)
	n.cmd.Stderr = &n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	limit := time.Now().Add(patience)
	for {
		if res, err := http.Get("http://" + n.http + "/readyz"); err == nil {
			res.Body.Close()
			if res.StatusCode == 200 {
				return
			}
		}
		if time.Now().After(limit) {
			n.t.Fatalf("the daemon is not ready:\n%s", &n.log)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (n *node) socket() string { return filepath.Join(n.dir, "run", "s.sock") }

// has says whether the daemon has a path of the REST.
func (n *node) has(path string) bool {
	n.t.Helper()
	res, err := http.Get("http://" + n.http + "/api/v1/" + path)
	if err != nil {
		n.t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode != http.StatusNotFound
}

// kill is a kill -9.
func (n *node) kill() {
	if n.cmd.ProcessState == nil {
		n.cmd.Process.Kill()
		n.cmd.Wait()
	}
}

// demo has the node serve the demo's requests.
func (n *node) demo(arguments ...string) {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(n.bin, "splicectl"), append([]string{"demo", "-socket", n.socket(), "-quiet", "-no-kill"}, arguments...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("the demo: %v\n%s", err, out)
	}
}

// With nothing doubled: the real programs, from an empty daemon to one that was killed.
func TestRealDaemon(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	p := openTab(t)
	p.networkErrors = true // where it does not have an endpoint, and when it is dead
	n := startNode(t)
	url := "http://" + n.http + "/ui/"
	p.open("http://" + n.http + "/") // which leads there
	p.says("#begin", "splicectl demo -socket "+n.socket())
	if at := eval[string](p, "location.pathname"); at != "/ui/" {
		t.Errorf("/ leads to %s", at)
	}
	n.demo("-scenario", "rag", "-requests", "3")
	p.until("there is nothing to begin any more", `!document.querySelector('#begin')`)
	for hash, want := range map[string][2]string{
		"#/segments":          {"#segments tbody", "demo-gdn-8l"},
		"#/checkpoints":       {"#checkpoints tbody", "exact"},
		"#/decisions":         {"#decisions tbody", "filled by its writer"},
		"#/disk":              {"#disk", "State: ok"},
		"#/gpu":               {"#gpu", "No memory of a GPU"},
		"#/peers":             {"#peers", "not in a cluster"},
		"#/canary":            {"#canary", "nothing has been compared"},
		"#/connections":       {"#engines", "demo-gdn-8l"},
		"#/tenants":           {"#quotas", "default"},
		"#/":                  {"#tiers", "disk"},
		"#/disk?show=restart": {"#restart", "0 objects"},
	} {
		p.open("about:blank")
		p.open(url + hash)
		p.says(want[0], want[1])
		p.settled()
		p.clean()
	}
	// One segment, by a click.
	p.goTo("#/segments")
	p.says("#segments tbody", "demo-gdn-8l")
	eval[chromedp.Void](p, `void document.querySelector('#segments tbody a.key').click()`)
	p.says("#segment", "Kept tokens")
	p.says("#history", "filled by its writer")
	p.clean()
	if n.has("requests") && n.has("overview") {
		p.goTo("#/")
		p.until("the hit ratio is told", `/\s[1-9][0-9.]* %/.test(document.querySelector("#hit-ratio")?.innerText)`)
		p.says("#why", "spliced segments")
		p.goTo("#/requests?way=splice")
		p.says("#requests tbody", "splice")
		eval[chromedp.Void](p, `void document.querySelector('#requests tbody a').click()`)
		p.until("the prompt is drawn in full", `(() => {
			const parts = [...document.querySelectorAll('.story .track:first-child .part')];
			const width = parts.reduce((n, e) => n + e.getBoundingClientRect().width, 0);
			return parts.some((e) => e.classList.contains('segment')) && Math.abs(width - document.querySelector('.story .track').clientWidth) < 2 * parts.length;
		})()`)
		p.clean()
	} else {
		t.Log("this daemon does not tell of requests: their pages were not looked at")
	}
	if n.has("events?poll=1") {
		p.says("#live", "live")
		p.goTo("#/events")
		p.says("#events tbody", "published")
		p.clean()
	}
	// It is killed, and started again.
	n.kill()
	p.says("#dead", "The daemon does not answer.")
	n.start()
	p.until("the strip is gone", `!document.querySelector('#dead')`)
	p.says("#restarted", "The daemon was restarted")
	eval[chromedp.Void](p, `void document.querySelector('#restarted a').click()`)
	p.says("#restart", "Brought back from disk")
	p.until("something was brought back", `/Brought back from disk\s+[1-9]/.test(document.querySelector('#restart').innerText)`)
	p.clean()
}
