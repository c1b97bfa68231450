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
)

// identity is what a node shows to peers and what it believes of theirs. It does not
// change.
type identity struct {
	cert  tls.Certificate
	roots *x509.CertPool
	// renew is when to issue another one; zero for one that came from files.
	renew time.Time
}

// until is when the certificate ends.
func (id *identity) until() time.Time { return id.cert.Leaf.NotAfter }

// verify checks a peer's chain for one use, and for a name unless that is empty.
func (id *identity) verify(chain []*x509.Certificate, name string, use x509.ExtKeyUsage, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("cluster: the peer shows no certificate")
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

// Life of a certificate that a node issues to itself. Who has the cluster's key can issue
// any, so a short life protects from a stolen node key only, and that never leaves the
// process. What it has to bear is clocks that disagree: by a day, either way.
const (
	clockError  = 24 * time.Hour
	issuedLife  = 3 * 24 * time.Hour
	issuedRenew = 12 * time.Hour
)

// authority derives a certificate authority from a key of the cluster. It is the same on
// every node that has the key, to the byte.
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

// issue makes an identity from the cluster's keys: the authority of the first key issues,
// those of all keys are believed. So while keys are rotated, nodes whose first keys differ
// go on with each other.
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

// shortName is a common name, which has 64 bytes at most.
func shortName(node string) string { return node[:min(len(node), 64)] }

// load makes an identity from PEM files. What peers would refuse is refused here: a
// certificate that is not of this authority, not for this node, not for both uses, or
// out of its time.
func load(certificate, key, ca []byte, node string, now time.Time) (*identity, error) {
	cert, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("cluster: certificate and key: %w", err)
	}
	id := &identity{cert: cert, roots: x509.NewCertPool()}
	if err := addAuthorities(id.roots, ca); err != nil {
		return nil, err
	}
	var chain []*x509.Certificate
	for _, der := range cert.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("cluster: certificate: %w", err)
		}
		chain = append(chain, c)
	}
	id.cert.Leaf = chain[0]
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := id.verify(chain, node, use, now); err != nil {
			return nil, fmt.Errorf("cluster: peers would refuse this certificate: %w", err)
		}
	}
	return id, nil
}

func addAuthorities(pool *x509.CertPool, text []byte) error {
	n := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("cluster: authority %d: %w", n, err)
		}
		pool.AddCert(c)
		n++
	}
	if n == 0 {
		return errors.New("cluster: no authority in the file")
	}
	return nil
}

// credentials hold the identity that is in use, for handshakes that begin now.
type credentials struct {
	// protocol is negotiated (ALPN), so that a node of another cluster, which may have
	// certificates of the same authority and an address that was ours, is refused.
	protocol string
	now      func() time.Time
	current  atomic.Pointer[identity]
}

func newCredentials(cluster string, now func() time.Time) *credentials {
	name := sha256.Sum256([]byte(cluster))
	return &credentials{protocol: fmt.Sprintf("spliced-%d-%x", Protocol, name[:8]), now: now}
}

// base is what both sides of a connection have in common. Nothing is resumed: a session
// would outlive the authority that it was verified with.
func (c *credentials) base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{c.protocol}, SessionTicketsDisabled: true, Time: c.now}
}

// server gives the configuration of the peers' port.
func (c *credentials) server() *tls.Config {
	outer := c.base()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		id, config := c.current.Load(), c.base()
		config.Certificates = []tls.Certificate{id.cert}
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, id.roots
		// A client that offers no protocol passes the negotiation.
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

// client gives the configuration for connections to a node.
func (c *credentials) client(node string) *tls.Config {
	config := c.base()
	config.ServerName = node
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.current.Load().cert, nil }
	// crypto/tls has authorities that do not change only, so VerifyConnection, which is
	// called in every handshake, does all that it would do.
	config.InsecureSkipVerify = true
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		if err := c.negotiated(cs); err != nil {
			return err
		}
		return c.current.Load().verify(cs.PeerCertificates, node, x509.ExtKeyUsageServerAuth, c.now())
	}
	return config
}

// accepted reports whether the peer of an open connection would be accepted now.
func (c *credentials) accepted(cs *tls.ConnectionState) bool {
	return c.current.Load().verify(cs.PeerCertificates, "", x509.ExtKeyUsageClientAuth, c.now()) == nil
}
