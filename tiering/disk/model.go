package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// model is a profile that entries are of. Digests are kept by part, and only the
// profile tells how long parts are.
type model struct {
	*profile.Profile
	name   string // of the model, for people
	stored bool   // in the directory; guarded by volume.profiles
}

func newModel(p *profile.Profile) *model { return &model{Profile: p, name: p.Identity().Model} }

// layout is that of one rank of an entry.
func (m *model) layout(kind tier.CheckpointKind, n int) profile.Layout {
	if kind == 0 {
		return m.SegmentLayout(n)
	}
	return m.CheckpointLayout(n)
}

// modelLocked finds or makes the model of a profile.
func (t *Tier) modelLocked(p *profile.Profile) *model {
	m := t.models[p.Fingerprint()]
	if m == nil {
		m = newModel(p)
		t.models[p.Fingerprint()] = m
	}
	return m
}

// profileDir holds a file for each profile with its canonical bytes, named by its
// fingerprint, which is their SHA-256. It is not in the catalogue, since a
// catalogue that is lost can be made again from slabs and profiles, but from
// slabs alone no digest can be checked.
const profileDir = "profiles"

// keepProfile makes a profile last, before the first row that names it.
func (v *volume) keepProfile(m *model) error {
	v.profiles.Lock()
	defer v.profiles.Unlock()
	if m.stored {
		return nil
	}
	dir := v.path(profileDir)
	if err := v.index.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("disk: profiles: %w", err)
	}
	fp := m.Fingerprint()
	if err := replaceFile(v.index, dir, hex.EncodeToString(fp[:]), m.Canonical()); err != nil {
		return fmt.Errorf("disk: profile %x: %w", fp[:8], err)
	}
	if err := syncDir(v.index, v.dir); err != nil {
		return fmt.Errorf("disk: profiles: %w", err)
	}
	m.stored = true
	return nil
}

// readProfiles reads all profiles that can be believed; the others are named in bad.
func readProfiles(index vfs.FS, dir string) (good []*profile.Profile, bad []error, err error) {
	dir = index.PathJoin(dir, profileDir)
	names, err := index.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("disk: profiles: %w", err)
	}
	for _, name := range names {
		if len(name) != hex.EncodedLen(sha256.Size) {
			continue // of a crash while one was written
		}
		p, err := readProfile(index, index.PathJoin(dir, name), name)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		good = append(good, p)
	}
	return good, bad, nil
}

func readProfile(index vfs.FS, path, name string) (*profile.Profile, error) {
	b, err := readFile(index, path, profile.MaxCanonicalBytes)
	if err != nil {
		return nil, fmt.Errorf("disk: profile %s: %w", name, err)
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != name {
		return nil, fmt.Errorf("disk: profile %s has the digest %x: %w", name, sum[:8], tier.ErrCorrupt)
	}
	p, err := profile.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("disk: profile %s: %w", name, err)
	}
	return p, nil
}

// readFile reads a whole small file.
func readFile(index vfs.FS, path string, most int) ([]byte, error) {
	f, err := index.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(b) > most {
		err = fmt.Errorf("more than %d bytes: %w", most, tier.ErrCorrupt)
	}
	return b, err
}

// replaceFile writes a file so that after a crash it is there whole or not at all.
func replaceFile(index vfs.FS, dir, name string, content []byte) error {
	path := index.PathJoin(dir, name)
	f, err := index.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(bytes.Clone(content)) // a vfs.File may change what it is given
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := index.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(index, dir)
}

func syncDir(index vfs.FS, dir string) error {
	d, err := index.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
