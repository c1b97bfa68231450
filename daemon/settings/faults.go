package settings

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spliced-kv/spliced/policy/profile"
)

// ErrConfig is wrapped by all errors of a configuration.
var ErrConfig = errors.New("bad configuration")

// Fault is an error of a setting.
type Fault struct {
	Setting, Text string

	at string // the place with the bad value; "" = where the setting was set last
}

// Faults collects the errors of a configuration. The zero value is empty.
type Faults struct {
	List    []Fault
	sources map[string]string // where a setting was set: a flag, a variable or a line of the file
}

// Add adds an error of a setting.
func (v *Faults) Add(setting, format string, args ...any) {
	v.List = append(v.List, Fault{Setting: setting, Text: fmt.Sprintf(format, args...)})
}

// Has reports whether there is an error of a setting.
func (v *Faults) Has(setting string) bool {
	return slices.ContainsFunc(v.List, func(f Fault) bool { return f.Setting == setting })
}

// Err returns v as an error that wraps ErrConfig; nil = there are no errors.
func (v *Faults) Err() error {
	if len(v.List) == 0 {
		return nil
	}
	return v
}

// Error lists all errors, each with the place where its setting was set.
func (v *Faults) Error() string {
	lines := make([]string, len(v.List))
	for i, f := range v.List {
		lines[i] = cmp.Or(f.at, v.place(f.Setting)) + ": " + f.Text
	}
	return ErrConfig.Error() + ": " + strings.Join(lines, "\n")
}

// Unwrap returns ErrConfig.
func (v *Faults) Unwrap() error { return ErrConfig }

// place returns where a setting was set. If that is unknown, it returns the name.
func (v *Faults) place(setting string) string {
	if at, ok := v.sources[setting]; ok {
		return at
	}
	if tenant, key, ok := strings.Cut(setting, "]."); ok {
		return v.place(tenant+"]") + ": " + key
	}
	return setting
}

// read records that a setting was set, and sets it.
func (v *Faults) read(setting, at string, value flag.Value, text string) {
	v.sources[setting] = at
	if err := value.Set(text); err != nil {
		v.addAt(at, setting, err.Error())
	}
}

// addAt adds an error of a value that another source may override.
func (v *Faults) addAt(at, setting, text string) {
	v.List = append(v.List, Fault{setting, text, at})
}

// checkRange adds the error of a setting that is out of range. If its range depends on other settings
// and only one of those was set, that is the one to correct.
func (v *Faults) checkRange(s *setting) {
	set := func(name string) bool { return v.sources[name] != "" }
	switch i := slices.IndexFunc(s.others, set); {
	case s.fault == nil:
	case i >= 0 && !set(s.name) && v.Has(s.others[i]): // which explains this one
	case i >= 0 && !set(s.name):
		v.Add(s.others[i], "does not fit %s, which was not set: %v", s.name, s.fault)
	case len(s.others) > 0:
		v.Add(s.name, "%v; the range depends on %s", s.fault, strings.Join(s.others, " and "))
	default:
		v.Add(s.name, "%v", s.fault)
	}
}

// clone returns a copy to which errors can be added.
func (v *Faults) clone() *Faults {
	return &Faults{slices.Clone(v.List), maps.Clone(v.sources)}
}

// suggestion returns a question with the known name that is most similar to an unknown one; "" = none
// is similar.
func suggestion(unknown string, known []string) string {
	best, least := "", 3+len(unknown)/8
	for _, name := range known {
		if d := profile.EditDistance(strings.ToLower(unknown), strings.ToLower(name)); d < least {
			best, least = name, d
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}
