package daemon

import (
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
	"github.com/spliced-kv/spliced/tiering/tier"
)

// canaryNote is the file in the disk directory that names what is switched off.
const canaryNote = "switched-off.json"

// notes is where a canary remembers across restarts: the disk tier.
type notes interface {
	Note(name string) ([]byte, error)
	KeepNote(name string, content []byte) error
}

// noted is one profile that is switched off. Tenants are named, since their
// numbers follow the order of the configuration.
type noted struct {
	Tenant  string     `json:"tenant"`
	Profile api.Digest `json:"profile"`
	Model   string     `json:"model"`
	Since   time.Time  `json:"since"`
	Why     string     `json:"why"`
}

// canaryMemory keeps what is switched off on disk. Only its run touches the disk,
// which may hang: neither requests nor the start wait for it without end.
type canaryMemory struct {
	canary  *canary
	notes   notes
	tenants []tiering.Tenant
	log     zerolog.Logger
	loaded  chan struct{} // closed when what was noted is in force

	others []noted // of tenants that are not configured now; owned by run
}

func newCanaryMemory(c *canary, n notes, tenants []tiering.Tenant, log zerolog.Logger) *canaryMemory {
	return &canaryMemory{canary: c, notes: n, tenants: tenants, log: log, loaded: make(chan struct{})}
}

// Waits between attempts, while the directory is not open or refuses writes.
const (
	noteWaitLeast = 2 * time.Millisecond
	noteWaitMost  = time.Second
)

// run loads the note and then keeps it up to date until ctx ends.
func (k *canaryMemory) run(ctx context.Context) error {
	if !k.insist(ctx, k.load) {
		return nil
	}
	close(k.loaded)
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

// insist tries until do succeeds, or ctx ends: then once more.
func (k *canaryMemory) insist(ctx context.Context, do func() error) bool {
	told := false
	for wait := noteWaitLeast; ; wait = min(2*wait, noteWaitMost) {
		err := do()
		if err == nil {
			return true
		}
		if !told && !errors.Is(err, tier.ErrUnavailable) {
			told = true
			k.log.Warn().Err(err).Str("tier", "disk").Msg("what is switched off cannot be remembered, trying again")
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

// load takes up what an earlier daemon has noted. What cannot be read as such is
// gone, and said so: nothing else would end it.
func (k *canaryMemory) load() error {
	content, err := k.notes.Note(canaryNote)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var list []noted
	if err := json.Unmarshal(content, &list); err != nil {
		k.log.Error().Err(err).Str("file", canaryNote).Msg("which profiles were switched off is lost: they are on")
		return nil
	}
	for i := range list {
		if tenant, ok := k.tenant(list[i].Tenant); ok {
			k.canary.restore(reported{tenant, profile.Fingerprint(list[i].Profile)}, &list[i])
		} else {
			k.others = append(k.others, list[i])
		}
	}
	return nil
}

// save writes what is switched off now.
func (k *canaryMemory) save() error {
	list := append([]noted{}, k.others...)
	for _, r := range k.canary.list() {
		if r.off {
			list = append(list, noted{k.name(r.tenant), api.Digest(r.fingerprint), r.model, r.since, r.why})
		}
	}
	content, err := json.MarshalIndent(list, "", " ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return k.notes.KeepNote(canaryNote, append(content, '\n'))
}

func (k *canaryMemory) tenant(name string) (tier.TenantID, bool) {
	for i := range k.tenants {
		if k.tenants[i].Name == name {
			return k.tenants[i].ID, true
		}
	}
	return 0, false
}

func (k *canaryMemory) name(id tier.TenantID) string {
	for i := range k.tenants {
		if k.tenants[i].ID == id {
			return k.tenants[i].Name
		}
	}
	return ""
}

// restore switches a profile off as it was before a restart.
func (c *canary) restore(of reported, n *noted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mu.rows[of]
	if r == nil {
		var err error
		if r, err = c.newRowLocked(of); err != nil {
			return // the bound was met before as well
		}
	}
	if !r.off {
		c.offs.Add(1)
	}
	r.model, r.off, r.since, r.why = n.Model, true, n.Since, n.Why
}
