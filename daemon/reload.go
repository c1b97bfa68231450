package daemon

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/tiering/object"
)

// secrets holds the contents of files that can be read again: tokens of tenants, tokens of the
// admin REST, and its certificate. The cluster manages its own files.
type secrets struct {
	reading sync.Mutex
	material
	certificate atomic.Pointer[tls.Certificate] // nil = plain http
}

// material is the content of the files. It is guarded by secrets.reading once the daemon runs.
type material struct {
	tokens  api.Tokens
	tenants []settings.Tenant
	pair    *tls.Certificate
	pem     string // certificate and key that pair was read from
}

// maxPEMBytes is the largest size of a file with a certificate and its chain, or with a key.
const maxPEMBytes = 1 << 20

// readFiles reads the files that settings name, except the tokens of tenants, which were read with
// the configuration.
func (d *Daemon) readFiles(v *settings.Faults) {
	c := &d.config
	m, _ := d.readMaterial(false, v)
	d.secrets.material = *m
	d.secrets.certificate.Store(m.pair)
	if c.UsesCluster() {
		var err error
		d.peers, err = d.newPeers()
		if files, ok := errors.AsType[*settings.Faults](err); ok {
			v.List = append(v.List, files.List...)
		} else if err != nil && len(v.List) == 0 {
			v.Add("cluster-seeds", "%v", err)
		}
	}
	if c.UsesObject() {
		d.objectKey = d.objectSecret(v)
		if err := object.CheckAuthorities(c.ObjectCA); err != nil {
			v.Add("object-ca", "%v", err)
		}
	}
}

// listener wraps a listener in TLS, if there is a certificate.
func (s *secrets) listener(l net.Listener) net.Listener {
	if s.pair == nil {
		return l
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.certificate.Load(), nil },
	})
}

// reading lists the settings whose files were read, and those whose files have changed.
type reading struct{ read, changed []string }

func (r *reading) done(setting string, changed bool) {
	r.read = append(r.read, setting)
	if changed {
		r.changed = append(r.changed, setting)
	}
}

// readMaterial reads the files. It reads the files of tenants only if the parameter again is true.
func (d *Daemon) readMaterial(again bool, v *settings.Faults) (*material, *reading) {
	c, was, r := &d.config, &d.secrets.material, &reading{}
	m := &material{tenants: slices.Clone(c.Tenants)}
	secret := func(setting, path string, into *string, before string, least, most int) {
		if path == "" {
			return
		}
		text, warning, err := settings.ReadSecret(path)
		switch {
		case err != nil:
			v.Add(setting, "%v", err)
		case len(text) < least || len(text) > most:
			v.Add(setting, "%s has %d bytes, want %d to %d", path, len(text), least, most)
		case warning != "" && text != before:
			d.log.Warn().Msg(setting + ": " + warning)
		}
		*into = text
		r.done(setting, text != before)
	}
	const least, most = api.MinToken, 4096
	secret("token-file", c.TokenFile, &m.tokens.Token, was.tokens.Token, least, most)
	secret("router-token-file", c.RouterTokenFile, &m.tokens.RouterToken, was.tokens.RouterToken, least, most)
	secret("admin-read-token-file", c.AdminReadTokenFile, &m.tokens.ReadToken, was.tokens.ReadToken, least, most)
	if again {
		for i := range m.tenants {
			t := &m.tenants[i]
			secret(fmt.Sprintf("tenants[%d].token_file", i), t.TokenFile, &t.Token, was.tenants[i].Token, 1, settings.MaxTenantToken)
		}
	}
	if c.AdminTLSCert != "" && c.AdminTLSKey != "" {
		m.pair, m.pem = readPair(c, v)
		r.done("admin-tls-cert-file", m.pem != was.pem)
	}
	return m, r
}

// readPair reads the certificate of the admin REST and its key. It also returns their text, to detect
// changes.
func readPair(c *settings.Config, v *settings.Faults) (*tls.Certificate, string) {
	cert, _, err1 := settings.ReadRegular(c.AdminTLSCert, maxPEMBytes)
	key, _, err2 := settings.ReadRegular(c.AdminTLSKey, maxPEMBytes)
	if err1 != nil {
		v.Add("admin-tls-cert-file", "%v", err1)
	}
	if err2 != nil {
		v.Add("admin-tls-key-file", "%v", err2)
	}
	if err1 != nil || err2 != nil {
		return nil, ""
	}
	pair := v.Pair(settings.PEMFile{Setting: "admin-tls-cert-file", Path: c.AdminTLSCert, Text: cert},
		settings.PEMFile{Setting: "admin-tls-key-file", Path: c.AdminTLSKey, Text: key})
	return pair, string(cert) + string(key)
}

// Reload reads the files of keys, tokens and certificates again. It puts all of them into use, or
// none if any is bad, and reports the bad ones. If the parameter dry is true, it only checks them.
// New tokens apply from the next client or request on.
func (d *Daemon) Reload(dry bool) (api.Reloaded, error) {
	select {
	case <-d.ready:
	default:
		return api.Reloaded{}, fmt.Errorf("the daemon is still opening %s: %w", *d.stage.Load(), api.ErrUnavailable)
	}
	s := &d.secrets
	s.reading.Lock()
	defer s.reading.Unlock()
	v := &settings.Faults{}
	m, r := d.readMaterial(true, v)
	var useCluster func()
	if d.peers != nil {
		useCluster = d.peers.cluster.Prepare(v)
		for _, setting := range d.peers.cluster.Files() {
			r.done(setting, useCluster != nil)
		}
	}
	if len(v.List) > 0 {
		var bad []api.Violation
		for _, f := range v.List {
			bad = append(bad, api.Violation{Parameter: f.Setting, Detail: f.Text})
		}
		return api.Reloaded{DryRun: dry}, api.BadFiles(bad)
	}
	out := api.Reloaded{DryRun: dry, Read: r.read, Changed: r.changed}
	if dry {
		return out, nil
	}
	s.material = *m
	d.rest.SetTokens(m.tokens)
	d.server.SetTokens(m.tenants)
	if m.pair != nil {
		s.certificate.Store(m.pair)
	}
	if useCluster != nil {
		useCluster()
	}
	return out, nil
}

// ReloadOnSignal calls Reload and reports the result only in the log.
func (d *Daemon) ReloadOnSignal() {
	r, err := d.Reload(false)
	e := d.log.Log().Str("level", "info").Str("audit", "reload").Str("client", "SIGHUP")
	if err != nil {
		e.Err(err).Msg("a change was refused")
		return
	}
	e.Strs("read", r.Read).Strs("changed", r.Changed).Msg("a change by an operator")
}
