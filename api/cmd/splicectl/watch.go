package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

const (
	watchEvery = 2 * time.Second
	leastWatch = 100 * time.Millisecond
)

// clearScreen moves the cursor to the start of the screen and clears the rest.
const clearScreen = "\x1b[H\x1b[J"

// watcher is a command that can be repeated.
type watcher struct{ every time.Duration }

func (w *watcher) flags(fs *pflag.FlagSet) {
	fs.DurationVarP(&w.every, "watch", "w", 0, "repeat at this `interval` until interrupted, as in --watch=10s")
	fs.Lookup("watch").NoOptDefVal = watchEvery.String()
}

// run calls the function in the parameter once, either one time or repeatedly until the context
// ends. While it repeats, it prints errors and continues, but an error in the command line ends it.
func (w *watcher) run(ctx context.Context, c *cli.Call, once func(context.Context, *cli.Call) error) error {
	if w.every == 0 {
		return once(ctx, c)
	}
	if w.every < leastWatch {
		return cli.Usagef("--watch=%v is less than %v", w.every, leastWatch)
	}
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for n := 0; ; n++ {
		if err := w.frame(ctx, c, n, once); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// frame calls the function in the parameter once, and prints its output. On a terminal the output
// replaces that of the previous call; elsewhere it is appended.
func (w *watcher) frame(ctx context.Context, c *cli.Call, n int, once func(context.Context, *cli.Call) error) error {
	var b bytes.Buffer
	shown := *c
	shown.Stdout = &b
	if out, ok := c.Stdout.(*terminal.Writer); ok {
		shown.Stdout = out.To(&b)
	}
	err := once(ctx, &shown)
	var usage cli.UsageError
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.As(err, &usage):
		return err
	case err != nil && !errors.Is(err, cli.ErrFailed):
		fmt.Fprintf(&b, "%s: %s\n", time.Now().Format(time.TimeOnly), terminal.Text(err.Error()))
	}
	plain, _ := terminal.Plain(c.Stdout)
	before := ""
	switch {
	case terminal.Is(plain):
		before = clearScreen
	case n > 0 && c.Output == cli.FormYAML:
		before = "---\n"
	case n > 0 && !c.JSON:
		before = "\n"
	}
	_, err = io.WriteString(plain, before+b.String())
	return err
}
