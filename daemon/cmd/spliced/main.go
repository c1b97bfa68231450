// Command spliced is the cache daemon of a node. Run it without arguments; -help
// lists the settings.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/rs/zerolog"
	"github.com/rs/zerolog/diode"

	"github.com/spliced-kv/spliced/daemon"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// Set by the linker.
var (
	version = "unknown"
	commit  = "unknown"
	date    = "unknown"
)

// Exit codes. exitConfig tells the service manager that a restart does not help.
const (
	exitFailed = 1
	exitConfig = 2
)

func main() { os.Exit(run()) }

func run() int {
	config, invocation, err := settings.Load(settings.ProcessSources())
	switch {
	case err != nil: // help was printed
		return 0
	case invocation.Version:
		fmt.Printf("spliced %s (commit %s, %s, %s)\n", version, commit, date, runtime.Version())
		return 0
	}
	var level logLevel
	level.SetLevel(levelOf(&config))
	colours := term.IsTerminal(os.Stderr.Fd())
	lines, flush := queued(&config, os.Stderr, colours)
	defer flush()
	log := newLog(&config, lines, colours)
	for _, warning := range invocation.Warnings {
		log.Warn().Msg(warning)
	}
	d, err := daemon.New(config, daemon.Parts{Log: log, Level: level, Build: daemon.Build{Version: version, Commit: commit}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "spliced:", err)
		return exitConfig
	}
	if invocation.Check {
		for _, problem := range d.Check() {
			log.Warn().Msg(problem)
		}
		fmt.Println("the configuration is valid")
		return 0
	}
	if limit := d.HeapLimit(); limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(limit))
	}
	// The reader of the log may disappear. That is a write error, which must not end the process.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	reloads := make(chan os.Signal, 1) // several pending signals count as one
	signal.Notify(reloads, syscall.SIGHUP)
	go func() {
		for range reloads {
			d.ReloadOnSignal()
		}
	}()
	// A second signal kills the process.
	context.AfterFunc(ctx, stop)
	if err := d.Run(ctx); err != nil {
		log.Error().Err(err).Msg("spliced exits")
		if errors.Is(err, settings.ErrConfig) {
			return exitConfig
		}
		return exitFailed
	}
	return 0
}

const (
	queuedLines = 4096
	lastLines   = time.Second // limit for writing the last lines
)

// queued moves writes of a log to another goroutine, so that nothing blocks when the reader of
// standard error stalls. If too many lines wait, lines are dropped and counted. The returned
// function flush writes the waiting lines.
func queued(c *settings.Config, w io.Writer, colours bool) (lines io.Writer, flush func()) {
	direct := newLog(c, w, colours)
	queue := diode.NewWriter(struct{ io.Writer }{w}, queuedLines, 0, func(missed int) {
		direct.Warn().Int("lines", missed).Msg("log lines were dropped: standard error was not read in time")
	})
	return queue, func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = queue.Close() // an error does not matter: nothing is closed
		}()
		select {
		case <-done:
		case <-time.After(lastLines):
		}
	}
}

// logLevel is the level of the process's log. It is zerolog's global level.
type logLevel struct{}

func (logLevel) Level() zerolog.Level         { return zerolog.GlobalLevel() }
func (logLevel) SetLevel(level zerolog.Level) { zerolog.SetGlobalLevel(level) }

// levelOf returns the log level. It is called before the configuration is validated: if the level
// cannot be parsed, everything is logged until validation refuses it.
func levelOf(c *settings.Config) zerolog.Level {
	level, err := zerolog.ParseLevel(c.LogLevel)
	if err != nil {
		return zerolog.TraceLevel
	}
	return level
}

// newLog creates the log. The parameter colours is true if a terminal shows the log in colours.
func newLog(c *settings.Config, w io.Writer, colours bool) zerolog.Logger {
	w = plainWriter{w}
	if c.LogFormat == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339, FormatMessage: plainMessage, NoColor: !colours}
	}
	return zerolog.New(w).With().Timestamp().Logger()
}
