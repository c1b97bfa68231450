package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/replay"
)

type replayFlags struct {
	replay.Options
	policies, capacities, checkpoints cli.List
	model, prefill, plot              string
	quiet                             bool
}

func replayCommand() cli.Command {
	return cli.Command{
		Name: "replay", Group: "measure", Synopsis: "[flags] TRACE",
		Summary: "Replay recorded requests through simulated caches to compare policies",
		About: `TRACE is a file, plain or compressed with zstd, or FILE:MEMBER, a member of a tar archive.
Its first line tells which kind of trace it is:

  prompts    Mooncake JSONL with hash_ids; session turns (seconds,session,turn,input
             tokens,output tokens) with a file of texts; or spliced JSONL
  segments   lists of passages (id,…,id,query tokens) with a file of lengths; or spliced
             JSONL with segments only
  overlaps   how many tokens prompts share with earlier ones; --policy then names
             placements of checkpoints

  Spliced JSONL begins with {"spliced_trace":1,"block_tokens":16} and has one request a line:
             {"tokens":[…]}, {"blocks":[[…],…]}, {"hashes":[…]} of blocks or
             {"segments":[["id",tokens],…]}; optional "output", "output_length",
             "input_length", "timestamp" in ms, "session", "cuts"

Policies: ` + strings.Join(replay.PromptPolicies(), ", ") + `.
marconi tunes its weight once, as in its released code; marconi:0.3 fixes the weight. For
segments there is also prefix, which only caches prefixes.
Placements: ` + strings.Join(replay.PlacementPolicies(), ", ") + `.

At an unreadable line the replay stops and reports the line's number. TTFT is modelled
from the hits.
--json prints one object per run.`,
		Examples: []string{
			"trace.jsonl.zst --policy lru,marconi,gdsf,default --capacity 300GB,1TB",
			"orders.tar.zst:swe100_c5_sps1_art7.5 --capacity 40GB --capacity 60GB --plot swe.svg",
			"passages.csv.zst --texts lengths.csv.zst --capacity 20GB,40GB --policy lru,default,prefix",
			"depths.csv.zst --policy balanced,dp,default --checkpoints 1,2,4",
			"mine.jsonl --profile config.json --prefill 12,0.04 --capacity 16GiB --json",
		},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f replayFlags
			fs.Var(&f.policies, "policy", "`names` of policies or placements, separated by commas or repeated (default lru,marconi,gdsf,default)")
			fs.Var(&f.capacities, "capacity", "sizes of the cache in `bytes`, such as 300GB, 16GiB or unlimited, separated by commas or repeated")
			fs.Var(&f.checkpoints, "checkpoints", "overlaps: maximum numbers of `states` per prompt, separated by commas (default 1,2,4,8,16,32,64)")
			fs.StringVar(&f.model, "profile", "", "`model`: "+replay.PresetMarconi+", "+replay.PresetGDN+" or the path of a Hugging Face config.json\n(default: the first; for traces of segments the second)")
			fs.StringVar(&f.prefill, "prefill", "", "prefill time in ms as `fixed,per-token[,per-token²]`, for TTFT and the value of hits\n(default: that of the model)")
			fs.StringVar(&f.plot, "plot", "", "`file` to which a chart is written as SVG")
			fs.StringVar(&f.Title, "title", "", "`title` of the chart (default: the file's name)")
			fs.BoolVar(&f.Bound, "bound", false, "prompts: also print an upper bound of the hits with any policy")
			fs.StringVar(&f.Trace.Member, "member", "", "`name` of the member to read from the archive")
			fs.StringVar(&f.Trace.Texts, "texts", "", "`file` with the texts or lengths of the trace (default: the one next to the trace)")
			fs.IntVar(&f.System, "system", 64, "segments: length in `tokens` of a first segment that all prompts share")
			fs.IntVar(&f.Seam, "seam", 8, "segments: `tokens` recomputed on each side of a segment")
			fs.BoolVar(&f.quiet, "quiet", false, "print no progress on standard error")
			return f.run
		},
	}
}

func (f *replayFlags) run(ctx context.Context, c *cli.Call) error {
	if len(c.Args) != 1 {
		return cli.Usagef("want one trace, got %d arguments", len(c.Args))
	}
	f.Path = c.Args[0]
	if err := f.complete(); err != nil {
		return err
	}
	ended := func() {}
	if !f.quiet {
		bar := newProgress(c.Stderr)
		f.Progress, ended = func(done float64) { bar.at(done, "replaying") }, bar.end
	}
	report, err := replay.Run(ctx, f.Options)
	ended()
	if errors.Is(err, replay.ErrPolicy) || errors.Is(err, replay.ErrCapacity) || errors.Is(err, replay.ErrBound) {
		return cli.UsageError{Text: err.Error()}
	}
	if err != nil {
		return err
	}
	if f.plot != "" {
		if err := drawTo(f.plot, report); err != nil {
			return err
		}
	}
	if c.Output == cli.FormYAML {
		var b bytes.Buffer
		return errors.Join(report.WriteJSON(&b), yamlOf(c.Stdout, &b))
	}
	if c.JSON {
		return report.WriteJSON(c.Stdout)
	}
	return report.Print(c.Stdout)
}

func drawTo(path string, report *replay.Report) (err error) {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return report.Chart().Write(out)
}

// complete converts the text of flags to options.
func (f *replayFlags) complete() error {
	f.Policies = f.policies
	for _, text := range f.capacities {
		n, err := capacityOf(text)
		if err != nil {
			return err
		}
		f.Capacities = append(f.Capacities, n)
	}
	for _, text := range f.checkpoints {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return cli.Usagef("--checkpoints %q is no number from 1 on", text)
		}
		f.Checkpoints = append(f.Checkpoints, n)
	}
	switch ext := strings.ToLower(filepath.Ext(f.plot)); {
	case f.plot != "" && ext != ".svg":
		return cli.Usagef("--plot %s: charts are written as .svg", f.plot)
	case f.System < 0 || f.System > 1<<20:
		return cli.Usagef("--system %d is not 0 to %d", f.System, 1<<20)
	case f.Seam < 0 || f.Seam > 1024:
		return cli.Usagef("--seam %d is not 0 to 1024", f.Seam)
	}
	if err := f.chooseModel(); err != nil {
		return err
	}
	if f.prefill == "" {
		return nil
	}
	prefill, err := prefillOf(f.prefill)
	if err == nil {
		f.Model.SetPrefill(prefill)
	}
	return err
}

func (f *replayFlags) chooseModel() error {
	if f.model == "" {
		return nil
	}
	m, known := replay.Preset(f.model)
	if known {
		f.Model = m
		return nil
	}
	text, err := cli.ReadConfig(f.model)
	if err != nil {
		return fmt.Errorf("-profile %s is neither %s, %s nor a file: %w", f.model, replay.PresetMarconi, replay.PresetGDN, err)
	}
	f.Model, err = replay.FromConfig(text, profile.ConfigOptions{
		// Sizes depend on neither Weights nor Slopes, but a profile without them is rejected.
		Weights: sha256.Sum256(text), Slopes: func(_, heads int) []float64 { return make([]float64, heads) },
	})
	if err != nil {
		return fmt.Errorf("%s: %w", f.model, err)
	}
	return nil
}

// capacityOf parses 300GB, 16GiB, 1.5TB, plain bytes, or unlimited.
func capacityOf(text string) (int64, error) {
	if strings.EqualFold(text, "unlimited") {
		return replay.Unlimited, nil
	}
	bytes, ok := cli.Bytes(text)
	if !ok || bytes < 1 {
		return 0, cli.Usagef("--capacity %q is not a size such as 300GB, 16GiB or unlimited", text)
	}
	return int64(math.Round(bytes)), nil
}

func prefillOf(text string) (cost.Prefill, error) {
	parts := strings.Split(text, ",")
	var v [3]float64
	wrong := len(parts) < 2 || len(parts) > 3
	for i := 0; i < len(parts) && !wrong; i++ {
		var err error
		v[i], err = strconv.ParseFloat(strings.TrimSpace(parts[i]), 64)
		wrong = err != nil || !(v[i] >= 0 && v[i] <= 1e9)
	}
	if wrong || v[1] == 0 && v[2] == 0 {
		return cost.Prefill{}, cli.Usagef("--prefill %q is not fixed,per-token or fixed,per-token,per-token² in milliseconds", text)
	}
	return cost.Prefill{Fixed: v[0], PerToken: v[1], PerTokenSquared: v[2]}, nil
}

// yamlOf writes consecutive JSON documents as YAML.
func yamlOf(w io.Writer, documents io.Reader) error {
	d := json.NewDecoder(documents)
	for n := 0; ; n++ {
		var one json.RawMessage
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if n > 0 {
			if _, err := io.WriteString(w, "---\n"); err != nil {
				return err
			}
		}
		if err := show.YAML(w, one); err != nil {
			return err
		}
	}
}
