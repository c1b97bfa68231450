package cluster

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// identity is a node's certificate and the authorities that the node trusts. It is immutable.
type identity struct {
	cert  tls.Certificate
	roots *x509.CertPool
	// renew is the time to issue a new certificate; zero = it came from files.
	renew time.Time
}

// until returns the expiry of the certificate.
func (id *identity) until() time.Time { return id.cert.Leaf.NotAfter }

// verify checks a peer's certificate chain for one use (server or client). If name is not empty, it
// also checks that the certificate is for that name.
func (id *identity) verify(chain []*x509.Certificate, name string, use x509.ExtKeyUsage, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("cluster: the peer presented no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: id.roots, Intermediates: between, DNSName: name, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
	})
	return err
}

// Lifetime of a certificate that a node issues to itself. The lifetime allows clocks to differ by a
// day in either direction. A shorter one would only help against a stolen private key of a node,
// but that key never leaves the process, and a thief of the cluster's key can issue certificates
// anyway.
const (
	clockError  = 24 * time.Hour
	issuedLife  = 3 * 24 * time.Hour
	issuedRenew = 12 * time.Hour
)

// authority derives a certificate authority from a key of the cluster. Every node with that key
// derives the same authority.
func authority(key []byte, cluster string) (ed25519.PrivateKey, *x509.Certificate, error) {
	private := ed25519.NewKeyFromSeed(derive(key, "authority", cluster, ed25519.SeedSize))
	public := private.Public().(ed25519.PublicKey)
	id := sha256.Sum256(public)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "spliced cluster " + hex.EncodeToString(id[:8])},
		NotBefore: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return private, cert, err
}

// issue creates an identity from the cluster's keys. The authority of the first key issues the
// certificate, and the authorities of all keys are trusted. So nodes whose first keys differ during
// a key rotation continue to work together.
func issue(keys [][]byte, cluster, node string, now time.Time) (*identity, error) {
	id := &identity{roots: x509.NewCertPool(), renew: now.Add(issuedRenew)}
	for i, key := range keys {
		signer, ca, err := authority(key, cluster)
		if err != nil {
			return nil, err
		}
		id.roots.AddCert(ca)
		if i > 0 {
			continue
		}
		if id.cert, err = issueBy(signer, ca, node, now.Add(-clockError), now.Add(issuedLife)); err != nil {
			return nil, err
		}
	}
	return id, nil
}

func issueBy(signer ed25519.PrivateKey, ca *x509.Certificate, node string, from, until time.Time) (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: shortName(node)}, DNSNames: []string{node}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, public, signer)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}, err
}

// shortName returns the name cut to 64 bytes, the largest size of a certificate's common name.
func shortName(node string) string { return node[:min(len(node), 64)] }

// load creates an identity from PEM files. It adds an error for a certificate that peers would
// refuse: one from another authority, for another node, or outside its validity, or one that may
// not be used both as a server's and as a client's.
func load(v *settings.Faults, certificate, key, ca settings.PEMFile, node string, now time.Time) *identity {
	cert := v.Pair(certificate, key)
	id := &identity{roots: x509.NewCertPool()}
	if err := addAuthorities(id.roots, ca.Text); err != nil {
		v.Add(ca.Setting, "%s: %v", ca.Path, err)
		return nil
	}
	if cert == nil {
		return nil
	}
	var chain []*x509.Certificate
	for _, der := range cert.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			v.Add(certificate.Setting, "%s: %v", certificate.Path, err)
			return nil
		}
		chain = append(chain, c)
	}
	id.cert = *cert
	id.cert.Leaf = chain[0]
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := id.verify(chain, node, use, now); err != nil {
			v.Add(certificate.Setting, "%s: peers would refuse this certificate: %v", certificate.Path, err)
			return nil
		}
	}
	return id
}

func addAuthorities(pool *x509.CertPool, text []byte) error {
	n := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("authority %d: %w", n, err)
		}
		pool.AddCert(c)
		n++
	}
	if n == 0 {
		return errors.New("no certificate authority in the file")
	}
	return nil
}

// credentials hold the identity that new handshakes use.
type credentials struct {
	// protocol contains a hash of the cluster's name and is negotiated by ALPN. So a node of another
	// cluster is refused, even if the same authority signed its certificate and its address
	// belonged to this cluster before.
	protocol string
	now      func() time.Time
	current  atomic.Pointer[identity]
}

func newCredentials(cluster string, now func() time.Time) *credentials {
	name := sha256.Sum256([]byte(cluster))
	return &credentials{protocol: fmt.Sprintf("spliced-%d-%x", Protocol, name[:8]), now: now}
}

// base returns the configuration common to both sides. Sessions are not resumed, since a resumed
// session could outlive the authority that verified it.
func (c *credentials) base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{c.protocol}, SessionTicketsDisabled: true, Time: c.now}
}

// server returns the configuration of the peers' port.
func (c *credentials) server() *tls.Config {
	outer := c.base()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		id, config := c.current.Load(), c.base()
		config.Certificates = []tls.Certificate{id.cert}
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, id.roots
		// The server must check: a client that offers no protocol passes the negotiation.
		config.VerifyConnection = c.negotiated
		return config, nil
	}
	return outer
}

func (c *credentials) negotiated(cs tls.ConnectionState) error {
	if cs.NegotiatedProtocol != c.protocol {
		return fmt.Errorf("cluster: the peer speaks %.64q, not %q: another cluster, or another release", cs.NegotiatedProtocol, c.protocol)
	}
	return nil
}

// client returns the configuration for connections to a node.
func (c *credentials) client(node string) *tls.Config {
	config := c.base()
	config.ServerName = node
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.current.Load().cert, nil }
	// crypto/tls supports only authorities that never change. So its own verification is off, and
	// VerifyConnection, which is called in every handshake, does all of it.
	config.InsecureSkipVerify = true
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		if err := c.negotiated(cs); err != nil {
			return err
		}
		return c.current.Load().verify(cs.PeerCertificates, node, x509.ExtKeyUsageServerAuth, c.now())
	}
	return config
}

// accepted reports whether a new handshake with the peer of an open connection would succeed.
func (c *credentials) accepted(cs *tls.ConnectionState) bool {
	return c.current.Load().verify(cs.PeerCertificates, "", x509.ExtKeyUsageClientAuth, c.now()) == nil
}
