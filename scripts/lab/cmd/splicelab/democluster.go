package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/loopback"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/peerdemo"
)

type demoClusterFlags struct {
	daemon string
	log    bool
}

func demoClusterCommand() cli.Command {
	return cli.Command{
		Name: "demo-cluster", Group: "measure", Synopsis: cli.FlagsOnly,
		Summary: "Share segments between three daemons and two engines on this machine",
		About: `An engine on node a computes documents. An engine on node b reuses them in another order
and fetches them from a. Then a is killed, and b continues; a restarts with the objects on
its disk and fetches what b has computed meanwhile. Node c has no engine, only the index.
Each answer is compared with that of a cache in the engine's own process.

Exit status 1: an answer differs, or nothing was fetched from a peer.`,
		Examples: []string{"", "--json"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f demoClusterFlags
			fs.StringVar(&f.daemon, "daemon", "", "`path` of the spliced program (default: next to this program, or in PATH)")
			fs.BoolVar(&f.log, "log", false, "show the daemons' logs")
			return f.run
		},
	}
}

func (f *demoClusterFlags) run(ctx context.Context, c *cli.Call) (err error) {
	dir, err := os.MkdirTemp("", "spliced-cluster-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	daemons, err := f.start(ctx, dir, c.Stderr)
	defer func() {
		for _, d := range daemons {
			err = errors.Join(err, d.Stop())
		}
	}()
	if err != nil {
		return err
	}
	var nodes []peerdemo.Node
	for i, name := range demoNodes[:2] {
		client, err := connector.Open(connector.Options{Socket: daemons[i].Socket, Name: "splicectl demo-cluster",
			Timeouts: connector.Timeouts{Lookup: 5 * time.Second, Transfer: 30 * time.Second}})
		if err != nil {
			return err
		}
		defer client.Close()
		nodes = append(nodes, peerdemo.Node{Name: name, Client: client})
	}
	o := peerdemo.Options{A: nodes[0], B: nodes[1], Kill: daemons[0].Kill,
		Restart: func(ctx context.Context) error { return daemons[0].Restart(ctx) }}
	if !c.JSON {
		fmt.Fprintf(c.Stdout, "%-5s%-46s%9s%9s%10s%12s  %s\n", "node", "", "tokens", "reused", "computed", "first token", "segments held")
		o.Step = func(s peerdemo.Step) { printStep(c.Stdout, s) }
	}
	steps, err := peerdemo.Run(ctx, o)
	if c.JSON {
		err = errors.Join(err, c.Document(steps))
	}
	return err
}

func printStep(w io.Writer, s peerdemo.Step) {
	took := fmt.Sprintf("%.0f ms", s.Seconds*1000)
	if s.Same == nil {
		fmt.Fprintf(w, "%-5s%-46s%9s%9s%10s%12s\n", s.Node, s.What, "", "", "", took)
		return
	}
	var tiers []string
	for _, name := range slices.Sorted(maps.Keys(s.Tiers)) {
		tiers = append(tiers, fmt.Sprintf("%d %s", s.Tiers[name], name))
	}
	where := strings.Join(tiers, ", ")
	if !*s.Same {
		where += "  WRONG"
	}
	fmt.Fprintf(w, "%-5s%-46s%9d%9d%10d%12s  %s\n", s.Node, s.What, s.Tokens, s.Reused, s.Computed, took, where)
}

var demoNodes = []string{"a", "b", "c"}

// start starts one daemon per node, all in one cluster. The caller must stop the returned
// daemons, also after an error.
func (f *demoClusterFlags) start(ctx context.Context, dir string, log io.Writer) ([]*child.Daemon, error) {
	o := child.Options{Binary: f.daemon, Disk: true, Args: demoDisk}
	if f.log {
		o.Log = log
	}
	return startCluster(ctx, dir, demoNodes, o)
}

// startCluster starts one daemon per name, all in one cluster, and writes the cluster's key to
// dir. The caller must stop the returned daemons, also after an error.
func startCluster(ctx context.Context, dir string, names []string, o child.Options) ([]*child.Daemon, error) {
	keyring := filepath.Join(dir, "keyring")
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	if err := os.WriteFile(keyring, []byte(base64.StdEncoding.EncodeToString(key)+"\n"), 0o600); err != nil {
		return nil, err
	}
	gossip, release, err := loopback.Reserve(len(names))
	if err != nil {
		return nil, err
	}
	defer release() // for the listeners there
	var daemons []*child.Daemon
	for i, name := range names {
		one := o
		one.Args = slices.Concat([]string{
			"-cluster-seeds", strings.Join(gossip[:min(len(gossip), 3)], ","), "-cluster-name", "demo", "-cluster-node", name,
			"-cluster-bind", gossip[i], "-cluster-peer-bind", "127.0.0.1:0", "-cluster-keyring", keyring,
		}, o.Args)
		d, err := child.Start(ctx, one)
		if err != nil {
			return daemons, fmt.Errorf("node %s: %w", name, err)
		}
		daemons = append(daemons, d)
	}
	return daemons, nil
}
