package settings

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Sources are the sources of a configuration.
type Sources struct {
	Args     []string // command line without the program's name
	Environ  []string // os.Environ()
	ReadFile func(string) ([]byte, error)
	// ReadSecret reads the file of a tenant's token, as the function ReadSecret does.
	ReadSecret func(path string) (secret, warning string, err error)
	Output     io.Writer // where -help is written
}

// ProcessSources returns the sources of this process.
func ProcessSources() Sources {
	return Sources{Args: os.Args[1:], Environ: os.Environ(), ReadFile: readConfig, ReadSecret: ReadSecret, Output: os.Stdout}
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
// -config or SPLICED_CONFIG, which overrides the default. The error is flag.ErrHelp if help was
// printed. The caller must still resolve and validate the configuration: Validate also returns the
// errors of the sources.
func Load(from Sources) (Config, Invocation, error) {
	config := Default()
	v := &config.loaded
	v.sources = map[string]string{}
	environment := map[string]string{}
	for _, entry := range from.Environ {
		name, value, _ := strings.Cut(entry, "=")
		environment[name] = value
	}
	var run Invocation
	var file string
	fs := flag.NewFlagSet("spliced", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&file, "config", environment[configEnv], "YAML `file` to read")
	fs.BoolVar(&run.Version, "version", false, "print the version and exit")
	fs.BoolVar(&run.Check, "check", false, "check the configuration and exit")
	// Flags are parsed first, because of -config. They are applied last, since they override.
	given := map[string]string{}
	settings := config.settings()
	for _, s := range settings {
		fs.Func(s.name, s.about, func(v string) error { given[s.name] = v; return nil })
	}
	if err := parseFlags(v, fs, from.Args); err != nil {
		printHelp(from.Output, settings)
		return config, run, err
	}
	if file != "" {
		by := configEnv
		fs.Visit(func(f *flag.Flag) {
			if f.Name == "config" {
				by = "-config"
			}
		})
		config.readFile(v, by, file, from.ReadFile)
	}
	variables := []string{configEnv}
	for _, s := range settings {
		variables = append(variables, s.env())
		if text := environment[s.env()]; text != "" {
			v.read(s.name, s.env(), s.value, text)
		}
		if text, ok := given[s.name]; ok {
			v.read(s.name, "-"+s.name, s.value, text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		if strings.HasPrefix(name, "SPLICED_") && environment[name] != "" && !slices.Contains(variables, name) && !foreign.MatchString(name) {
			run.Warnings = append(run.Warnings, name+" is ignored: there is no such setting"+suggestion(name, variables))
		}
	}
	config.objectEnvironment(func(name string) string { return environment[name] })
	run.Warnings = append(run.Warnings, config.readTokens(v, from.ReadSecret)...)
	return config, run, nil
}

const configEnv = "SPLICED_CONFIG"

// foreign matches environment variables that are not for the daemon: the variable of its clients, and
// those that Kubernetes sets for a Service whose name is spliced or begins with spliced-.
var foreign = regexp.MustCompile(`^SPLICED_(DAEMON_UID|(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?))$`)

// parseFlags parses a command line. It goes on after an error. The error is flag.ErrHelp.
func parseFlags(v *Faults, fs *flag.FlagSet, args []string) error {
	for len(args) > 0 {
		err := fs.Parse(args)
		rest := fs.Args()
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		if err == nil || strings.HasPrefix(err.Error(), "bad flag syntax") { // which is left in rest
			if len(rest) > 0 {
				v.Add("arguments", "%q is not a flag", rest[0])
				rest = rest[1:]
			}
			args = rest
			continue
		}
		name, value, hasValue := strings.Cut(strings.TrimLeft(args[len(args)-len(rest)-1], "-"), "=")
		switch {
		case fs.Lookup(name) == nil:
			var known []string
			fs.VisitAll(func(f *flag.Flag) { known = append(known, "-"+f.Name) })
			v.Add("-"+name, "unknown flag%s", suggestion("-"+name, known))
			if !hasValue && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				rest = rest[1:] // its value
			}
		case hasValue: // of -check or -version
			v.Add("-"+name, "%q is neither true nor false", value)
		default:
			v.Add("-"+name, "needs a value")
		}
		args = rest
	}
	return nil
}

// readFile applies a YAML file: a mapping of settings, and the list of tenants. The parameter by is
// the flag or variable that names the file.
func (c *Config) readFile(v *Faults, by, path string, read func(string) ([]byte, error)) {
	data, err := read(path)
	if err != nil {
		v.Add(by, "%v", err)
		return
	}
	var root, more yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	if err := documents.Decode(&root); errors.Is(err, io.EOF) {
		return // the file is empty, or has comments only
	} else if err != nil {
		v.Add(path, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	if err := documents.Decode(&more); err == nil {
		v.Add(path, "line %d: only one YAML document is allowed", more.Line)
	} else if !errors.Is(err, io.EOF) {
		v.Add(path, "after the first document: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(root.Content) == 0 {
		return
	}
	top := root.Content[0]
	if top.Kind != yaml.MappingNode {
		v.Add(path, "line %d: not a mapping of settings", top.Line)
		return
	}
	byKey, keys := map[string]setting{}, []string{"tenants"}
	for _, s := range c.settings() {
		byKey[s.key()] = s
		keys = append(keys, s.key())
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, node := top.Content[i], top.Content[i+1]
		at := fmt.Sprintf("%s line %d: %s", path, key.Line, key.Value)
		s, known := byKey[key.Value]
		switch {
		case seen[key.Value]:
			v.Add(at, "appears twice")
		case key.Value == "tenants":
			v.sources["tenants"] = at
			c.readTenants(v, path, node)
		case !known:
			v.Add(at, "unknown setting%s", suggestion(key.Value, keys))
		default:
			v.readNode(s.name, at, s.value, node)
		}
		seen[key.Value] = true
	}
}

// readTenants replaces the tenants by those of the file.
func (c *Config) readTenants(v *Faults, path string, list *yaml.Node) {
	if list = followed(list); list.Kind != yaml.SequenceNode {
		v.Add("tenants", "want a list of tenants, each with a name")
		return
	}
	c.Tenants = make([]Tenant, len(list.Content))
	for i, item := range list.Content {
		at, t := tenantAt(i), &c.Tenants[i]
		item = followed(item)
		var nodes map[string]yaml.Node // a mapping merged into this one (<<) is included
		err := item.Decode(&nodes)
		label := strconv.Itoa(i + 1)
		if name := nodes["name"]; name.Value != "" {
			label = fmt.Sprintf("%.64q", name.Value)
		}
		v.sources[at] = fmt.Sprintf("%s line %d: tenant %s", path, item.Line, label)
		if item.Kind != yaml.MappingNode {
			v.Add(at, "want keys and values, such as name: search")
			continue
		}
		if bad, ok := errors.AsType[*yaml.TypeError](err); ok {
			v.Add(at, "%s", strings.Join(bad.Errors, ", "))
		} else if err != nil {
			v.Add(at, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		values := map[string]flag.Value{
			"name": (*text)(&t.Name), "token": (*text)(&t.Token), "token_file": (*text)(&t.TokenFile), "salt": (*text)(&t.Salt),
			"quota": &t.Quota, "parallel": (*truth)(&t.Parallel),
		}
		for _, key := range slices.Sorted(maps.Keys(nodes)) {
			node := nodes[key]
			where := fmt.Sprintf("%s line %d: tenant %s: %s", path, node.Line, label, key)
			value, known := values[key]
			switch {
			case !known:
				v.Add(where, "unknown key%s", suggestion(key, slices.Sorted(maps.Keys(values))))
			case node.Tag != "!!null":
				v.readNode(at+"."+key, where, value, followed(&node))
			}
		}
	}
}

// followed returns the node that an alias stands for.
func followed(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// readNode reads a setting from a value in the file, or from a list of values if it takes a list.
func (v *Faults) readNode(setting, at string, value flag.Value, node *yaml.Node) {
	_, ids := value.(*idList)
	_, names := value.(*nameList)
	parts := []*yaml.Node{node}
	want := "one value"
	if ids || names {
		want = "a value or a list of values"
		if node.Kind == yaml.SequenceNode {
			parts = node.Content
		}
	}
	var texts []string
	for _, part := range parts {
		if part.Kind != yaml.ScalarNode || part.Tag == "!!null" {
			v.sources[setting] = at
			v.addAt(at, setting, "want "+want)
			return
		}
		texts = append(texts, part.Value)
	}
	v.read(setting, at, value, strings.Join(texts, ","))
}

func (c *Config) readTokens(v *Faults, read func(string) (string, string, error)) (warnings []string) {
	for i := range c.Tenants {
		t := &c.Tenants[i]
		if t.TokenFile == "" {
			continue
		}
		at := tenantAt(i) + ".token_file"
		if t.Token != "" {
			v.Add(at, "set either token or token_file, not both")
		}
		secret, warning, err := read(t.TokenFile)
		if err != nil {
			v.Add(at, "%v", err) // not ignored: without a token any client could use the tenant
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
