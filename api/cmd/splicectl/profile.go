package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/spliced-kv/spliced/policy/profile"
)

// maxConfigBytes bounds what is read: real files have a few KiB.
const maxConfigBytes = 16 << 20

type profileFlags struct {
	tokens int
	tp     int
	model  string
	kv     string
	state  string
	trans  string
}

func profileCommand() command {
	return command{
		name: "profile", synopsis: "[flags] FILE",
		summary:  "Read a Hugging Face config.json and print what segments of the model cost",
		examples: []string{"config.json", "-tp 2 -tokens 2048 config.json", "- --json < config.json"},
		setup: func(fs *flag.FlagSet) func(context.Context, *call) error {
			var f profileFlags
			fs.IntVar(&f.tokens, "tokens", 512, "interior `tokens` of the segment")
			fs.IntVar(&f.tp, "tp", 1, "tensor-parallel `ranks`; figures are for one of them")
			fs.StringVar(&f.model, "model", "", "model `name` to print (default: the config's model_type)")
			fs.StringVar(&f.kv, "kv-dtype", "bf16", "element `type` of keys and values: f32, f16 or bf16")
			fs.StringVar(&f.state, "state-dtype", "f32", "element `type` of end-states")
			fs.StringVar(&f.trans, "transition-dtype", "f16", "element `type` of diagonal and dense transitions")
			return func(_ context.Context, c *call) error { return f.run(c) }
		},
	}
}

func (f *profileFlags) run(c *call) error {
	if len(c.args) != 1 {
		return usagef("want one config.json, or - for standard input")
	}
	if f.tokens < 1 || f.tokens > 1<<24 {
		return usagef("-tokens %d is not 1 to %d", f.tokens, 1<<24)
	}
	options, err := f.options()
	if err != nil {
		return err
	}
	text, err := readConfig(c.args[0])
	if err != nil {
		return err
	}
	// Sizes do not depend on weights and decay slopes, but a profile without
	// them is refused; these stand in.
	options.Weights = sha256.Sum256(text)
	options.Slopes = func(_, heads int) []float64 { return make([]float64, heads) }
	id, err := profile.FromConfig(text, options)
	if err != nil {
		return fmt.Errorf("%s: %w", c.args[0], err)
	}
	p, err := profile.New(id)
	if err != nil {
		return fmt.Errorf("%s: %w", c.args[0], err)
	}
	report := p.Report(f.tokens)
	report.Fingerprint = "" // would be that of the stand-in
	if c.json {
		return printJSON(c.stdout, report)
	}
	return report.WriteText(c.stdout)
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
			return o, usagef("-%s %q is none of f32, f16, bf16", d.flag, d.text)
		}
	}
	return o, nil
}

func readConfig(path string) ([]byte, error) {
	var in io.Reader = os.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxConfigBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(text) > maxConfigBytes {
		return nil, fmt.Errorf("%s has more than %d bytes: not a config.json", path, maxConfigBytes)
	}
	return text, nil
}
