package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/chatdemo"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/ragdemo"
)

type demoFlags struct {
	scenarios cli.List
	requests  int
	turns     int
	seam      int
	tolerance float64
	socket    string
	daemon    string
	model     string
	quiet     bool
	noKill    bool
}

func demoCommand() cli.Command {
	return cli.Command{
		Name: "demo", Group: "measure", Synopsis: cli.FlagsOnly,
		Summary: "Serve RAG requests and conversations with and without the daemon",
		About: `Scenario questions asks a small trained model about several passages and shows the answers:
with full recomputation, with prefix caching, and with splicing. Scenario rag serves requests
of ten passages in the same three ways, with a model of random weights, so only its times are
meaningful. Both scenarios kill and restart the demo's own daemon halfway. Scenario chat
serves conversations with tool calls, forks and regenerated answers: without a cache, and
with states stored every 64 tokens, at every message, or where the daemon advises.

Exit status 1: the restarted daemon lost cached data, or an answer differs from the one
without a cache.`,
		Examples: []string{"", "--scenario questions", "--scenario chat", "--scenario rag --requests 12", "--tolerance 0", "--no-kill", "--socket /run/spliced/spliced.sock", "--json"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f demoFlags
			fs.Var(&f.scenarios, "scenario", "`names` of the scenarios to run, separated by commas: questions, rag, chat (default: all)")
			fs.IntVar(&f.requests, "requests", 0, "questions, rag: serve only the first `n` requests; 0 = all")
			fs.IntVar(&f.turns, "turns", 0, "chat: serve only the first `n` prompts; 0 = all")
			fs.IntVar(&f.seam, "seam", 8, "seam width: `tokens` recomputed on each side of a join")
			fs.Float64Var(&f.tolerance, "tolerance", profile.DefaultTolerance, "questions, rag: maximum error of packed transitions and end-states; 0.02 reduces them\n"+
				"to about a quarter of the bytes, 0 = do not pack")
			fs.StringVar(&f.socket, "socket", "", "engine socket `path` of a running daemon (default: start a temporary daemon)")
			fs.StringVar(&f.daemon, "daemon", "", "`path` of the spliced program (default: next to this program, or in PATH)")
			fs.StringVar(&f.model, "model", "", "questions: `directory` of a trained model with questions.jsonl (default: "+trainedModel+")")
			fs.BoolVar(&f.noKill, "no-kill", false, "do not kill and restart the demo's own daemon; a daemon named by --socket is never killed")
			fs.BoolVar(&f.quiet, "quiet", false, "print no progress on standard error")
			return f.run
		},
	}
}

func (f *demoFlags) run(ctx context.Context, c *cli.Call) (err error) {
	switch {
	case f.requests < 0:
		return cli.Usagef("--requests %d is negative", f.requests)
	case f.turns < 0:
		return cli.Usagef("--turns %d is negative", f.turns)
	case f.seam < 1 || f.seam > 1024:
		return cli.Usagef("--seam %d is not 1 to 1024", f.seam)
	}
	if !(f.tolerance >= 0 && f.tolerance <= profile.MaxTolerance) {
		return cli.Usagef("--tolerance %v is not 0 to %v", f.tolerance, profile.MaxTolerance)
	}
	for _, name := range f.scenarios {
		if !slices.Contains(scenarios, name) {
			return cli.Usagef("no scenario %q, want one of %s", name, strings.Join(scenarios, ", "))
		}
	}
	if f.scenarios == nil {
		f.scenarios = scenarios
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

// scenarios lists the demo's scenarios in the order in which they run.
var scenarios = cli.List{"questions", "rag", "chat"}

// demoDisk sets a disk size that is many times the data of the demo, and small slab files,
// because the daemon allocates each slab file whole.
var demoDisk = []string{"-disk-size", "2GiB", "-disk-slab", "64MiB"}

// start starts a daemon with a disk directory next to its sockets.
func (f *demoFlags) start(ctx context.Context) (*child.Daemon, error) {
	return child.Start(ctx, child.Options{Binary: f.daemon, Disk: true, Args: demoDisk})
}

func (f *demoFlags) show(ctx context.Context, c *cli.Call, socket string, crash func(context.Context) error) (err error) {
	client, err := connector.Open(connector.Options{Socket: socket, Name: "splicectl demo",
		// The demo measures the daemon's work; a busy machine must not turn hits into
		// misses.
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
	if slices.Contains(f.scenarios, "questions") {
		if out.Questions, err = f.questions(ctx, c, client, crash); err != nil {
			return err
		}
	}
	if slices.Contains(f.scenarios, "rag") {
		f.divide(c, out.Questions != nil)
		if out.Report, err = f.rag(ctx, c, client, "rag", ragdemo.Options{Crash: crash}); err != nil {
			return err
		}
	}
	if slices.Contains(f.scenarios, "chat") {
		if out.Chat, err = f.chat(ctx, c, client); err != nil {
			return err
		}
	}
	if c.JSON {
		err = c.Document(out)
	}
	return errors.Join(err, out.failed())
}

// demoReports is the JSON form: the fields of the RAG scenario, and the other scenarios.
type demoReports struct {
	*ragdemo.Report
	Questions *ragdemo.Report  `json:"questions,omitempty"`
	Chat      *chatdemo.Report `json:"chat,omitempty"`
}

func (r *demoReports) failed() error {
	var err error
	if r.Questions != nil {
		err = r.Questions.Restart.Failed()
	}
	if r.Report != nil {
		err = errors.Join(err, r.Restart.Failed())
	}
	if r.Chat != nil {
		err = errors.Join(err, r.Chat.Failed())
	}
	return err
}

// divide writes a separator between the output of two scenarios.
func (f *demoFlags) divide(c *cli.Call, printed bool) {
	if printed && !c.JSON {
		fmt.Fprint(c.Stdout, "\n\n")
	}
}

// questions runs the trained model's questions; without a model it returns no report.
func (f *demoFlags) questions(ctx context.Context, c *cli.Call, client *connector.Client, crash func(context.Context) error) (*ragdemo.Report, error) {
	trained, err := f.trained(c)
	if err != nil || trained == nil {
		return nil, err
	}
	return f.rag(ctx, c, client, "questions", ragdemo.Options{Crash: crash, Trained: trained})
}

// rag runs a scenario of requests over passages and prints the report unless JSON is requested.
func (f *demoFlags) rag(ctx context.Context, c *cli.Call, client *connector.Client, name string, o ragdemo.Options) (*ragdemo.Report, error) {
	o.Requests, o.Seam, o.Tolerance = f.requests, f.seam, f.tolerance
	ended := func() {}
	if !f.quiet {
		bar := newProgress(c.Stderr)
		ended = bar.end
		o.Progress = func(p ragdemo.Progress) {
			bar.at(float64(p.Done)/float64(max(p.Total, 1)), fmt.Sprintf("%s: request %d, %s", name, p.Request+1, p.Way))
		}
	}
	report, err := ragdemo.RunClient(ctx, client, o)
	ended()
	if err == nil && !c.JSON {
		err = report.Print(c.Stdout)
	}
	return report, err
}

// trainedModel is the path of the trained model in the repository.
const trainedModel = "scripts/tinyhybrid/model"

// trained reads the trained model, which answers the demo's questions. Outside the repository it
// returns nil, unless a flag names a model.
func (f *demoFlags) trained(c *cli.Call) (*ragdemo.Trained, error) {
	if f.model != "" {
		return ragdemo.LoadTrained(f.model, f.tolerance)
	}
	if _, err := os.Stat(trainedModel); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(c.Stderr, "no trained model in %s, so that nothing is answered; -model names one\n", trainedModel)
		return nil, nil
	}
	return ragdemo.LoadTrained(trainedModel, f.tolerance)
}

// chat runs the conversations and prints them unless JSON is requested.
func (f *demoFlags) chat(ctx context.Context, c *cli.Call, client *connector.Client) (*chatdemo.Report, error) {
	o := chatdemo.Options{Steps: f.turns}
	ended := func() {}
	if !f.quiet {
		bar := newProgress(c.Stderr)
		ended = bar.end
		o.Progress = func(p chatdemo.Progress) {
			bar.at(float64(p.Done)/float64(max(p.Total, 1)), fmt.Sprintf("chat: prompt %d, %s", p.Step+1, p.Way))
		}
	}
	report, err := chatdemo.RunClient(ctx, client, o)
	ended()
	if err == nil && !c.JSON {
		f.divide(c, len(f.scenarios) > 1)
		err = report.Print(c.Stdout)
	}
	return report, err
}
