package settings

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Sources are the sources of a configuration.
type Sources struct {
	Args     []string            // command line without the program's name
	Getenv   func(string) string // os.Getenv
	ReadFile func(string) ([]byte, error)
	// ReadSecret reads the file of a tenant's token, as the function ReadSecret does.
	ReadSecret func(path string) (secret, warning string, err error)
	Output     io.Writer // where -help is written
}

// ProcessSources returns the sources of this process.
func ProcessSources() Sources {
	return Sources{Args: os.Args[1:], Getenv: os.Getenv, ReadFile: readConfig, ReadSecret: ReadSecret, Output: os.Stdout}
}

// maxConfig, in bytes, has space for thousands of tenants.
const maxConfig = 4 << 20

// readConfig reads a configuration file, which may be a pipe.
func readConfig(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAtMost(f, maxConfig)
}

// readAtMost reads a whole file. It returns an error if the file has more than the given number of
// bytes.
func readAtMost(f *os.File, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s has more than %d bytes", f.Name(), most)
	}
	return data, err
}

// Invocation holds the command-line options that are not settings.
type Invocation struct {
	Version bool // print the version and exit
	Check   bool // check the configuration and exit
	// Warnings are messages for the log about settings that are valid but unwise.
	Warnings []string
}

// Libraries for reading settings (koanf, viper, ff) were rejected. With koanf this file had 35 lines
// less and the program 90 KB more. Errors lost their line, a key that appears twice hid all other
// errors of the file, and YAML changed text that looks like a number or a date: 010 became 8.

// Load reads a configuration. A flag overrides the environment, which overrides the file named by
// -config or SPLICED_CONFIG, which overrides the default. The error lists all bad sources;
// flag.ErrHelp means that help was printed. The caller must still resolve and validate the
// configuration.
func Load(from Sources) (Config, Invocation, error) {
	config := Default()
	var run Invocation
	var file string
	fs := flag.NewFlagSet("spliced", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&file, "config", from.Getenv("SPLICED_CONFIG"), "YAML `file` to read")
	fs.BoolVar(&run.Version, "version", false, "print the version and exit")
	fs.BoolVar(&run.Check, "check", false, "check the configuration and exit")
	// Flags are parsed first, because of -config. They are applied last, since they override.
	given := map[string]string{}
	settings := config.settings()
	for _, s := range settings {
		fs.Func(s.name, s.about, func(v string) error { given[s.name] = v; return nil })
	}
	if err := fs.Parse(from.Args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printHelp(from.Output, settings)
			return config, run, err
		}
		return config, run, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	v := &faults{}
	if fs.NArg() > 0 {
		v.add("arguments", "%q is not a flag", fs.Arg(0))
	}
	if file != "" {
		config.readFile(v, file, from.ReadFile)
	}
	for _, s := range settings {
		if text := from.Getenv(s.env()); text != "" {
			v.set(s.env(), s.value, text)
		}
		if text, ok := given[s.name]; ok {
			v.set("-"+s.name, s.value, text)
		}
	}
	config.objectEnvironment(from.Getenv)
	run.Warnings = config.readTokens(v, from.ReadSecret)
	return config, run, v.err()
}

func (v *faults) set(name string, value flag.Value, text string) {
	if err := value.Set(text); err != nil {
		v.add(name, "%v", err)
	}
}

// readFile applies a YAML file: a mapping of settings, and the list of tenants.
func (c *Config) readFile(v *faults, path string, read func(string) ([]byte, error)) {
	data, err := read(path)
	if err != nil {
		v.add("config", "%v", err)
		return
	}
	var root, more yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	if err := documents.Decode(&root); errors.Is(err, io.EOF) {
		return // the file is empty, or has comments only
	} else if err != nil {
		v.add(path, "%v", err)
		return
	}
	if err := documents.Decode(&more); err == nil {
		v.add(path, "line %d: only one YAML document is allowed", more.Line)
	} else if !errors.Is(err, io.EOF) {
		v.add(path, "after the first document: %v", err)
	}
	if len(root.Content) == 0 {
		return
	}
	top := root.Content[0]
	if top.Kind != yaml.MappingNode {
		v.add(path, "line %d: not a mapping of settings", top.Line)
		return
	}
	byKey := map[string]setting{}
	for _, s := range c.settings() {
		byKey[s.key()] = s
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, node := top.Content[i], top.Content[i+1]
		at := fmt.Sprintf("%s line %d: %s", path, key.Line, key.Value)
		s, known := byKey[key.Value]
		switch {
		case seen[key.Value]:
			v.add(at, "appears twice")
		case key.Value == "tenants":
			if err := node.Decode(&c.Tenants); err != nil {
				v.add(at, "%v", err)
			}
		case !known:
			v.add(at, "unknown setting")
		default:
			if text, ok := scalars(node); ok {
				v.set(at, s.value, text)
			} else {
				v.add(at, "want a value or a list of values")
			}
		}
		seen[key.Value] = true
	}
}

// UnmarshalYAML also refuses unknown keys, which the decoder of a node accepts.
func (t *Tenant) UnmarshalYAML(node *yaml.Node) error {
	type fields Tenant
	var all struct {
		Known   fields               `yaml:",inline"`
		Unknown map[string]yaml.Node `yaml:",inline"`
	}
	bad := &yaml.TypeError{}
	if err := node.Decode(&all); err != nil && !errors.As(err, &bad) {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(all.Unknown)) {
		bad.Errors = append(bad.Errors, fmt.Sprintf("line %d: unknown key %s", all.Unknown[key].Line, key))
	}
	if len(bad.Errors) > 0 {
		return bad
	}
	*t = Tenant(all.Known)
	return nil
}

// UnmarshalYAML parses a size as flags do.
func (b *Bytes) UnmarshalYAML(node *yaml.Node) error {
	if err := b.Set(node.Value); err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %v", node.Line, err)}}
	}
	return nil
}

// scalars returns the text of a value, or the values of a list joined by commas. It returns false
// for anything else.
func scalars(node *yaml.Node) (string, bool) {
	switch node.Kind {
	case yaml.ScalarNode:
		return node.Value, node.Tag != "!!null"
	case yaml.SequenceNode:
		var parts []string
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				return "", false
			}
			parts = append(parts, item.Value)
		}
		return strings.Join(parts, ","), true
	}
	return "", false
}

func (c *Config) readTokens(v *faults, read func(string) (string, string, error)) (warnings []string) {
	for i := range c.Tenants {
		t := &c.Tenants[i]
		if t.TokenFile == "" {
			continue
		}
		at := fmt.Sprintf("tenants[%d]", i)
		if t.Token != "" {
			v.add(at, "set either token or token_file, not both")
		}
		secret, warning, err := read(t.TokenFile)
		if err != nil {
			v.add(at, "%v", err) // not ignored: without a token any client could use the tenant
			continue
		}
		t.Token = secret
		if warning != "" {
			warnings = append(warnings, warning)
		}
	}
	return warnings
}

func printHelp(w io.Writer, settings []setting) {
	fmt.Fprint(w, "spliced keeps reusable model state for the engines of this node.\n\n",
		"  -config FILE\n\tYAML file; the keys are the names below with _ for -\n",
		"  -check\n\tcheck the configuration and exit\n",
		"  -version\n\tprint the version and exit\n")
	for _, s := range settings {
		fmt.Fprintf(w, "  -%s (%s)\n\t%s\n\t%s", s.name, s.env(), s.about, s.bound)
		if s.isZero() {
			fmt.Fprintf(w, "; default: %s\n", s.zero)
		} else {
			fmt.Fprintf(w, "; default %s\n", s.value)
		}
	}
}
