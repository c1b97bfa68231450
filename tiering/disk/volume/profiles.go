package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// KeepProfile makes a profile last, before the first row that names it. Its file is
// named by its fingerprint, which is the SHA-256 of what it holds.
func (v *Volume) KeepProfile(p *profile.Profile) error {
	v.profiles.Lock()
	defer v.profiles.Unlock()
	fp := p.Fingerprint()
	if v.profiles.stored[fp] {
		return nil
	}
	defer v.Writes.Begin()()
	dir := v.path(profileDir)
	if err := v.index.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	if err := replaceFile(v.index, dir, hex.EncodeToString(fp[:]), p.Canonical()); err != nil {
		return fmt.Errorf("profile %x: %w", fp[:8], err)
	}
	if err := syncDir(v.index, v.dir); err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	v.profiles.stored[fp] = true
	return nil
}

// Profiles reads all profiles; bad is why some cannot be believed.
func (v *Volume) Profiles() (good []*profile.Profile, bad []error, err error) {
	err = v.eachProfile(func(path, name string) error {
		p, err := readProfile(v.index, path, name)
		if err != nil {
			bad = append(bad, err)
			return nil
		}
		good = append(good, p)
		v.profiles.Lock()
		v.profiles.stored[p.Fingerprint()] = true
		v.profiles.Unlock()
		return nil
	})
	return good, bad, err
}

// RemoveCorruptProfiles removes the files of profiles that are not what their names
// say.
func (v *Volume) RemoveCorruptProfiles() error {
	removed := false
	err := v.eachProfile(func(path, name string) error {
		if _, err := readProfile(v.index, path, name); !errors.Is(err, tier.ErrCorrupt) {
			return nil
		}
		if err := v.index.Remove(path); err != nil {
			return fmt.Errorf("profiles: %w", err)
		}
		removed = true
		return nil
	})
	if err != nil || !removed {
		return err
	}
	return syncDir(v.index, v.path(profileDir))
}

// eachProfile calls f with every file that is named like a profile.
func (v *Volume) eachProfile(f func(path, name string) error) error {
	dir := v.path(profileDir)
	names, err := v.index.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	for _, name := range names {
		if len(name) != hex.EncodedLen(sha256.Size) {
			continue // of a crash while one was written
		}
		if err := f(v.index.PathJoin(dir, name), name); err != nil {
			return err
		}
	}
	return nil
}

func readProfile(index vfs.FS, path, name string) (*profile.Profile, error) {
	b, err := readFile(index, path, profile.MaxCanonicalBytes)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != name {
		return nil, fmt.Errorf("profile %s has the digest %x: %w", name, sum[:8], tier.ErrCorrupt)
	}
	p, err := profile.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	return p, nil
}
