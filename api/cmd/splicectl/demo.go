package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/child"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/refengine/chatdemo"
	"github.com/spliced-kv/spliced/connector/refengine/ragdemo"
)

type demoFlags struct {
	scenarios list
	requests  int
	turns     int
	seam      int
	socket    string
	daemon    string
	model     string
	quiet     bool
	noKill    bool
}

func demoCommand() command {
	return command{
		name: "demo", synopsis: "[flags]",
		summary: "Serve real RAG requests and conversations with and without the daemon, and compare",
		about: `rag asks a small trained model questions over several passages, by full recompute, with
prefix caching and spliced, and shows what it answers; in its middle the demo's own daemon
is killed and restarted. Without the model, real requests of ten passages each are served
with random weights, whose times count and whose answers do not. chat serves
conversations with tool calls, forks and regenerated answers without a cache, with a
state every 64 tokens or at every message, and with states where the daemon advises.

Exit status 1: the daemon came back without what it held, or an answer differs from
the one without a cache.`,
		examples: []string{"", "-scenario chat", "-scenario rag -requests 12", "-no-kill", "-socket /run/spliced/spliced.sock", "--json"},
		setup: func(fs *flag.FlagSet) func(context.Context, *call) error {
			var f demoFlags
			fs.Var(&f.scenarios, "scenario", "`names`: rag, chat, or both separated by a comma (default rag,chat)")
			fs.IntVar(&f.requests, "requests", 0, "rag: serve only the first `n` requests; 0 = all")
			fs.IntVar(&f.turns, "turns", 0, "chat: serve only the first `n` prompts; 0 = all")
			fs.IntVar(&f.seam, "seam", 8, "`tokens` recomputed on either side of a join")
			fs.StringVar(&f.socket, "socket", "", "engine socket `path` of a running daemon (default: a temporary one of its own)")
			fs.StringVar(&f.daemon, "daemon", "", "`path` of spliced (default: beside this program, or in PATH)")
			fs.StringVar(&f.model, "model", "", "rag: `directory` of a trained model with questions.jsonl, or none for random weights\n"+
				"(default: "+trainedModel+", where that is there)")
			fs.BoolVar(&f.noKill, "no-kill", false, "do not kill the demo's own daemon in the middle and restart it on its disk\n"+
				"directory; a daemon that -socket names is never killed")
			fs.BoolVar(&f.quiet, "quiet", false, "no progress on standard error")
			return f.run
		},
	}
}

func (f *demoFlags) run(ctx context.Context, c *call) (err error) {
	switch {
	case len(c.args) > 0:
		return usagef("takes no arguments, got %q", c.args)
	case f.requests < 0:
		return usagef("-requests %d is negative", f.requests)
	case f.turns < 0:
		return usagef("-turns %d is negative", f.turns)
	case f.seam < 1 || f.seam > 1024:
		return usagef("-seam %d is not 1 to 1024", f.seam)
	}
	for _, name := range f.scenarios {
		if name != "rag" && name != "chat" {
			return usagef("no scenario %q, want rag or chat", name)
		}
	}
	if f.scenarios == nil {
		f.scenarios = list{"rag", "chat"}
	}
	if f.socket != "" {
		return f.show(ctx, c, f.socket, nil)
	}
	d, err := f.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	if f.noKill {
		return f.show(ctx, c, d.Socket, nil)
	}
	return f.show(ctx, c, d.Socket, func(ctx context.Context) error {
		if err := d.Kill(); err != nil {
			return err
		}
		return d.Restart(ctx)
	})
}

// demoDisk is many times what the demo publishes; a small slab, since each is
// allocated whole.
var demoDisk = []string{"-disk-size", "2GiB", "-disk-slab", "64MiB"}

// start runs a daemon with a disk directory beside its sockets.
func (f *demoFlags) start(ctx context.Context) (*child.Daemon, error) {
	return child.Start(ctx, child.Options{Binary: f.daemon, Disk: true, Args: demoDisk})
}

func (f *demoFlags) show(ctx context.Context, c *call, socket string, crash func(context.Context) error) (err error) {
	client, err := connector.Open(connector.Options{Socket: socket, Name: "splicectl demo",
		// The demo measures what the daemon does; a busy machine must not turn hits into misses.
		Timeouts: connector.Timeouts{Lookup: 5 * time.Second, Transfer: 30 * time.Second}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := client.WaitAttached(wait); err != nil {
		return err
	}
	var out demoReports
	if slices.Contains(f.scenarios, "rag") {
		if out.Report, err = f.rag(ctx, c, client, crash); err != nil {
			return err
		}
	}
	if slices.Contains(f.scenarios, "chat") {
		if out.Chat, err = f.chat(ctx, c, client); err != nil {
			return err
		}
	}
	if c.json {
		err = printJSON(c.stdout, out)
	}
	return errors.Join(err, out.failed())
}

// demoReports is the JSON form: the fields of the RAG scenario, and the chat one.
type demoReports struct {
	*ragdemo.Report
	Chat *chatdemo.Report `json:"chat,omitempty"`
}

func (r *demoReports) failed() error {
	var err error
	if r.Report != nil {
		err = r.Restart.Failed()
	}
	if r.Chat != nil {
		err = errors.Join(err, r.Chat.Failed())
	}
	return err
}

// rag runs the RAG scenario and prints it unless JSON is wanted.
func (f *demoFlags) rag(ctx context.Context, c *call, client *connector.Client, crash func(context.Context) error) (*ragdemo.Report, error) {
	trained, err := f.trained(c)
	if err != nil {
		return nil, err
	}
	o := ragdemo.Options{Requests: f.requests, Seam: f.seam, Crash: crash, Trained: trained}
	ended := func() {}
	if !f.quiet {
		bar := newProgress(c.stderr)
		ended = bar.end
		o.Progress = func(p ragdemo.Progress) {
			bar.at(float64(p.Done)/float64(max(p.Total, 1)), fmt.Sprintf("request %d, %s", p.Request+1, p.Way))
		}
	}
	report, err := ragdemo.RunClient(ctx, client, o)
	ended()
	if err == nil && !c.json {
		err = report.Print(c.stdout)
	}
	return report, err
}

// trainedModel is where the repository has its trained model.
const trainedModel = "scripts/tinyhybrid/model"

// trained reads the model that answers; nil for random weights.
func (f *demoFlags) trained(c *call) (*ragdemo.Trained, error) {
	dir := f.model
	switch {
	case dir == "none":
		return nil, nil
	case dir == "":
		dir = trainedModel
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			if !f.quiet {
				fmt.Fprintf(c.stderr, "no trained model in %s: the weights are random and the answers mean nothing; -model names one\n", dir)
			}
			return nil, nil
		}
	}
	return ragdemo.LoadTrained(dir)
}

// chat runs the conversations and prints them unless JSON is wanted.
func (f *demoFlags) chat(ctx context.Context, c *call, client *connector.Client) (*chatdemo.Report, error) {
	o := chatdemo.Options{Steps: f.turns}
	ended := func() {}
	if !f.quiet {
		bar := newProgress(c.stderr)
		ended = bar.end
		o.Progress = func(p chatdemo.Progress) {
			bar.at(float64(p.Done)/float64(max(p.Total, 1)), fmt.Sprintf("prompt %d, %s", p.Step+1, p.Way))
		}
	}
	report, err := chatdemo.RunClient(ctx, client, o)
	ended()
	if err == nil && !c.json {
		if len(f.scenarios) > 1 {
			fmt.Fprint(c.stdout, "\n\n")
		}
		err = report.Print(c.stdout)
	}
	return report, err
}
