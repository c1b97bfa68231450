package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
)

type diskFlags struct {
	deep  bool
	all   bool
	long  bool
	quiet bool
}

func diskCommand() cli.Command {
	return cli.Command{
		Name: "disk", Group: "check", Synopsis: "[flags] check|repair|dump DIR",
		Summary: "Check, repair or list the directory of a disk tier while no daemon runs on it",
		About: `check   compares slab files, catalogue, headers and manifests with each other and changes
        nothing. With --deep it also reads every payload, compares it with its digests,
        and counts the extents that verify but have no row in the catalogue.
repair  changes the directory so that check finds no problems, and removes as few objects
        as possible. It rewrites a damaged FORMAT file, if KEY and the slab files say what
        was in it, and damaged headers of slab files; it deletes the rows that a deep
        check finds wrong. It rebuilds a damaged catalogue from the slab files, and keeps
        the old one beside it. Evicted or removed objects that were not overwritten then
        come back. With --all they come back even if the catalogue is sound: use it for a
        catalogue of an earlier release that silently dropped rows from a damaged log.
        Objects that the disk cannot read are kept; a daemon drops those that it cannot
        read either. A directory with the KEY of another store is not changed.
dump    lists every row of the catalogue.

DIR is the directory that spliced was given with -disk. All three commands lock it, so
they refuse to run while a daemon uses it.

Exit status: 0 no problems, or all repaired; 1 problems found, or not all repaired;
2 wrong usage; 3 the directory was not checked or repaired, or not completely: it is in
use, missing, of another version or user, has another's KEY, or its file system has
errors.`,
		Examples: []string{"check /var/lib/spliced", "check --deep /var/lib/spliced --json", "repair /var/lib/spliced", "repair --all /var/lib/spliced", "dump --long /var/lib/spliced"},
		Words:    []string{"check", "repair", "dump"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f diskFlags
			fs.BoolVar(&f.deep, "deep", false, "check: also read all payloads and compare them with their digests")
			fs.BoolVar(&f.all, "all", false, "repair: also restore extents that verify but have no row in the catalogue")
			fs.BoolVar(&f.long, "long", false, "dump: print whole keys, and the location of each object")
			fs.BoolVar(&f.quiet, "quiet", false, "print no progress on standard error")
			return f.run
		},
	}
}

func (f *diskFlags) run(ctx context.Context, c *cli.Call) error {
	if len(c.Args) != 2 {
		return cli.Usagef("check, repair or dump, and a directory, not %q", c.Args)
	}
	verb, dir := c.Args[0], c.Args[1]
	if dir == "" {
		return cli.Usagef("%s: the directory has no name", verb)
	}
	if f.deep && verb != "check" {
		return cli.Usagef("--deep goes with check; repair is always deep")
	}
	if f.all && verb != "repair" {
		return cli.Usagef("--all goes with repair")
	}
	if f.long && verb != "dump" {
		return cli.Usagef("--long goes with dump")
	}
	o := offline.CheckOptions{Deep: f.deep, All: f.all}
	if !f.quiet {
		o.Progress = percentOn(c.Stderr, verb)
	}
	switch verb {
	case "check":
		r, err := offline.Check(ctx, dir, o)
		if err != nil {
			return notLookedAt(err)
		}
		return c.Conclude(r, func(w io.Writer) error { return printDiskReport(w, r) }, r.Clean())
	case "repair":
		return f.repair(ctx, c, dir, o)
	case "dump":
		return f.dump(ctx, c, dir)
	}
	return cli.Usagef("cannot %q a directory: check, repair or dump", verb)
}

// notLookedAt adds a remedy to an error that prevented the check, and gives it a separate exit
// code.
func notLookedAt(err error) error {
	remedy := ""
	switch {
	case errors.Is(err, volume.ErrLocked):
		remedy = "Stop the daemon that has it, and try again."
	case errors.Is(err, volume.ErrVersion):
		remedy = "Use the splicectl of that version, or delete the directory: the daemon begins a new one."
	case errors.Is(err, volume.ErrNotTier):
		remedy = "DIR is the -disk directory of spliced."
	case errors.Is(err, fs.ErrPermission):
		remedy = "Run this as the daemon's user."
	case errors.Is(err, volume.ErrKey), errors.Is(err, volume.ErrFormat), errors.Is(err, volume.ErrForeign):
		return cli.StatusError{Status: cli.ExitRefused, Err: fmt.Errorf("%w. Nothing was changed.", err)}
	case errors.Is(err, context.Canceled):
		return err
	}
	if remedy != "" {
		err = fmt.Errorf("%w\n%s", err, remedy)
	}
	return cli.StatusError{Status: cli.ExitRefused, Err: err}
}

// repaired is the JSON form of a repair.
type repaired struct {
	Found offline.Report `json:"found"` // problems found before and during the repair
	Clean bool           `json:"clean"` // there are no problems after the repair
	Now   offline.Report `json:"now"`
}

// repair checks the directory again after the repair, so that its result is current.
func (f *diskFlags) repair(ctx context.Context, c *cli.Call, dir string, o offline.CheckOptions) error {
	found, err := offline.Repair(ctx, dir, o)
	if err != nil {
		return notLookedAt(err)
	}
	now, err := offline.Check(ctx, dir, offline.CheckOptions{})
	if err != nil {
		return err
	}
	clean := now.Clean() && found.Unread == 0
	return c.Conclude(repaired{Found: *found, Clean: clean, Now: *now}, func(w io.Writer) error { return printRepair(w, found, now) }, clean)
}

func printRepair(w io.Writer, found, now *offline.Report) error {
	printProblems(w, found)
	if found.Format {
		fmt.Fprintln(w, "FORMAT was written anew")
	}
	if found.Restored > 0 {
		fmt.Fprintf(w, "%d headers of slab files were written anew\n", found.Restored)
	}
	if found.Removed > 0 {
		fmt.Fprintf(w, "%d slab files that held nothing were removed\n", found.Removed)
	}
	switch {
	case found.Rebuilt:
		fmt.Fprintf(w, "the catalogue was made anew from the slab files: %d segments and %d checkpoints are in it, %d extents are not\n",
			now.Segments, now.Checkpoints, found.Forgotten)
		if found.KeptIndex != "" {
			fmt.Fprintf(w, "the old one is kept as %s and may be deleted\n", found.KeptIndex)
		}
	case found.Forgotten > 0:
		fmt.Fprintf(w, "%d rows were deleted\n", found.Forgotten)
	case found.Restored+found.Removed+found.TakenUp == 0 && !found.Format:
		fmt.Fprintln(w, "nothing was changed")
	}
	if found.TakenUp > 0 {
		fmt.Fprintf(w, "%d extents that verify were given the rows that they did not have\n", found.TakenUp)
	}
	if found.Unread > 0 {
		fmt.Fprintf(w, "%d entries cannot be checked and were kept\n", found.Unread)
	}
	fmt.Fprintln(w, "now:")
	return printDiskReport(w, now)
}

func printDiskReport(w io.Writer, r *offline.Report) error {
	if r.Store == "" { // nothing could be examined
		printProblems(w, r)
		return nil
	}
	t := show.NewTable(w)
	t.Row("store", r.Store+fmt.Sprintf(" (version %d)", r.Version))
	t.Row("slab files", fmt.Sprintf("%d of %s, in granules of %s", r.Slabs, show.Bytes(r.SlabBytes), show.Bytes(r.GranuleBytes)))
	t.Row("segments", fmt.Sprintf("%d in %s", r.Segments, show.Bytes(r.SegmentBytes)))
	t.Row("checkpoints", fmt.Sprintf("%d in %s", r.Checkpoints, show.Bytes(r.CheckpointBytes)))
	t.Row("free", show.Bytes(r.FreeBytes))
	t.Row("profiles", r.Profiles)
	if r.Rowless > 0 {
		t.Row("without a row", fmt.Sprintf("%d extents in %s: evicted or removed, or lost with damage of the catalogue", r.Rowless, show.Bytes(r.RowlessBytes)))
	}
	if r.PayloadBytes > 0 {
		t.Row("payload read", show.Bytes(r.PayloadBytes))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Clean() {
		_, err := fmt.Fprintln(w, "nothing is wrong")
		return err
	}
	printProblems(w, r)
	return nil
}

func printProblems(w io.Writer, r *offline.Report) {
	for _, p := range r.Problems {
		fmt.Fprintf(w, "! %s\n", p)
	}
	if n := len(r.Problems) + r.MoreProblems; n > 0 {
		fmt.Fprintf(w, "%d wrong\n", n)
	}
}

// rowsOut is the JSON form of a dump.
type rowsOut struct {
	Rows []offline.DumpRow `json:"rows"`
}

func (f *diskFlags) dump(ctx context.Context, c *cli.Call, dir string) error {
	out := rowsOut{Rows: []offline.DumpRow{}}
	err := offline.Dump(ctx, dir, func(r offline.DumpRow) error {
		out.Rows = append(out.Rows, r)
		return nil
	})
	if err != nil {
		return notLookedAt(err)
	}
	if c.JSON {
		return c.Document(out)
	}
	head := []string{"KIND", "KEY", "GENERATION", "ROWS", "RANKS", "BYTES", "CODED", "CREATED", "USED", "TENANT", "MODEL"}
	if f.long {
		head = append(head, "RUNS")
	}
	t := show.NewTable(c.Stdout, head...)
	for _, r := range out.Rows {
		key := r.Key
		if !f.long {
			key = key[:12]
		}
		cells := []any{r.Kind, key, r.Generation, fmt.Sprintf("%d-%d", r.Begin, r.End), r.Ranks, show.Bytes(r.Bytes), r.Coded,
			r.Created.Format(time.DateTime), r.Used.Format(time.DateTime), r.Tenant, r.Model}
		if f.long {
			runs := ""
			for _, run := range r.Runs {
				runs += fmt.Sprintf(" %d:%d+%d", run.Slab, run.Off, run.Len)
			}
			cells = append(cells, runs)
		}
		t.Row(cells...)
	}
	return t.Flush()
}

// percentOn returns a function that writes a line for each tenth done.
func percentOn(w io.Writer, what string) func(done, total int64) {
	last := int64(0)
	return func(done, total int64) {
		if tenth := 10 * done / max(total, 1); tenth > last {
			last = tenth
			fmt.Fprintf(w, "%s: %d %%\n", what, 10*tenth)
		}
	}
}
