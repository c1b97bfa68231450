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

// openSecrets reads the files at the start. The tokens of tenants were read with the configuration.
func (d *Daemon) openSecrets() error {
	m, r := d.readMaterial(false)
	if len(r.bad) > 0 {
		var failed []error
		for _, f := range r.bad {
			failed = append(failed, fmt.Errorf("%s: %s", f.Parameter, f.Detail))
		}
		return fmt.Errorf("%w: %w", errors.Join(failed...), settings.ErrConfig)
	}
	d.secrets.material = *m
	d.secrets.certificate.Store(m.pair)
	return nil
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

// reading is the result of reading the files.
type reading struct {
	read, changed []string
	bad           []api.Violation
}

// done records the result of reading the file of a setting.
func (r *reading) done(setting string, changed bool, err error) {
	if err != nil {
		r.bad = append(r.bad, api.Violation{Parameter: setting, Detail: err.Error()})
		return
	}
	r.read = append(r.read, setting)
	if changed {
		r.changed = append(r.changed, setting)
	}
}

// readMaterial reads the files. It reads the files of tenants only if the parameter again is true.
func (d *Daemon) readMaterial(again bool) (*material, *reading) {
	c, was, r := &d.config, &d.secrets.material, &reading{}
	m := &material{tenants: slices.Clone(c.Tenants)}
	secret := func(setting, path string, into *string, before string, least, most int) {
		if path == "" {
			return
		}
		text, warning, err := settings.ReadSecret(path)
		if err == nil && (len(text) < least || len(text) > most) {
			err = fmt.Errorf("%s has %d bytes, want %d to %d", path, len(text), least, most)
		}
		if err == nil && warning != "" && text != before {
			d.log.Warn().Msg(setting + ": " + warning)
		}
		*into = text
		r.done(setting, text != before, err)
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
	if c.AdminTLSCert != "" {
		pair, pem, err := readPair(c.AdminTLSCert, c.AdminTLSKey)
		m.pair, m.pem = pair, pem
		r.done("admin-tls-cert-file", pem != was.pem, err)
	}
	return m, r
}

// readPair reads a certificate and its key. It also returns their text, to detect changes.
func readPair(certPath, keyPath string) (*tls.Certificate, string, error) {
	cert, _, err1 := settings.ReadRegular(certPath, maxPEMBytes)
	key, _, err2 := settings.ReadRegular(keyPath, maxPEMBytes)
	if err := errors.Join(err1, err2); err != nil {
		return nil, "", err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, "", fmt.Errorf("%s with %s: %w", certPath, keyPath, err)
	}
	return &pair, string(cert) + string(key), nil
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
	m, r := d.readMaterial(true)
	var useCluster func()
	if d.peers != nil {
		use, err := d.peers.cluster.Prepare()
		useCluster = use
		for _, setting := range d.peers.cluster.Files() {
			r.done(setting, use != nil, err)
			if err != nil {
				break // the error names the file
			}
		}
	}
	out := api.Reloaded{DryRun: dry, Read: r.read, Changed: r.changed}
	if len(r.bad) > 0 {
		return api.Reloaded{DryRun: dry}, api.BadFiles(r.bad)
	}
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
