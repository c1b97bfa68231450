package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// Limits of the files' sizes in bytes. The files are read again every Timing.Watch.
const (
	maxKeyringBytes = 8 << 10
	maxPEMBytes     = 1 << 20
	minSecretBytes  = 16
)

// material is the parsed content of the files.
type material struct {
	sum  [sha256.Size]byte // digest of all files' contents
	keys [][]byte          // nil = no keyring
	id   *identity         // nil = no TLS
}

// reader reads the files of a configuration.
type reader struct {
	c    *Config
	warn func(string) // called for a file that is readable by all users
}

func (r *reader) read(path string, most int64, secret bool) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	data, warning, err := settings.ReadRegular(path, most)
	if err == nil && secret && warning != "" {
		r.warn(warning)
	}
	return data, err
}

// material reads keyring and certificates. The parameter last is the result of the previous call.
// If the files have the same content as then and no new certificate must be issued, material
// returns last and false.
func (r *reader) material(last *material) (m *material, changed bool, err error) {
	c, now := r.c, r.c.Now()
	ring, err1 := r.read(c.Keyring, maxKeyringBytes, true)
	cert, err2 := r.read(c.TLSCert, maxPEMBytes, false)
	key, err3 := r.read(c.TLSKey, maxPEMBytes, true)
	ca, err4 := r.read(c.TLSCA, maxPEMBytes, false)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, false, err
	}
	m = &material{}
	sum := sha256.New()
	for _, part := range [][]byte{ring, cert, key, ca} {
		fmt.Fprintf(sum, "%d\n", len(part))
		sum.Write(part)
	}
	sum.Sum(m.sum[:0])
	if last != nil && m.sum == last.sum && (last.id == nil || last.id.renew.IsZero() || now.Before(last.id.renew)) {
		return last, false, nil
	}
	if c.Keyring != "" {
		if m.keys, err = parseKeyring(ring); err != nil {
			return nil, false, fmt.Errorf("%s: %w", c.Keyring, err)
		}
	}
	switch {
	case c.TLSCert != "":
		if m.id, err = load(cert, key, ca, c.Node, now); err != nil {
			err = fmt.Errorf("%s, %s and %s: %w", c.TLSCert, c.TLSKey, c.TLSCA, err)
		}
	case c.Keyring != "":
		m.id, err = issue(m.keys, c.Name, c.Node, now)
	}
	return m, err == nil, err
}

// secret returns the key for names. It reads the file of the key, if there is one.
func (r *reader) secret(keys [][]byte) (Secret, error) {
	text, err := r.read(r.c.SecretFile, maxKeyringBytes, true)
	if err != nil {
		return Secret{}, err
	}
	text = bytes.TrimSpace(text)
	if r.c.SecretFile != "" && len(text) < minSecretBytes {
		return Secret{}, fmt.Errorf("%s: %d bytes, want at least %d", r.c.SecretFile, len(text), minSecretBytes)
	}
	return makeSecret(text, keys, r.c.Name), nil
}

// watch checks the files for changes until the context ends.
func (c *Cluster) watch(ctx context.Context) {
	ticker := time.NewTicker(c.cfg.Timing.Watch)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.reload()
		}
	}
}

// reload reads the files and puts changed content into use. It logs an error once, and the previous
// content stays in use.
func (c *Cluster) reload() {
	c.using.Lock()
	defer c.using.Unlock()
	m, changed, err := c.files.material(c.material)
	c.useLocked(m, changed, err)
}

// Prepare reads and validates the files. It returns a function that puts their content into use;
// nil = that content is in use already.
func (c *Cluster) Prepare() (use func(), err error) {
	c.using.Lock()
	defer c.using.Unlock()
	m, changed, err := c.files.material(c.material)
	if err != nil || !changed {
		return nil, err
	}
	return func() {
		c.using.Lock()
		defer c.using.Unlock()
		c.useLocked(m, true, nil)
	}, nil
}

// Files returns the names of the settings that name the files read by this cluster.
func (c *Cluster) Files() (names []string) {
	for _, f := range []struct{ name, path string }{
		{"cluster-keyring", c.cfg.Keyring}, {"cluster-tls-cert", c.cfg.TLSCert}, {"cluster-tls-key", c.cfg.TLSKey}, {"cluster-tls-ca", c.cfg.TLSCA},
	} {
		if f.path != "" {
			names = append(names, f.name)
		}
	}
	return names
}

// useLocked puts changed content into use, and logs the result.
func (c *Cluster) useLocked(m *material, changed bool, err error) {
	if err == nil && changed && c.ring != nil {
		err = install(c.ring, m.keys)
	}
	c.mu.Lock()
	said := c.mu.filesError
	c.mu.filesError = ""
	if err != nil {
		c.mu.filesError = err.Error()
	} else if changed {
		c.mu.reloads++
	}
	c.mu.Unlock()
	switch {
	case err != nil && err.Error() != said:
		c.cfg.Log.Error().Err(err).Msg("cluster: cannot use changed files; the previous ones stay in use")
	case err == nil && changed:
		again := m.sum == c.material.sum
		c.material = m
		if c.creds != nil {
			c.creds.current.Store(m.id)
			c.port.recheck()
		}
		if !again {
			c.cfg.Log.Info().Int("keys", len(m.keys)).Msg("cluster: changed files are in use")
		}
	}
}

// newRing creates a ring of keys, nil without keys.
func newRing(keys [][]byte) (*memberlist.Keyring, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	return memberlist.NewKeyring(keys, keys[0])
}

// until returns the expiry of the certificate in use; zero = no certificate.
func (c *Cluster) until() time.Time {
	if c.creds == nil {
		return time.Time{}
	}
	return c.creds.current.Load().until()
}
