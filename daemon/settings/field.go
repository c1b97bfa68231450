package settings

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spliced-kv/spliced/policy"
)

// field is a field of Config: its text form, its range, and whether its current value is in range.
type field struct {
	value flag.Value // sets and prints the field
	bound string     // unit and range, for operators
	fault error      // what is wrong with the current value; nil = nothing
	// others are the settings that the range depends on.
	others []string
}

// as replaces the text of the range. In the new text, %s stands for the old one.
func (f field) as(bound string) field {
	f.bound = strings.Replace(bound, "%s", f.bound, 1)
	return f
}

// unless allows a special value outside the range, such as 0.
func (f field) unless(special bool) field {
	if special {
		f.fault = nil
	}
	return f
}

// with names the settings that the range depends on.
func (f field) with(others ...string) field {
	f.others = others
	return f
}

// isZero reports whether operators are shown the meaning of the value instead of the value.
func (f *field) isZero() bool {
	s := f.value.String()
	return s == "" || s == "0" || s == "0B"
}

// free returns a field without a range, or with one that a method of Config checks.
func free(value flag.Value, bound string) field { return field{value: value, bound: bound} }

func onOff(p *bool) field { return free((*toggle)(p), "on or off") }

func count(p *int, low, top int) field { return ranged((*integer)(p), p, low, top) }

func duration(p *time.Duration, low, top time.Duration) field {
	return ranged((*interval)(p), p, low, top)
}

func size(p *Bytes, low, top Bytes) field { return ranged(p, p, low, top).as("bytes, %s") }

func ranged[T cmp.Ordered](value flag.Value, p *T, low, top T) field {
	f := free(value, limit(low)+" to "+limit(top))
	if *p < low || *p > top {
		f.fault = fmt.Errorf("%s is not between %s and %s", limit(*p), limit(low), limit(top))
	}
	return f
}

// limit returns a value as text, whole minutes and hours without zeros: 1h, not 1h0m0s.
func limit(v any) string {
	text := fmt.Sprint(v)
	if d, ok := v.(time.Duration); ok && d != 0 && d%time.Minute == 0 {
		text = strings.TrimSuffix(text, "0s")
		if d%time.Hour == 0 {
			text = strings.TrimSuffix(text, "0m")
		}
	}
	return text
}

// Limits of allocation units.
const (
	leastUnit  = 4 * KiB
	maxPage    = 16 * MiB
	maxGranule = MiB
)

// unit returns a field for an allocation unit.
func unit(p *Bytes, top Bytes) field {
	f := free(p, fmt.Sprintf("bytes, a power of two, %v to %v", leastUnit, top))
	if unitOf(*p, top) != *p {
		f.fault = fmt.Errorf("%v is not a power of two between %v and %v", *p, leastUnit, top)
	}
	return f
}

// unitOf returns an allocation unit. If it is out of range, it returns the least unit, so that
// sizes that depend on the unit are not reported too.
func unitOf(n, top Bytes) Bytes {
	if n < leastUnit || n > top || n&(n-1) != 0 {
		return leastUnit
	}
	return n
}

// choice returns a field for one of a few words.
func choice(p *string, words ...string) field {
	last := len(words) - 1
	f := free((*text)(p), strings.Join(words[:last], ", ")+" or "+words[last])
	if !slices.Contains(words, *p) {
		f.fault = fmt.Errorf("%q is not one of %s", *p, strings.Join(words, ", "))
	}
	return f
}

// eviction returns a field for the name of an eviction policy.
func eviction(p *string, bound string) field {
	f := free((*text)(p), bound)
	if _, ok := policy.Named(*p); !ok {
		f.fault = fmt.Errorf("%q is not one of lru, gdsf, marconi, default", *p)
	}
	return f
}

// path returns a field for the path of a file.
func path(p *string, bound string) field { return limited(p, maxPath).as(bound) }

// limited returns a field for text of at most so many bytes.
func limited(p *string, most int) field {
	f := free((*text)(p), fmt.Sprintf("at most %d bytes", most))
	if f.fault = plain(*p); f.fault == nil && len(*p) > most {
		f.fault = fmt.Errorf("%d bytes, at most %d", len(*p), most)
	}
	return f
}

// plain refuses text that the kernel would truncate or that cannot be displayed.
func plain(text string) error {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Errorf("%.64q contains control characters or is not UTF-8", text)
	}
	return nil
}
