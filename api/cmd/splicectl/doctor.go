package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/doctor"
	"github.com/spliced-kv/spliced/connector"
)

// diagnosis is the JSON form of doctor.
type diagnosis struct {
	State  string         `json:"state"` // worst state of the checks
	Socket string         `json:"socket"`
	Checks []doctor.Check `json:"checks"`
}

type doctorFlags struct {
	target target
	socket string
	tenant string
	token  string
	self   bool
	daemon string
	gpu    bool
	driver string
}

func doctorCommand() cli.Command {
	return cli.Command{
		Name: "doctor", Group: "check", Synopsis: cli.FlagsOnly,
		Summary:  "Check that spliced works on this machine: kernel, socket, memory, GPU, layouts and a round trip",
		Examples: []string{"", "--self", "--self --gpu", "--socket /run/spliced/spliced.sock --json", "--tenant team-a --tenant-token-file team-a.token"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f doctorFlags
			f.target.flagsWith(fs, slowTimeout) // the test of an object store takes a while
			fs.StringVar(&f.socket, "socket", "", "engine socket `path` (default $SPLICED_SOCKET, or where spliced listens by default)")
			fs.StringVar(&f.tenant, "tenant", "", "`tenant` to check with (default: the tenant named default)")
			fs.StringVar(&f.token, "tenant-token-file", "", "`file` with the token of that tenant")
			fs.BoolVar(&f.self, "self", false, "start a temporary daemon and check it")
			fs.StringVar(&f.daemon, "daemon", "", "`path` of spliced for --self (default: beside this program, or in PATH)")
			fs.BoolVar(&f.gpu, "gpu", false, "with --self: also share GPU memory and check it")
			fs.StringVar(&f.driver, "driver", "", "`path` of the CUDA driver library (default libcuda.so.1)")
			return f.run
		},
	}
}

func (f *doctorFlags) run(ctx context.Context, c *cli.Call) error {
	if f.self && (f.socket != "" || f.target.named() || f.tenant != "") {
		return cli.Usagef("--self examines its own daemon: leave out --socket, --admin, --context and --tenant")
	}
	if f.gpu && !f.self {
		return cli.Usagef("--gpu is for --self: another daemon's GPU is examined in any case")
	}
	if f.token != "" && f.tenant == "" {
		return cli.Usagef("--tenant-token-file goes with --tenant")
	}
	if !f.self {
		return f.examine(ctx, c)
	}
	args := []string{"-arena", "64MiB", "-private", "16MiB"}
	if f.gpu {
		args = append(args, "-hbm-public", "64MiB", "-hbm-library", f.driver)
	}
	d, err := child.Start(ctx, child.Options{Binary: f.daemon, Args: args})
	if err != nil {
		return err
	}
	f.socket, f.target.admin = d.Socket, d.Admin
	return errors.Join(f.examine(ctx, c), d.Stop())
}

func (f *doctorFlags) examine(ctx context.Context, c *cli.Call) error {
	o := doctor.Options{Socket: f.socket, Library: f.driver, Tenant: f.tenant}
	o.Socket = cmp.Or(o.Socket, connector.DefaultSocket())
	// The context in use may name a daemon on another machine.
	if !f.target.named() && (f.socket != "" || os.Getenv("SPLICED_ADMIN_SOCKET") == "") {
		f.target.admin = api.SocketBeside(o.Socket)
	}
	var err error
	if f.token != "" {
		if o.TenantToken, err = readToken(f.token); err != nil {
			return err
		}
	}
	if o.Admin, err = f.target.client(); err != nil {
		return err
	}
	defer o.Admin.Close()
	d := diagnosis{Socket: o.Socket, Checks: doctor.Run(ctx, o)}
	d.State = doctor.Worst(d.Checks)
	return c.Conclude(d, d.print, d.State != doctor.Fail)
}

func (d *diagnosis) print(w io.Writer) error {
	t := show.NewTable(w, "STATE", "CHECK", "")
	for _, check := range d.Checks {
		t.Row(check.State, check.Name, check.Detail)
		if check.Remedy != "" {
			t.Row("", "", "→ "+check.Remedy)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	verdict := map[string]string{
		doctor.OK:   "All is well.",
		doctor.Warn: "It works, with limitations.",
		doctor.Fail: "It does not work yet: see the remedies.",
	}[d.State]
	_, err := fmt.Fprintf(w, "\n%s\n", verdict)
	return err
}
