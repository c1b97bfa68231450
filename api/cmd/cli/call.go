package cli

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

// Call is one invocation: positional arguments and output streams.
type Call struct {
	Args   []string
	Flags  *pflag.FlagSet
	Stdout io.Writer
	Stderr io.Writer
	JSON   bool // print a document, not a table

	Output string // one of the forms; empty = the command has none
}

// Forms of output.
const (
	FormTable = "table"
	FormWide  = "wide"
	FormJSON  = "json"
	FormYAML  = "yaml"
)

func forms(listing bool) []string {
	if listing {
		return []string{FormTable, FormWide, FormJSON, FormYAML}
	}
	return []string{FormTable, FormJSON, FormYAML}
}

func (c *Call) formatFlags(fs *pflag.FlagSet, listing bool) {
	fs.StringVarP(&c.Output, "output", "o", FormTable, "output `format`: "+strings.Join(forms(listing), ", "))
	fs.BoolVar(&c.JSON, "json", false, "print one JSON document (same as -o json)")
}

// choose sets the form of the output.
func (c *Call) choose(listing bool) error {
	switch {
	case c.Output == "": // it has no such flag
		return nil
	case !slices.Contains(forms(listing), c.Output):
		return Usagef("-o %q is none of %s", c.Output, strings.Join(forms(listing), ", "))
	case c.JSON && c.Flags.Changed("output") && c.Output != FormJSON:
		return Usagef("-o %s and --json are two forms", c.Output)
	case c.JSON:
		c.Output = FormJSON
	case c.Output == FormJSON || c.Output == FormYAML:
		c.JSON = true
	}
	return nil
}

// Document prints a document as JSON or YAML.
func (c *Call) Document(v any) error {
	if c.Output == FormYAML {
		return show.YAML(c.Stdout, v)
	}
	return show.JSON(c.Stdout, v)
}

// Conclude prints a result: as a document for programs, or with the function print for people. It
// returns an error unless the parameter well is true.
func (c *Call) Conclude(document any, print func(io.Writer) error, well bool) error {
	if c.JSON {
		print = func(io.Writer) error { return c.Document(document) }
	}
	if err := print(c.Stdout); err != nil || well {
		return err
	}
	return ErrFailed
}

// Page prints a listing.
func (c *Call) Page(p *show.Page) error {
	if c.JSON {
		return c.Document(p.Document())
	}
	return p.Write(c.Stdout, c.Output == FormWide)
}
