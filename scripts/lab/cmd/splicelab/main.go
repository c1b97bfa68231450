// Command splicelab contains the commands of splicectl that demonstrate and measure. Splicectl
// starts this program with its own arguments. Help and messages therefore say splicectl. Each
// command is one file here; its work is in the packages of this module.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spliced-kv/spliced/api/cmd/cli"
)

// Set by the linker.
var (
	version = "unknown"
	commit  = "unknown"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the program and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program().Run(ctx, args, stdout, stderr)
}

func program() *cli.Program {
	return &cli.Program{
		Name:  "splicectl",
		Short: "Demonstrate and measure spliced",
		Long: "Splicelab has the commands of splicectl that demonstrate and measure. Splicectl starts it:\n" +
			"call it as splicectl COMMAND.",
		Version: version,
		Part:    true,
		Groups: []cli.Group{
			{ID: "check", Title: "Check a GPU:"},
			{ID: "measure", Title: "Demonstrate and measure:"},
			{ID: "self", Title: "This program:"},
		},
		Commands: commands(),
	}
}

func commands() []cli.Command {
	return []cli.Command{
		gpuCheckCommand(), demoCommand(), demoClusterCommand(), replayCommand(), simulateCommand(), benchCommand(), tortureCommand(),
		gpuCheckChildCommand(), gpuCheckPartCommand(), echoCommand(), victimCommand(), loadCommand(), peerCommand(), crowdCommand(), visitorCommand(),
		cli.Man(program),
	}
}
