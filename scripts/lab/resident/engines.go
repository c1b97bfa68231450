package resident

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/scripts/lab/gpucheck"
)

// GPU memory of the daemon that serves engines. At full sizes, a segment of the larger model
// takes 44 MiB.
const (
	engineRoom      = "2GiB"
	engineRoomSmall = "64MiB"
)

// Engines returns a check with two transformers processes that use a daemon with GPU memory.
// model is the directory of a model, or "random". more are additional flags of the script.
func Engines(o Options, model, name string, limit time.Duration, more ...string) gpucheck.Part {
	return gpucheck.Part{Name: name, Limit: limit, Run: func(ctx context.Context, r *gpucheck.Report) error {
		if o.Python == "" {
			r.Skip(name, "no Python was given")
			return nil
		}
		if _, err := os.Stat(model); err != nil && model != randomModel {
			r.Skip(name, fmt.Sprintf("its model is not here: %v", err))
			return nil
		}
		room := engineRoom
		if o.Sizes == gpucheck.Small() {
			room = engineRoomSmall
		}
		daemon, err := child.Start(ctx, child.Options{Binary: o.Daemon, Args: []string{"-arena", room, "-private", room,
			"-hbm-public", room, "-hbm-private", room, "-hbm-library", o.Library, "-hbm-device", o.Device, "-hbm-timeout", patience.String()}})
		if err != nil {
			return err
		}
		args := []string{filepath.Join(o.Scripts, "engines.py"), "--socket", daemon.Socket, "--library", o.Library, "--device", o.Device, "--model", model}
		args = append(args, more...)
		if o.Sizes == gpucheck.Small() {
			args = append(args, "--small")
		}
		cmd := exec.CommandContext(ctx, o.Python, args...)
		cmd.Env = gpucheck.PythonEnv(o.PythonPath)
		return errors.Join(gpucheck.Script(ctx, cmd, name, r), daemon.Stop())
	}}
}

// randomModel is the name of the larger model, with random weights.
const randomModel = "random"

// OfEngines returns the checks of engines: first those with required figures, last those that
// need external kernels.
func OfEngines(o Options) []gpucheck.Part {
	return []gpucheck.Part{
		Engines(o, randomModel, "engines: a model of random numbers", 100*time.Second),
		Engines(o, o.Model, "engines: the model that came along", 100*time.Second),
		Engines(o, randomModel, "engines: a model of random numbers and FLA", 60*time.Second, "--fla"),
	}
}
