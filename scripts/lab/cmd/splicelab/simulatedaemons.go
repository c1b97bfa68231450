package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/clustercheck"
	"github.com/spliced-kv/spliced/scripts/lab/simulate"
)

// maxDaemons is the number of daemons that a small machine can run at once.
const maxDaemons = 32

// compared is a simulation and a run of daemons with the same parameters.
type compared struct {
	Simulated simulate.Part        `json:"simulated"`
	Daemons   *clustercheck.Report `json:"daemons"`
	// First is the simulated time in which a node that starts empty learns all sets.
	First simulate.CatchUp `json:"simulated_first_start"`
}

func (f *simulateFlags) runDaemons(ctx context.Context, c *cli.Call, s *simulate.Report) error {
	if s.Nodes > maxDaemons {
		return cli.Usagef("--daemons runs %d processes at most, got -nodes %d", maxDaemons, s.Nodes)
	}
	seen, err := f.clusterOfDaemons(ctx, c, s)
	if err != nil {
		return err
	}
	both := compared{s.Parts[0], seen, s.First}
	if c.JSON {
		return c.Document(both)
	}
	fmt.Fprintf(c.Stdout, "%d nodes with %d segments each, %.3g of them replaced a minute, %v\n\n", s.Nodes, s.Segments, s.Churn, f.Duration)
	t := show.NewTable(c.Stdout, "", "simulated", "daemons")
	row := func(name, format string, simulated, seen float64) {
		t.Row(name, fmt.Sprintf(format, simulated), fmt.Sprintf(format, seen))
	}
	p := &both.Simulated
	row("questions of a node, 1/s", "%.1f", p.ExchangesPerSecond, seen.ExchangesPerSecond)
	row("answers to it, B/s", "%.0f", p.AnswerBytes, seen.AnswerBytes)
	row("new segment on one node, p50, s", "%.3f", p.VisibleP50, seen.VisibleP50)
	row("  p99, s", "%.3f", p.VisibleP99, seen.VisibleP99)
	row("  on all nodes, p99, s", "%.3f", p.EverywhereP99, seen.EverywhereP99)
	row("hits lost, %", "%.3f", 100*p.HitsLost, 100*seen.HitsLost)
	row("false peers, %", "%.3f", 100*p.False, 100*seen.False)
	row("new segments", "%.0f", float64(p.NewSegments), float64(seen.NewSegments))
	row("not visible after 5 s, a node", "%.0f", 0, float64(seen.Unseen))
	return t.Flush()
}

// clusterOfDaemons starts daemons that do not prefetch, and measures.
func (f *simulateFlags) clusterOfDaemons(ctx context.Context, c *cli.Call, s *simulate.Report) (seen *clustercheck.Report, err error) {
	dir, err := os.MkdirTemp("", "spliced-cluster-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := littleProfile()
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range s.Nodes {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	daemons, err := startCluster(ctx, dir, names, child.Options{Binary: f.binary, Args: []string{"-read-ahead", "off", "-prefill-speed", "1", "-arena", "512MiB"}})
	defer func() {
		for _, d := range daemons {
			err = errors.Join(err, d.Stop())
		}
	}()
	if err != nil {
		return nil, err
	}
	o := clustercheck.Options{Profile: p, Keys: s.Segments, Duration: f.Duration, Churn: s.Churn, Seed: s.Seed}
	if !f.quiet {
		bar := newProgress(c.Stderr)
		defer bar.end()
		o.Progress = func(done float64) { bar.at(done, "running daemons") }
	}
	for i, d := range daemons {
		client, err := connector.Open(connector.Options{Socket: d.Socket, Name: "splicectl simulate",
			Timeouts: connector.Timeouts{Lookup: 5 * time.Second, Transfer: 30 * time.Second}})
		if err != nil {
			return nil, err
		}
		defer client.Close()
		o.Nodes = append(o.Nodes, clustercheck.Node{Name: names[i], Client: client, Exchanges: exchangesOf(d.API()), Versions: versionsOf(d.API()), Remove: func(ctx context.Context, key profile.SegmentKey) error {
			_, err := d.API().Remove(ctx, api.Digest(key), false)
			return err
		}})
	}
	return clustercheck.Run(ctx, o)
}

// exchangesOf returns a function that reads a daemon's counters of requests for other nodes'
// sets (see clustercheck.Node).
func exchangesOf(client *api.Client) func(context.Context) (asked, bytes float64, err error) {
	return func(ctx context.Context) (asked, bytes float64, err error) {
		cluster, err := client.Cluster(ctx)
		for _, counter := range cluster.Counters {
			switch counter.Name {
			case "cluster_index_asked":
				asked = counter.Value
			case "cluster_index_learnt_bytes":
				bytes = counter.Value
			}
		}
		return asked, bytes, err
	}
}

// versionsOf returns a function that reads the version of a daemon's own set, and the versions
// of the other members' sets that the daemon has read completely.
func versionsOf(client *api.Client) func(context.Context) (uint64, map[string]uint64, error) {
	return func(ctx context.Context) (uint64, map[string]uint64, error) {
		cluster, err := client.Cluster(ctx)
		others := map[string]uint64{}
		for _, m := range cluster.Members {
			if m.Index != nil && m.Index.Complete {
				others[m.Name] = m.Index.Version
			}
		}
		return cluster.Own.Version, others, err
	}
}

// littleProfile returns the profile of a made-up model whose segments take one page.
func littleProfile() (*profile.Profile, error) {
	return profile.New(profile.Identity{
		Model: "splicectl simulate", Weights: sha256.Sum256([]byte("splicectl simulate")), Tokenizer: "none", TPSize: 1,
		Layers: []profile.Layer{{Kind: profile.KindLinear, Linear: profile.Linear{
			Family: profile.GDN, KeyHeads: 1, ValueHeads: 1, KeyDim: 16, ValueDim: 16, StateDType: profile.F32, TransitionDType: profile.F16,
		}}},
	})
}
