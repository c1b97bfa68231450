package usage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/note"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
)

// noteName is the file in the disk directory with the sums.
const noteName = "usage.json"

const noteMost = 1 << 20 // largest size of a note in bytes: about 2,000 rows

// noted is one row of the note. The tenant is stored by name, since tenant ids follow the order of
// the configuration. Counts are stored by name, so that more counts can be added later.
type noted struct {
	Tenant  string            `json:"tenant"`
	Profile api.Digest        `json:"profile"`
	Model   string            `json:"model"`
	Ways    []uint64          `json:"ways"`
	Prompt  uint64            `json:"prompt_tokens"`
	Sources map[string]uint64 `json:"tokens"`
	Missed  map[string]uint64 `json:"missed"`
	Saved   float64           `json:"saved_ms"`
	Lost    float64           `json:"lost_ms"`
	Guessed float64           `json:"guessed_ms,omitempty"`
	First   float64           `json:"first_ms"`
	Timed   uint64            `json:"timed"`
	Began   time.Time         `json:"began"`

	Unverified       uint64 `json:"unverified,omitempty"`
	UnverifiedTokens uint64 `json:"unverified_tokens,omitempty"`
}

// Memory stores sums on disk. Only Run accesses the disk, which may hang.
type Memory struct {
	usage   *Usage
	tenants tiering.Tenants
	note    note.Note

	others []noted // rows of tenants that are not configured; used by Run only
}

// NewMemory creates the memory of u. Only Run accesses the disk.
func NewMemory(u *Usage, on note.Keeper, tenants tiering.Tenants) *Memory {
	k := &Memory{usage: u, tenants: tenants}
	k.note = note.Note{
		Keeper: on, Name: noteName, Most: noteMost, Take: k.take, Content: k.content,
		Lost: "totals from before this start are unknown and begin at zero",
	}
	return k
}

// Run adds the sums that earlier starts have noted. Then it writes the sums periodically until ctx
// ends, and once more.
func (k *Memory) Run(ctx context.Context) error { return k.note.Run(ctx) }

// take adds the sums of a note.
func (k *Memory) take(content []byte) error {
	list, err := parse(content)
	if err != nil {
		return err
	}
	for i := range list {
		sums, tenant := list[i].sums(), k.tenants.ByName(list[i].Tenant)
		if tenant == nil {
			k.others = append(k.others, list[i])
			continue
		}
		k.usage.restore(Key{tenant.ID, profile.Fingerprint(list[i].Profile)}, list[i].Model, &sums, list[i].Began)
	}
	return nil
}

func parse(content []byte) (list []noted, err error) {
	d := json.NewDecoder(bytes.NewReader(content))
	if err := d.Decode(&list); err != nil {
		return nil, err
	}
	for i := range list {
		n := &list[i]
		if n.Tenant == "" || len(n.Ways) != len(Sums{}.Ways) || !(n.Saved >= 0) || !(n.Lost >= 0) || !(n.First >= 0) {
			return nil, fmt.Errorf("entry %d is invalid", i+1)
		}
		if sums := n.sums(); sums.Prompt != sum(sums.Sources[:]) || sums.Sources[Computed] != sum(sums.Missed[:]) {
			return nil, fmt.Errorf("entry %d is inconsistent", i+1)
		}
	}
	return list, nil
}

func sum(list []uint64) (n uint64) {
	for _, v := range list {
		n += v
	}
	return n
}

// content returns the note's content.
func (k *Memory) content() ([]byte, error) {
	list := append([]noted{}, k.others...)
	for _, r := range k.usage.Rows() {
		total := r.Total()
		list = append(list, rowOf(k.tenants.NameOf(r.Tenant), &r, &total))
	}
	content, err := json.Marshal(list)
	return append(content, '\n'), err
}

func rowOf(tenant string, r *Row, s *Sums) noted {
	n := noted{
		Tenant: tenant, Profile: api.Digest(r.Fingerprint), Model: r.Model, Ways: s.Ways[:], Prompt: s.Prompt,
		Sources: map[string]uint64{}, Missed: map[string]uint64{}, Saved: s.Saved, Lost: s.Lost, First: s.First, Timed: s.Timed, Began: r.Began,
		Guessed: s.Guessed, Unverified: s.Unverified, UnverifiedTokens: s.UnverifiedTokens,
	}
	for f, tokens := range s.Sources {
		n.Sources[From(f).String()] = tokens
	}
	s.Causes(func(c Cause, tokens uint64) { n.Missed[c.String()] = tokens })
	return n
}

// sums returns the sums of a row. It ignores counts with unknown names.
func (n *noted) sums() (s Sums) {
	copy(s.Ways[:], n.Ways)
	s.Prompt, s.Saved, s.Lost = n.Prompt, n.Saved, n.Lost
	s.First, s.Timed, s.Guessed = n.First, n.Timed, n.Guessed
	s.Unverified, s.UnverifiedTokens = n.Unverified, n.UnverifiedTokens
	for f := range s.Sources {
		s.Sources[f] = n.Sources[From(f).String()]
	}
	for c := range s.Missed {
		s.Missed[c] = n.Missed[Cause(c).String()]
	}
	return s
}
