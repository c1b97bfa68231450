package canary

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/note"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// noteName is the file in the disk directory that lists switched-off profiles.
const noteName = "switched-off.json"

// noted is one switched-off profile in the note. The tenant is stored by name, since tenant ids
// follow the order of the configuration.
type noted struct {
	Tenant  string     `json:"tenant"`
	Profile api.Digest `json:"profile"`
	Model   string     `json:"model"`
	Since   time.Time  `json:"since"`
	Why     string     `json:"why"`
}

// Memory stores switched-off profiles on disk. Only Run accesses the disk, which may hang. Requests
// and the start of the daemon wait for Run only for a limited time.
type Memory struct {
	canary  *Canary
	notes   note.Disk
	tenants tiering.Tenants
	log     zerolog.Logger
	loaded  chan struct{} // closed when the note's content is in force

	others []noted // entries of tenants that are not configured; used by Run only
}

// NewMemory creates the memory of c. It must be called before c is used. Only Run uses n.
func NewMemory(c *Canary, n note.Disk, tenants tiering.Tenants, log zerolog.Logger) *Memory {
	c.remembered = true
	return &Memory{canary: c, notes: n, tenants: tenants, log: log, loaded: make(chan struct{})}
}

// Delays between attempts while the directory is not open or refuses writes.
const (
	noteWaitLeast = 2 * time.Millisecond
	noteWaitMost  = time.Second
)

// Loaded is closed when the note's content is in force.
func (k *Memory) Loaded() <-chan struct{} { return k.loaded }

// Run loads the note. Then it writes each change to it until ctx ends.
func (k *Memory) Run(ctx context.Context) error {
	known := false
	if !k.insist(ctx, func() (err error) { known, err = k.load(); return err }) {
		return nil
	}
	close(k.loaded)
	if !known { // the file stays as it is: an operator may repair it
		<-ctx.Done()
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			select {
			case <-k.canary.changed:
				k.insist(ctx, k.save)
			default:
			}
			return nil
		case <-k.canary.changed:
			k.insist(ctx, k.save)
		}
	}
}

// insist calls the function do until it succeeds. If ctx ends first, it makes one last call. It
// reports success.
func (k *Memory) insist(ctx context.Context, do func() error) bool {
	told := false
	for wait := noteWaitLeast; ; wait = min(2*wait, noteWaitMost) {
		err := do()
		if err == nil {
			return true
		}
		if !told && !errors.Is(err, tier.ErrUnavailable) {
			told = true
			k.log.Warn().Err(err).Str("tier", "disk").Msg("cannot save which profiles are switched off, retrying")
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return do() == nil
		}
	}
}

// load reads the note of an earlier daemon. If the note cannot be read, splicing stays off for all
// profiles: until the disk's error passes or, if the note is damaged, until an operator acts.
func (k *Memory) load() (known bool, err error) {
	content, err := k.notes.Note(noteName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		k.canary.setUnknown("")
		return true, nil
	case errors.Is(err, tier.ErrUnavailable):
		// The directory is not open yet. Callers of Durable, who wait for a switch-off to be noted, get
		// this error at once.
		_, changes := k.canary.noting()
		k.canary.settled(changes, err)
		return false, err
	case err != nil:
		k.canary.setUnknown(fmt.Sprintf("%s cannot be read: %v", noteName, err))
		return false, err
	}
	list, err := parseNote(content)
	if err != nil {
		why := fmt.Sprintf("%s in the disk directory is damaged: %v; repair it, or delete it if no profile is to be off, and restart the daemon", noteName, err)
		k.canary.setUnknown(why)
		k.log.Error().Str("file", noteName).Msg("all profiles are switched off: " + why)
		return false, nil
	}
	for i := range list {
		if tenant := k.tenants.ByName(list[i].Tenant); tenant != nil {
			k.canary.restore(Key{tenant.ID, profile.Fingerprint(list[i].Profile)}, &list[i])
		} else {
			k.others = append(k.others, list[i])
		}
	}
	k.canary.setUnknown("") // last: until then splicing is off for all profiles
	return true, nil
}

// parseNote decodes a note. If an editor or a crash has damaged a part of the note, parseNote
// refuses the whole note, since a profile that is missing from it would be on.
func parseNote(content []byte) (list []noted, err error) {
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the list")
	}
	if list == nil {
		return nil, errors.New("not a list")
	}
	for i := range list {
		if list[i].Tenant == "" || list[i].Profile == (api.Digest{}) {
			return nil, fmt.Errorf("entry %d lacks a tenant or a profile", i+1)
		}
	}
	return list, nil
}

// save writes the switched-off profiles and reports the result to the canary.
func (k *Memory) save() error {
	rows, changes := k.canary.noting()
	err := k.write(rows)
	k.canary.settled(changes, err)
	return err
}

func (k *Memory) write(rows []Row) error {
	list := append([]noted{}, k.others...)
	for _, r := range rows {
		if r.Off {
			list = append(list, noted{k.tenants.NameOf(r.Tenant), api.Digest(r.Fingerprint), r.Model, r.Since, r.Why})
		}
	}
	content, err := json.MarshalIndent(list, "", " ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return k.notes.KeepNote(noteName, append(content, '\n'))
}

// restore switches a profile off that was off before the restart.
func (c *Canary) restore(of Key, n *noted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mu.rows[of]
	if r == nil {
		var err error
		if r, err = c.newRowLocked(of); err != nil {
			return // there was no room for this row before either
		}
	}
	if !r.Off {
		c.offs.Add(1)
	}
	r.Model, r.Off, r.Since, r.Why = n.Model, true, n.Since, n.Why
}
