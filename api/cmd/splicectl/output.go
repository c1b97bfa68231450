package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/show"
)

// call is one invocation: positional arguments and where output goes.
type call struct {
	args   []string
	flags  *pflag.FlagSet
	stdout io.Writer
	stderr io.Writer
	json   bool // a document is wanted, not a table

	output string // as the flag says
}

// Forms of output.
const (
	formTable = "table"
	formWide  = "wide"
	formJSON  = "json"
	formYAML  = "yaml"
)

func forms(listing bool) []string {
	if listing {
		return []string{formTable, formWide, formJSON, formYAML}
	}
	return []string{formTable, formJSON, formYAML}
}

func (c *call) formatFlags(fs *pflag.FlagSet, listing bool) {
	fs.StringVarP(&c.output, "output", "o", formTable, "`form` of the output: "+strings.Join(forms(listing), ", "))
	fs.BoolVar(&c.json, "json", false, "print one JSON document, as -o json")
}

// choose settles the form.
func (c *call) choose(listing bool) error {
	switch {
	case c.output == "": // it has no such flag
		return nil
	case !slices.Contains(forms(listing), c.output):
		return usagef("-o %q is none of %s", c.output, strings.Join(forms(listing), ", "))
	case c.json && c.flags.Changed("output") && c.output != formJSON:
		return usagef("-o %s and --json are two forms", c.output)
	case c.json:
		c.output = formJSON
	case c.output == formJSON || c.output == formYAML:
		c.json = true
	}
	return nil
}

// document prints one, as JSON or YAML.
func (c *call) document(v any) error {
	if c.output == formYAML {
		return show.YAML(c.stdout, v)
	}
	return show.JSON(c.stdout, v)
}

// conclude prints what was found, as a document or as print does, and fails when it is not
// well.
func (c *call) conclude(document any, print func(io.Writer) error, well bool) error {
	if c.json {
		print = func(io.Writer) error { return c.document(document) }
	}
	if err := print(c.stdout); err != nil || well {
		return err
	}
	return errFailed
}

// page prints a listing.
func (c *call) page(p *show.Page) error {
	if c.json {
		return c.document(p.Document())
	}
	return p.Write(c.stdout, c.output == formWide)
}

// ageText is how long ago something was, in one unit.
func ageText(then, now time.Time) string { return show.Age{At: then, Now: now}.String() }

func shortKey(s fmt.Stringer) string { return s.String()[:12] }
