// Package decided shows decisions about objects to operators, including decisions of earlier
// starts. Its Memory keeps the latest decisions that had an effect in a note on disk. It does not
// keep advice. All methods may be called concurrently.
package decided

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/note"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// noteName is the file in the disk directory that stores decisions.
const noteName = "decisions.json"

// noteVersion is the version of the note's format.
const noteVersion = 1

const (
	mostKept = 2000    // largest number of decisions in a note
	noteMost = 2 << 20 // largest size of a note in bytes; a row has about 400 bytes, and 3,400 in the worst case
	textMost = 256     // bytes of a reason or a tenant's name; names are as long in the configuration
)

// Object returns the name of an object's kind, as shown to operators.
func Object(k tier.CheckpointKind) string {
	if k == 0 {
		return "segment"
	}
	return "checkpoint"
}

// Of converts a decision to the form shown to operators.
func Of(d *decision.Decision, tenants tiering.Tenants) api.Decision {
	entry := api.Decision{
		At: d.At, What: d.What.String(), Why: d.Why.String(), Object: Object(d.Name.Kind),
		Profile: uint32(d.Profile), Tenant: tenants.NameOf(d.Tenant), Begin: d.Begin, End: d.End, Value: d.Value, Bytes: d.Bytes,
	}
	if d.Name.Key != ([32]byte{}) {
		entry.Key = new(api.Digest(d.Name.Key))
	}
	return entry
}

// Noted is a decision as stored in the note. It names the profile by fingerprint, since profile
// numbers change with each start. It names the tenant by name, as api.Decision does.
type Noted struct {
	api.Decision
	Profile api.Digest `json:"profile"` // replaces the number of the profile; zero = unknown
}

// Profiles looks up a profile by its number.
type Profiles func(tier.ProfileID) (*profile.Profile, bool)

// Memory keeps decisions on disk. Only Run accesses the disk, which may hang.
type Memory struct {
	log      *decision.Log
	profiles Profiles
	tenants  tiering.Tenants
	note     note.Note

	before atomic.Pointer[[]Noted]
}

// NewMemory creates the memory of a log. Only Run accesses the disk.
func NewMemory(log *decision.Log, on note.Keeper, profiles Profiles, tenants tiering.Tenants) *Memory {
	m := &Memory{log: log, profiles: profiles, tenants: tenants}
	m.note = note.Note{
		Keeper: on, Name: noteName, Most: noteMost, Take: m.take, Content: m.content,
		Lost: "decisions before this start are unknown",
	}
	return m
}

// Run reads the decisions that earlier starts have noted. Then it writes decisions periodically
// until ctx ends, and once more.
func (m *Memory) Run(ctx context.Context) error { return m.note.Run(ctx) }

// Before returns the decisions of earlier starts that were kept and read, newest first. The slice
// does not change.
func (m *Memory) Before() []Noted {
	if list := m.before.Load(); list != nil {
		return *list
	}
	return nil
}

func (m *Memory) take(content []byte) error {
	list, err := parse(content)
	if err == nil {
		m.before.Store(&list)
	}
	return err
}

// parse decodes a note. If any part is invalid, it returns nothing, since a partial history
// misleads.
func parse(content []byte) (list []Noted, err error) {
	var whole struct {
		Version   int             `json:"version"`
		Decisions json.RawMessage `json:"decisions"`
	}
	if err := json.Unmarshal(content, &whole); err != nil {
		return nil, err
	}
	if whole.Version != noteVersion {
		return nil, fmt.Errorf("its format is %d, this version reads %d", whole.Version, noteVersion)
	}
	d := json.NewDecoder(bytes.NewReader(whole.Decisions))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.New("it has no list of decisions")
	}
	for d.More() && len(list) < mostKept {
		var n Noted
		err := d.Decode(&n)
		if err == nil {
			err = n.check()
		}
		if err != nil {
			return nil, fmt.Errorf("decision %d: %w", len(list)+1, err)
		}
		list = append(list, n)
	}
	return list, nil
}

// check refuses decisions that no daemon can have made.
func (n *Noted) check() error {
	switch {
	case !happened(n.What):
		return fmt.Errorf("unknown event %.64q", n.What)
	case n.Object != Object(0) && n.Object != Object(tier.Exact):
		return fmt.Errorf("unknown object %.64q", n.Object)
	case n.At.IsZero():
		return errors.New("no time")
	case n.Begin < 0 || n.End < n.Begin || n.End > profile.MaxTokens:
		return fmt.Errorf("tokens [%d, %d)", n.Begin, n.End)
	case n.Bytes < 0:
		return fmt.Errorf("%d bytes", n.Bytes)
	case !plain(n.Why) || !plain(n.Tenant):
		return errors.New("invalid text")
	}
	return nil
}

// happened reports whether a word names a decision that had an effect, not advice.
func happened(word string) bool {
	for w := decision.What(0); w < decision.Advise; w++ {
		if w.String() == word {
			return true
		}
	}
	return false
}

func plain(text string) bool {
	return len(text) <= textMost && !strings.ContainsFunc(text, unicode.IsControl)
}

// content returns the note: the latest decisions of this start, and then earlier ones, as many as
// fit.
func (m *Memory) content() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"version":%d,"decisions":[`, noteVersion)
	kept := 0
	// add reports whether there may be space for more. It leaves out decisions that cannot be encoded,
	// for example because a value is NaN.
	add := func(n *Noted) bool {
		row, err := json.Marshal(n)
		if err != nil || n.check() != nil {
			return true
		}
		if kept == mostKept || b.Len()+len(row)+len(",\n\n]}\n") > noteMost {
			return false
		}
		if kept > 0 {
			b.WriteByte(',')
		}
		kept++
		b.WriteByte('\n')
		b.Write(row)
		return true
	}
	m.each(add)
	b.WriteString("\n]}\n")
	return b.Bytes(), nil
}

// each calls the function add for the decisions that had an effect, newest first, until it returns
// false.
func (m *Memory) each(add func(*Noted) bool) {
	fingerprints := map[tier.ProfileID]api.Digest{}
	for d := range m.log.Last() {
		if d.What >= decision.Advise {
			continue
		}
		f, ok := fingerprints[d.Profile]
		if !ok {
			if p, ok := m.profiles(d.Profile); ok {
				f = api.Digest(p.Fingerprint())
			}
			fingerprints[d.Profile] = f
		}
		if !add(&Noted{Decision: Of(d, m.tenants), Profile: f}) {
			return
		}
	}
	before := m.Before()
	for i := range before {
		if !add(&before[i]) {
			return
		}
	}
}
