package disk

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
)

// dormancy holds the entries of one profile whose file is unreadable, damaged or missing.
// The bytes of the entries may be good, so the entries keep their rows and wait for the
// profile.
type dormancy struct {
	model   *model // model of the entries, without a profile
	entries []*entry
	cause   error
	offered *profile.Profile // from an object that Admit has refused; nil = none
}

// errNoProfile is the error of a row whose profile has no file.
var errNoProfile = errors.New("a profile has no file")

// dormancyOf returns the dormancy of a profile, and creates it with a cause if necessary.
func (m *mount) dormancyOf(fp profile.Fingerprint, cause error) *dormancy {
	d := m.dormant[fp]
	if d == nil {
		d = &dormancy{model: &model{name: fmt.Sprintf("profile %x", fp[:8])}, cause: cause}
		m.dormant[fp] = d
	}
	return d
}

// dormantLocked returns the number of entries that wait for their profiles, and the cause
// for one of the profiles.
func (t *core) dormantLocked() (n int, cause string) {
	if t.mount == nil {
		return 0, ""
	}
	for _, d := range t.mount.dormant {
		n += d.model.dormant
		if why := d.cause.Error(); d.model.dormant > 0 && (cause == "" || why < cause) {
			cause = why
		}
	}
	return n, cause
}

// wake tries to find the profiles that dormant entries wait for, and wakes the entries of
// those found. Only one goroutine calls it.
func (t *core) wake(m *mount) {
	t.mu.Lock()
	waiting := make(map[profile.Fingerprint]*profile.Profile, len(m.dormant))
	for fp, d := range m.dormant {
		if d.model.dormant == 0 { // all were evicted
			delete(m.dormant, fp)
			continue
		}
		waiting[fp] = d.offered
	}
	t.mu.Unlock()
	for fp, p := range waiting {
		if p == nil && t.cfg.Profile != nil {
			p = t.cfg.Profile(fp)
		}
		p, err := m.findProfile(fp, p)
		if err != nil {
			t.mu.Lock()
			m.dormant[fp].cause = err
			t.mu.Unlock()
			continue
		}
		t.wakeModel(m, newModel(p))
	}
}

// findProfile reads the file of a profile. If that fails, it rewrites the file from the
// profile known. If known is nil, the profile is unknown, and findProfile returns the error
// of the read.
func (m *mount) findProfile(fp profile.Fingerprint, known *profile.Profile) (*profile.Profile, error) {
	p, err := m.ReadProfile(fp)
	if err == nil || known == nil {
		return p, err
	}
	if made := m.KeepProfile(known); made != nil {
		return nil, fmt.Errorf("%w; it cannot be written anew: %w", err, made)
	}
	return known, nil
}

// wakeModel makes the dormant entries of a profile visible to lookups. Entries that do
// not fit the profile are forgotten, together with their descendants.
func (t *core) wakeModel(m *mount, found *model) {
	d := m.dormant[found.Fingerprint()] // only this goroutine removes it
	var wrong []*entry
	woken := 0
	t.mu.Each(len(d.entries), rowsAtOnce, func(i int) {
		switch e := d.entries[i]; {
		case e.phase != dormant: // evicted meanwhile
		case fits(&e.Row, found) != nil:
			wrong = append(wrong, e)
		default:
			t.become(e, m.firstPhase(e))
			e.model = found
			woken++
		}
	})
	for _, e := range wrong {
		t.forgetTree(e)
	}
	t.mu.Lock()
	t.models[found.Fingerprint()] = found
	delete(m.dormant, found.Fingerprint()) // from now on objects of this profile are admitted
	t.counters.Dropped += uint64(len(wrong))
	m.unproven = true
	t.idle.Broadcast()
	t.mu.Unlock()
	t.log.Info().Str("tier", "disk").Str("model", found.name).Int("entries", woken).Msg("entries have their profile again and are served")
}
