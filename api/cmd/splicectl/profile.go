package main

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/policy/profile"
)

type profileFlags struct {
	tokens int
	tp     int
	model  string
	kv     string
	state  string
	trans  string

	switching switching
}

func profileCommand() cli.Command {
	return cli.Command{
		Name: "profile", Group: "change", Synopsis: "[flags] FILE | on FINGERPRINT | off FINGERPRINT",
		Summary: "Print the sizes of a model's segments from its config.json, or switch splicing of a profile on or off",
		About: "FILE is a Hugging Face config.json. The output also has the values assumed for missing fields, and warns of\n" +
			"names that look misspelt and of models that engines refuse.\n\n" +
			"On and off change a running node: an engine's canary switches a profile off when reused segments differ too\n" +
			"much from computed ones, and only an operator can switch it on again. Splicectl ls canaries lists the profiles\n" +
			"that are switched off. The first digits of a fingerprint are enough.",
		Examples: []string{"on 9f86d081884c", "off 9f86d081884c --tenant team-a --why 'new kernels'", "config.json", "--tp 2 --tokens 2048 config.json", "- --json < config.json"},
		Words:    []string{"on", "off"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f profileFlags
			f.switching.target.flags(fs)
			fs.StringVar(&f.switching.tenant, "tenant", "", "on, off: for this `tenant` only")
			fs.StringVar(&f.switching.why, "why", "", "off: the `reason`, which splicectl ls canaries shows")
			fs.BoolVar(&f.switching.dry, "dry-run", false, "on, off: show what would change, and change nothing")
			fs.IntVar(&f.tokens, "tokens", 512, "number of `tokens` in the segment, without its seams")
			fs.IntVar(&f.tp, "tp", 1, "number of tensor-parallel `ranks`; sizes are per rank")
			fs.StringVar(&f.model, "model", "", "model `name` to print (default: the config's model_type)")
			fs.StringVar(&f.kv, "kv-dtype", "bf16", "element `type` of keys and values: f32, f16 or bf16")
			fs.StringVar(&f.state, "state-dtype", "f32", "element `type` of end-states")
			fs.StringVar(&f.trans, "transition-dtype", "f16", "element `type` of diagonal and dense transitions")
			return func(ctx context.Context, c *cli.Call) error {
				if len(c.Args) > 0 && (c.Args[0] == "on" || c.Args[0] == "off") {
					return f.switching.run(ctx, c)
				}
				return f.run(c)
			}
		},
	}
}

func (f *profileFlags) run(c *cli.Call) error {
	if len(c.Args) != 1 {
		return cli.Usagef("want one config.json, or - for standard input")
	}
	if f.tokens < 1 || f.tokens > 1<<24 {
		return cli.Usagef("--tokens %d is not 1 to %d", f.tokens, 1<<24)
	}
	if f.tp < 1 {
		return cli.Usagef("--tp %d is not above 0", f.tp)
	}
	options, err := f.options()
	if err != nil {
		return err
	}
	text, err := cli.ReadConfig(c.Args[0])
	if err != nil {
		return err
	}
	// These are placeholders: sizes do not depend on weights and decay slopes, but a profile
	// without them is refused.
	options.Weights = sha256.Sum256(text)
	options.Slopes = func(_, heads int) []float64 { return make([]float64, heads) }
	id, notes, err := profile.ReadConfig(text, options)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Args[0], err)
	}
	p, err := profile.New(id)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Args[0], err)
	}
	report := p.Report(f.tokens)
	report.Fingerprint = "" // the placeholders make it wrong
	report.Defaults, report.Warnings = notes.Defaults, append(notes.Warnings, report.Warnings...)
	if c.JSON {
		return c.Document(report)
	}
	return report.WriteText(c.Stdout)
}

func (f *profileFlags) options() (profile.ConfigOptions, error) {
	o := profile.ConfigOptions{Model: f.model, TPSize: f.tp}
	for _, d := range []struct {
		flag, text string
		into       *profile.DType
	}{{"kv-dtype", f.kv, &o.KVDType}, {"state-dtype", f.state, &o.StateDType}, {"transition-dtype", f.trans, &o.TransitionDType}} {
		switch d.text {
		case "f32":
			*d.into = profile.F32
		case "f16":
			*d.into = profile.F16
		case "bf16":
			*d.into = profile.BF16
		default:
			return o, cli.Usagef("--%s %q is none of f32, f16, bf16", d.flag, d.text)
		}
	}
	return o, nil
}
