package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
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

// read reads the file of a setting; nil = none is set.
func (r *reader) read(v *settings.Faults, setting, path string, most int64, secret bool) []byte {
	if path == "" {
		return nil
	}
	data, warning, err := settings.ReadRegular(path, most)
	if err != nil {
		v.Add(setting, "%v", err)
	} else if secret && warning != "" {
		r.warn(setting + ": " + warning)
	}
	return data
}

// material reads keyring and certificates. The parameter last is the result of the previous call.
// If the files have the same content as then and no new certificate must be issued, material
// returns last and false. It also returns false after an error, which is added to v.
func (r *reader) material(last *material, v *settings.Faults) (m *material, changed bool) {
	c, now, before := r.c, r.c.Now(), len(v.List)
	ring := r.read(v, keyringSetting, c.Keyring, maxKeyringBytes, true)
	cert := r.read(v, certSetting, c.TLSCert, maxPEMBytes, false)
	key := r.read(v, keySetting, c.TLSKey, maxPEMBytes, true)
	ca := r.read(v, caSetting, c.TLSCA, maxPEMBytes, false)
	m = &material{}
	sum := sha256.New()
	for _, part := range [][]byte{ring, cert, key, ca} {
		fmt.Fprintf(sum, "%d\n", len(part))
		sum.Write(part)
	}
	sum.Sum(m.sum[:0])
	if len(v.List) == before && last != nil && m.sum == last.sum && (last.id == nil || last.id.renew.IsZero() || now.Before(last.id.renew)) {
		return last, false
	}
	var err error
	if c.Keyring != "" && !v.Has(keyringSetting) {
		if m.keys, err = parseKeyring(ring); err != nil {
			v.Add(keyringSetting, "%s: %v", c.Keyring, err)
		}
	}
	switch {
	case len(v.List) > before:
	case c.TLSCert != "" && c.TLSKey != "" && c.TLSCA != "":
		m.id = load(v, settings.PEMFile{Setting: certSetting, Path: c.TLSCert, Text: cert}, settings.PEMFile{Setting: keySetting, Path: c.TLSKey, Text: key},
			settings.PEMFile{Setting: caSetting, Path: c.TLSCA, Text: ca}, c.Node, now)
	case c.Keyring != "":
		if m.id, err = issue(m.keys, c.Name, c.Node, now); err != nil {
			v.Add(keyringSetting, "%v", err)
		}
	}
	return m, len(v.List) == before
}

// Settings that name files.
const (
	keyringSetting = "cluster-keyring"
	certSetting    = "cluster-tls-cert"
	keySetting     = "cluster-tls-key"
	caSetting      = "cluster-tls-ca"
	secretSetting  = "cluster-secret"
)

// secret returns the key for names. It reads the file of the key, if there is one.
func (r *reader) secret(keys [][]byte, v *settings.Faults) Secret {
	text := bytes.TrimSpace(r.read(v, secretSetting, r.c.SecretFile, maxKeyringBytes, true))
	if r.c.SecretFile != "" && len(text) < minSecretBytes && !v.Has(secretSetting) {
		v.Add(secretSetting, "%s: %d bytes, want at least %d", r.c.SecretFile, len(text), minSecretBytes)
	}
	return makeSecret(text, keys, r.c.Name)
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
	v := &settings.Faults{}
	m, changed := c.files.material(c.material, v)
	c.useLocked(m, changed, v.Err())
}

// Prepare reads and validates the files. It returns a function that puts their content into use;
// nil = that content is in use already, or an error was added to v.
func (c *Cluster) Prepare(v *settings.Faults) (use func()) {
	c.using.Lock()
	defer c.using.Unlock()
	m, changed := c.files.material(c.material, v)
	if !changed {
		return nil
	}
	return func() {
		c.using.Lock()
		defer c.using.Unlock()
		c.useLocked(m, true, nil)
	}
}

// Files returns the names of the settings that name the files read by this cluster.
func (c *Cluster) Files() (names []string) {
	for _, f := range []struct{ name, path string }{
		{keyringSetting, c.cfg.Keyring}, {certSetting, c.cfg.TLSCert}, {keySetting, c.cfg.TLSKey}, {caSetting, c.cfg.TLSCA},
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
