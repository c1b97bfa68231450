package usage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
)

// noteName is the file in the disk directory that holds the sums.
const noteName = "usage.json"

const (
	noteEvery = 30 * time.Second // what a killed daemon may forget
	noteWait  = time.Second      // between attempts at most, while the directory is not open
	noteMost  = 1 << 20          // bytes of a note that is read: some 2,000 rows
)

// Notes is where sums are kept across restarts: the disk tier.
type Notes interface {
	Note(name string) ([]byte, error)
	KeepNote(name string, content []byte) error
}

// noted is one row. Tenants are named, since their numbers follow the order of the
// configuration; counts are by name, so that later ones can be added.
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
	First   float64           `json:"first_ms"`
	Timed   uint64            `json:"timed"`
	Began   time.Time         `json:"began"`
}

// Memory keeps sums on disk. Only its Run touches the disk, which may hang.
type Memory struct {
	usage   *Usage
	notes   Notes
	tenants tiering.Tenants
	log     zerolog.Logger

	others []noted // of tenants that are not configured now; owned by Run
	last   []byte  // that was written; owned by Run
}

// NewMemory makes the memory of u. It uses n only in Run.
func NewMemory(u *Usage, n Notes, tenants tiering.Tenants, log zerolog.Logger) *Memory {
	return &Memory{usage: u, notes: n, tenants: tenants, log: log}
}

// Run adds what earlier starts have noted, and then notes the sums now and then until ctx
// ends, and once more.
func (k *Memory) Run(ctx context.Context) error {
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, noteWait) {
		if k.load() == nil {
			break
		}
		if ctx.Err() != nil {
			return nil // what is noted stays: without it the sums of this start are not all
		}
		sleep(ctx, wait)
	}
	for sleep(ctx, noteEvery) {
		k.save()
	}
	k.save()
	return nil
}

// sleep reports whether the time has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// load takes up what was noted. Its error says to try again; what is damaged is left
// behind, since it decides nothing.
func (k *Memory) load() error {
	content, err := k.notes.Note(noteName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	list, err := parse(content)
	if err != nil {
		k.log.Warn().Err(err).Str("file", noteName).Msg("what was served before this start is not known, its sums begin anew")
		return nil
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
	if len(content) > noteMost {
		return nil, fmt.Errorf("%d bytes, most %d", len(content), noteMost)
	}
	d := json.NewDecoder(bytes.NewReader(content))
	if err := d.Decode(&list); err != nil {
		return nil, err
	}
	for i := range list {
		n := &list[i]
		if n.Tenant == "" || len(n.Ways) != len(Sums{}.Ways) || !(n.Saved >= 0) || !(n.Lost >= 0) || !(n.First >= 0) {
			return nil, fmt.Errorf("entry %d is none", i+1)
		}
		if sums := n.sums(); sums.Prompt != sum(sums.Sources[:]) || sums.Sources[Computed] != sum(sums.Missed[:]) {
			return nil, fmt.Errorf("entry %d does not add up", i+1)
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

// save writes the sums, if they have changed.
func (k *Memory) save() {
	list := append([]noted{}, k.others...)
	for _, r := range k.usage.Rows() {
		total := r.Total()
		list = append(list, note(k.tenants.NameOf(r.Tenant), &r, &total))
	}
	content, err := json.Marshal(list)
	if err == nil && !bytes.Equal(content, k.last) {
		err = k.notes.KeepNote(noteName, append(content, '\n'))
	}
	if err != nil {
		k.log.Debug().Err(err).Str("tier", "disk").Msg("sums of what was served are not noted now")
		return
	}
	k.last = content
}

func note(tenant string, r *Row, s *Sums) noted {
	n := noted{
		Tenant: tenant, Profile: api.Digest(r.Fingerprint), Model: r.Model, Ways: s.Ways[:], Prompt: s.Prompt,
		Sources: map[string]uint64{}, Missed: map[string]uint64{}, Saved: s.Saved, Lost: s.Lost, First: s.First, Timed: s.Timed, Began: r.Began,
	}
	for f, tokens := range s.Sources {
		n.Sources[From(f).String()] = tokens
	}
	s.Causes(func(c Cause, tokens uint64) { n.Missed[c.String()] = tokens })
	return n
}

// sums are those of a row; counts that are not known any more are left out.
func (n *noted) sums() (s Sums) {
	copy(s.Ways[:], n.Ways)
	s.Prompt, s.Saved, s.Lost = n.Prompt, n.Saved, n.Lost
	s.First, s.Timed = n.First, n.Timed
	for f := range s.Sources {
		s.Sources[f] = n.Sources[From(f).String()]
	}
	for c := range s.Missed {
		s.Missed[c] = n.Missed[Cause(c).String()]
	}
	return s
}
