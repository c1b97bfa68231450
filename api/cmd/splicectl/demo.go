package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/child"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/refengine/ragdemo"
)

type demoFlags struct {
	requests int
	seam     int
	socket   string
	daemon   string
	quiet    bool
	noKill   bool
}

func demoCommand() command {
	return command{
		name: "demo", synopsis: "[flags]",
		summary:  "Serve real RAG requests in three ways: full recompute, prefix caching, spliced",
		examples: []string{"", "-requests 12", "-no-kill", "-socket /run/spliced/spliced.sock", "--json"},
		setup: func(fs *flag.FlagSet) func(context.Context, *call) error {
			var f demoFlags
			fs.IntVar(&f.requests, "requests", 0, "serve only the first `n` requests; 0 = all")
			fs.IntVar(&f.seam, "seam", 8, "`tokens` recomputed on either side of a join")
			fs.StringVar(&f.socket, "socket", "", "engine socket `path` of a running daemon (default: a temporary one of its own)")
			fs.StringVar(&f.daemon, "daemon", "", "`path` of spliced (default: beside this program, or in PATH)")
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
	case f.seam < 1 || f.seam > 1024:
		return usagef("-seam %d is not 1 to 1024", f.seam)
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
	o := ragdemo.Options{Requests: f.requests, Seam: f.seam, Crash: crash}
	clearBar := func() {}
	if !f.quiet {
		o.Progress, clearBar = progressOn(c.stderr)
	}
	report, err := ragdemo.RunClient(ctx, client, o)
	clearBar()
	if err != nil {
		return err
	}
	if c.json {
		err = printJSON(c.stdout, report)
	} else {
		err = report.Print(c.stdout)
	}
	return errors.Join(err, report.Restart.Failed())
}

// progressOn draws a bar on a terminal, and writes a line now and then elsewhere.
func progressOn(w io.Writer) (progress func(ragdemo.Progress), end func()) {
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return ragdemo.Bar(w)
		}
	}
	last := -1
	return func(p ragdemo.Progress) {
		if tenth := 10 * p.Done / max(p.Total, 1); tenth != last {
			last = tenth
			fmt.Fprintf(w, "%3d %%  request %d, %s\n", 10*tenth, p.Request+1, p.Way)
		}
	}, func() {}
}
