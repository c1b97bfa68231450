package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// KeepProfile writes and syncs the file of a profile, unless it is stored already. It is
// called before the first row that names the profile is written. The file's name is the
// profile's fingerprint, which is the SHA-256 of its content.
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

// UnreadProfile is a profile whose file exists and cannot be used. The rows that name it
// stay valid: the file may be readable later, or be rewritten.
type UnreadProfile struct {
	Fingerprint profile.Fingerprint
	Err         error
}

// Profiles reads all profiles. The result unread lists the profiles whose files cannot be
// used.
func (v *Volume) Profiles() (good []*profile.Profile, unread []UnreadProfile, err error) {
	err = v.eachProfile(func(fp profile.Fingerprint) error {
		p, err := v.ReadProfile(fp)
		if err != nil {
			unread = append(unread, UnreadProfile{fp, err})
			return nil
		}
		good = append(good, p)
		return nil
	})
	return good, unread, err
}

// ReadProfile reads the file of a profile. tier.ErrCorrupt means that its bytes do not have
// the digest fp.
func (v *Volume) ReadProfile(fp profile.Fingerprint) (*profile.Profile, error) {
	defer v.Reads.Begin()()
	name := hex.EncodeToString(fp[:])
	b, err := readFile(v.index, v.index.PathJoin(v.path(profileDir), name), profile.MaxCanonicalBytes)
	if err != nil {
		return nil, fmt.Errorf("profile %x: %w", fp[:8], err)
	}
	if sum := sha256.Sum256(b); sum != fp {
		return nil, fmt.Errorf("profile %x: its %d bytes have the digest %x: %w", fp[:8], len(b), sum[:8], tier.ErrCorrupt)
	}
	p, err := profile.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("profile %x: %w", fp[:8], err)
	}
	v.profiles.Lock()
	v.profiles.stored[fp] = true
	v.profiles.Unlock()
	return p, nil
}

// RemoveCorruptProfiles removes the profile files whose contents do not match their names.
func (v *Volume) RemoveCorruptProfiles() error {
	removed := false
	err := v.eachProfile(func(fp profile.Fingerprint) error {
		if _, err := v.ReadProfile(fp); !errors.Is(err, tier.ErrCorrupt) {
			return nil
		}
		if err := v.index.Remove(v.index.PathJoin(v.path(profileDir), hex.EncodeToString(fp[:]))); err != nil {
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

// eachProfile calls f with the fingerprint in each file name.
func (v *Volume) eachProfile(f func(profile.Fingerprint) error) error {
	names, err := v.index.List(v.path(profileDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	for _, name := range names {
		fp, err := hex.DecodeString(name)
		if err != nil || len(fp) != sha256.Size {
			continue // left by a crash during a write
		}
		if err := f(profile.Fingerprint(fp)); err != nil {
			return err
		}
	}
	return nil
}
