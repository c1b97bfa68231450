package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"
)

// Page sizes of listings.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// maxNameBytes bounds names of tenants and of people.
const maxNameBytes = 128

// params parses query parameters and collects all errors, so that one response names all of them.
type params struct {
	args *fasthttp.Args
	seen []string
	bad  []Violation
}

func (p *params) refuse(name, format string, a ...any) {
	p.bad = append(p.bad, Violation{Parameter: name, Detail: fmt.Sprintf(format, a...)})
}

// text returns the value of a parameter, and whether it is given. A repeated parameter is
// refused, since a proxy and this server could use different values.
func (p *params) text(name string) (string, bool) {
	p.seen = append(p.seen, name)
	values := p.args.PeekMulti(name)
	if len(values) == 0 {
		return "", false
	}
	if len(values) > 1 {
		p.refuse(name, "given %d times", len(values))
		return "", false
	}
	return string(values[0]), true
}

func (p *params) flag(name string) bool {
	v, ok := p.text(name)
	switch {
	case !ok:
		return false
	case v == "" || v == "true" || v == "1":
		return true
	case v == "false" || v == "0":
		return false
	}
	p.refuse(name, "%q is neither true nor false", v)
	return false
}

func (p *params) name(name string) string {
	v, ok := p.text(name)
	if ok && (v == "" || len(v) > maxNameBytes) {
		p.refuse(name, "has %d bytes, want 1 to %d", len(v), maxNameBytes)
		return ""
	}
	return v
}

func (p *params) oneOf(name string, want []string) string {
	v, ok := p.text(name)
	if ok && !slices.Contains(want, v) {
		p.refuse(name, "%q is not one of %s", v, strings.Join(want, ", "))
		return ""
	}
	return v
}

func (p *params) limit() int {
	v, ok := p.text("limit")
	if !ok {
		return DefaultLimit
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > MaxLimit {
		p.refuse("limit", "%q is not a number from 1 to %d", v, MaxLimit)
		return DefaultLimit
	}
	return n
}

func (p *params) profile() *uint32 {
	n := p.number("profile", 32, "a profile id")
	if n == nil {
		return nil
	}
	return new(uint32(*n))
}

// number parses a decimal number of at most the given number of bits; nil = not given. An error
// describes the expected number by the parameter what.
func (p *params) number(name string, bits int, what string) *uint64 {
	v, ok := p.text(name)
	if !ok {
		return nil
	}
	n, err := strconv.ParseUint(v, 10, bits)
	if err != nil {
		p.refuse(name, "%.40q is not %s", v, what)
		return nil
	}
	return &n
}

func (p *params) prefix() string { return p.digits("key_prefix") }

// digits parses the first hex digits of a key; "" = not given.
func (p *params) digits(name string) string {
	v, ok := p.text(name)
	if !ok {
		return ""
	}
	v = strings.ToLower(v)
	if v == "" || len(v) > 64 || strings.Trim(v, "0123456789abcdef") != "" {
		p.refuse(name, "%q is not 1 to 64 hex digits", v)
		return ""
	}
	return v
}

func (p *params) cursor() *Digest {
	v, ok := p.text("cursor")
	if !ok {
		return nil
	}
	var d Digest
	if err := d.UnmarshalText([]byte(v)); err != nil {
		p.refuse("cursor", "not a cursor of this listing: %v", err)
		return nil
	}
	return &d
}

// done refuses unknown parameters and returns all violations.
func (p *params) done() error {
	unknown := map[string]bool{}
	for key := range p.args.All() {
		unknown[string(key)] = true
	}
	for _, name := range p.seen {
		delete(unknown, name)
	}
	for name := range unknown {
		p.refuse(name, "unknown parameter")
	}
	if len(p.bad) == 0 {
		return nil
	}
	return newProblem(fasthttp.StatusBadRequest, CodeInvalid, counted(len(p.bad), "bad parameter"), p.bad...)
}

// keyOf parses a key in the path.
func keyOf(text string) (Digest, error) {
	var d Digest
	if err := d.UnmarshalText([]byte(text)); err != nil {
		return d, newProblem(fasthttp.StatusBadRequest, CodeInvalid, "bad key", Violation{Parameter: "key", Detail: err.Error()})
	}
	return d, nil
}
