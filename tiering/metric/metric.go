// Package metric reads the declarations in the field tags of a struct of counters, so that a
// counter is declared once for listings and Prometheus.
//
//	Published uint64    `count:"published" prom:"published_total" help:"Objects published."`
//	Demoted   uint64    `count:"demoted" prom:"demotions_total,result=taken" part:"disk"`
//	Aborted   [2]uint64 `count:"aborted_{client,death}" prom:"aborted_total,reason=*"`
//	Pool      string    `label:"pool"`
//	HBM       Inner     `count:"hbm_" part:"hbm"`
//
// The tag count is the name in listings, and the tag prom is the family and its labels. The tag
// help is given at one field of a family. A field with a part is reported to Prometheus only if
// that part exists.
//
// The elements of an array are named in braces; an element without a name is left out. The label
// value "*" stands for the name of the element, "a|b" gives the elements separate values. A
// string field is a label of all series of its struct. The names of an inner struct begin with
// its tag; those of an embedded struct are unchanged. A struct with prom "-" is only in listings.
//
// Fields are integers, atomic.Uint64, floats, arrays of these, strings and structs. A family
// whose name ends in _total is a counter, the others are gauges. An invalid tag is a programming
// error and panics.
package metric

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
)

// Family describes all series of one name.
type Family struct {
	Name   string
	Help   string
	Labels []string
}

// Each calls f with the name in listings and the value of each counter of the struct that
// c points to, in the order of the fields.
func Each(c any, f func(name string, value uint64)) {
	walk(reflect.ValueOf(c).Elem(), "", "", nil, func(s *series) {
		if s.count != "" {
			f(s.count, s.n)
		}
	})
}

// EachSeries calls f with the Prometheus series that the struct declares: series without a part,
// and series of parts for which the function has returns true. The values of the family's labels,
// which f gets as a slice, are valid until f returns.
func EachSeries(c any, has func(part string) bool, f func(family string, values []string, v float64)) {
	walk(reflect.ValueOf(c).Elem(), "", "", nil, func(s *series) {
		if s.family != "" && (s.part == "" || has(s.part)) {
			f(s.family, s.values, s.value)
		}
	})
}

// Families lists the families that some structs declare, each once with its help and labels.
func Families(structs ...any) []Family {
	var list []Family
	at := map[string]int{}
	for _, c := range structs {
		walk(reflect.New(reflect.TypeOf(c)).Elem(), "", "", nil, func(s *series) {
			if s.family == "" {
				return
			}
			i, known := at[s.family]
			if !known {
				i = len(list)
				at[s.family] = i
				list = append(list, Family{Name: s.family, Labels: slices.Clone(s.labels)})
			}
			f := &list[i]
			if !slices.Equal(f.Labels, s.labels) {
				panic(fmt.Sprintf("metric: %s has labels %v and %v", f.Name, f.Labels, s.labels))
			}
			if s.help != "" && f.Help != "" && s.help != f.Help {
				panic(fmt.Sprintf("metric: %s has two helps", f.Name))
			}
			f.Help = max(f.Help, s.help)
		})
	}
	for _, f := range list {
		if f.Help == "" {
			panic(fmt.Sprintf("metric: %s has no help", f.Name))
		}
	}
	return list
}

// series is one number of a struct.
type series struct {
	count, part    string
	family, help   string
	labels, values []string
	n              uint64 // the value, if it is an integer
	value          float64
}

// walk calls f with every number in the struct v. The parameter labels has the names and values,
// in turn, of the labels of the enclosing structs.
func walk(v reflect.Value, prefix, part string, labels []string, f func(*series)) {
	t := v.Type()
	labels = slices.Clip(labels)
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("label"); name != "" {
			labels = append(labels, name, v.Field(i).String())
		}
	}
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		count, prom := tag.Get("count"), tag.Get("prom")
		if x := v.Field(i); t.Field(i).Anonymous && x.Kind() == reflect.Struct {
			tell := f
			if prom == "-" {
				tell = func(s *series) { s.family = ""; f(s) }
			}
			walk(x, prefix, part, labels, tell)
			continue
		}
		if count == "" && prom == "" {
			continue
		}
		inner := cmp.Or(tag.Get("part"), part)
		if count != "" {
			count = prefix + count
		}
		x := v.Field(i)
		if _, _, number := numberOf(x); !number && x.Kind() == reflect.Struct {
			walk(x, count, inner, labels, f)
			continue
		}
		s := series{count: count, part: inner, help: tag.Get("help")}
		own := s.parse(prom, labels)
		if x.Kind() == reflect.Array {
			s.elements(x, own, f)
			continue
		}
		s.n, s.value, _ = numberOf(x)
		f(&s)
	}
}

// parse parses a prom tag. It returns the number of strings in around, the labels of enclosing
// structs.
func (s *series) parse(prom string, around []string) int {
	for i := 0; i < len(around); i += 2 {
		s.labels, s.values = append(s.labels, around[i]), append(s.values, around[i+1])
	}
	family, rest, more := strings.Cut(prom, ",")
	s.family = family
	own := len(s.labels)
	for more {
		var label string
		label, rest, more = strings.Cut(rest, ",")
		name, value, ok := strings.Cut(label, "=")
		if !ok {
			panic(fmt.Sprintf("metric: label %q of %s", label, family))
		}
		s.labels, s.values = append(s.labels, name), append(s.values, value)
	}
	return own
}

// elements calls f with the elements of an array that have a name.
func (s *series) elements(x reflect.Value, own int, f func(*series)) {
	before, rest, _ := strings.Cut(s.count, "{")
	list, after, ok := strings.Cut(rest, "}")
	names := strings.Split(list, ",")
	if !ok || len(names) != x.Len() {
		panic(fmt.Sprintf("metric: %q names %d of %d elements", s.count, len(names), x.Len()))
	}
	pattern := slices.Clone(s.values)
	for i, name := range names {
		if name == "" {
			continue
		}
		e := *s
		e.count = before + name + after
		for k := own; k < len(pattern); k++ {
			switch own := strings.Split(pattern[k], "|"); {
			case pattern[k] == "*":
				e.values[k] = name
			case len(own) > 1:
				e.values[k] = own[i]
			}
		}
		e.n, e.value, _ = numberOf(x.Index(i))
		f(&e)
	}
}

// numberOf returns the value of a numeric field.
func numberOf(x reflect.Value) (n uint64, value float64, ok bool) {
	switch {
	case x.CanUint():
		n = x.Uint()
	case x.CanInt():
		n = uint64(x.Int())
	case x.CanFloat():
		return 0, x.Float(), true
	default:
		a, whole := x.Addr().Interface().(*atomic.Uint64)
		if !whole {
			return 0, 0, false
		}
		n = a.Load()
	}
	return n, float64(n), true
}
