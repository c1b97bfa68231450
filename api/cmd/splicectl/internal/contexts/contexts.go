// Package contexts stores names for daemons in a file of the user.
package contexts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Environment is the variable that names another file.
const Environment = "SPLICECTL_CONTEXTS"

// Bounds of the file.
const (
	maxContexts  = 1000
	maxFileBytes = 1 << 20
)

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Context is a daemon's admin address with the caller's credentials.
type Context struct {
	Name      string `yaml:"name" json:"name"`
	Admin     string `yaml:"admin" json:"admin"`
	TokenFile string `yaml:"token_file,omitempty" json:"token_file,omitempty"`
}

// File is the content of the file.
type File struct {
	Current  string    `yaml:"current,omitempty"`
	Contexts []Context `yaml:"contexts"`
}

// Path returns the file's path: spliced/contexts.yaml in the user's configuration directory.
func Path() (string, error) {
	if path := os.Getenv(Environment); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("cannot find the file of contexts: %w; set %s to its path", err, Environment)
	}
	return filepath.Join(dir, "spliced", "contexts.yaml"), nil
}

// Load reads the file. It returns an empty one if there is none, or if its location is unknown.
func Load() (*File, error) {
	path, err := Path()
	if err != nil {
		return &File{}, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &File{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err // names the file
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxFileBytes)
	}
	var out File
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&out); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", path, yamlFault(err))
	}
	if err := out.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &out, nil
}

var unknownKey = regexp.MustCompile(`field (\S+) not found in type \S+`)

// yamlFault returns an error of package yaml in words of the document.
func yamlFault(err error) error {
	if wrong, ok := errors.AsType[*yaml.TypeError](err); ok {
		err = errors.New(strings.Join(wrong.Errors, "; "))
	}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	return errors.New(unknownKey.ReplaceAllString(text, "unknown key $1"))
}

func (f *File) check() error {
	if len(f.Contexts) > maxContexts {
		return fmt.Errorf("%d contexts, %d are allowed", len(f.Contexts), maxContexts)
	}
	names := map[string]bool{}
	for _, c := range f.Contexts {
		switch {
		case !nameForm.MatchString(c.Name):
			return fmt.Errorf("invalid context name %q: want 1 to 64 letters, digits, dots, dashes and underscores", c.Name)
		case c.Admin == "":
			return fmt.Errorf("context %s has no admin address", c.Name)
		case names[c.Name]:
			return fmt.Errorf("context %s is defined twice", c.Name)
		}
		names[c.Name] = true
	}
	if f.Current != "" && !names[f.Current] {
		return fmt.Errorf("the current context %q does not exist", f.Current)
	}
	return nil
}

// Find returns a context by name.
func (f *File) Find(name string) (Context, bool) {
	i := slices.IndexFunc(f.Contexts, func(c Context) bool { return c.Name == name })
	if i < 0 {
		return Context{}, false
	}
	return f.Contexts[i], true
}

// Put adds a context, or replaces one of the same name. The first one becomes the current one.
func (f *File) Put(c Context) {
	if i := slices.IndexFunc(f.Contexts, func(o Context) bool { return o.Name == c.Name }); i >= 0 {
		f.Contexts[i] = c
		return
	}
	f.Contexts = append(f.Contexts, c)
	if len(f.Contexts) == 1 {
		f.Current = c.Name
	}
}

// Remove removes a context, and reports whether it existed.
func (f *File) Remove(name string) bool {
	n := len(f.Contexts)
	f.Contexts = slices.DeleteFunc(f.Contexts, func(c Context) bool { return c.Name == name })
	if f.Current == name {
		f.Current = ""
	}
	return len(f.Contexts) < n
}

// Save writes the file atomically.
func (f *File) Save() (err error) {
	if err := f.check(); err != nil {
		return err
	}
	path, err := Path()
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(path), ".contexts-*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(next.Name()))
		}
	}()
	_, err = next.Write(text)
	if err = errors.Join(err, next.Close()); err != nil {
		return err
	}
	return os.Rename(next.Name(), path)
}
