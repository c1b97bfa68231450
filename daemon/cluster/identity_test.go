package cluster

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// issued are the credentials that a node makes itself from keys.
func issued(t *testing.T, cluster, node string, now func() time.Time, keys ...[]byte) *credentials {
	t.Helper()
	id, err := issue(keys, cluster, node, now())
	must(t, err)
	c := newCredentials(cluster, now)
	c.current.Store(id)
	return c
}

// shake lets two sides talk over a connection of loopback. Each error is one side's, which
// in TLS 1.3 may only come when it reads.
func shake(t *testing.T, server, client *tls.Config) (ofServer, ofClient error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	done := make(chan error, 1)
	talk := func(c *tls.Conn) error {
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if err := c.Handshake(); err != nil {
			return err
		}
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 1))
		return err
	}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		done <- talk(tls.Server(conn, server))
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	ofClient = talk(tls.Client(conn, client))
	return <-done, ofClient
}

func wallClock() time.Time { return time.Now() }

func TestWhoseCertificatesAreAccepted(t *testing.T) {
	a, b := keyOf('a'), keyOf('b')
	shifted := func(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }
	server := issued(t, "c", "s", wallClock, a)
	rotated := server.server()
	for name, row := range map[string]struct {
		server *tls.Config
		client *tls.Config
		want   string // in one of the errors; empty = both are content
	}{
		"one key":                         {server.server(), issued(t, "c", "d", wallClock, a).client("s"), ""},
		"both keys, each another first":   {issued(t, "c", "s", wallClock, a, b).server(), issued(t, "c", "d", wallClock, b, a).client("s"), ""},
		"the new key is added here only":  {issued(t, "c", "s", wallClock, a, b).server(), issued(t, "c", "d", wallClock, a).client("s"), ""},
		"the old one is gone here only":   {issued(t, "c", "s", wallClock, b).server(), issued(t, "c", "d", wallClock, b, a).client("s"), ""},
		"a clock an hour off":             {server.server(), issued(t, "c", "d", shifted(time.Hour), a).client("s"), ""},
		"a clock an hour off, behind":     {server.server(), issued(t, "c", "d", shifted(-time.Hour), a).client("s"), ""},
		"another key":                     {server.server(), issued(t, "c", "d", wallClock, b).client("s"), "unknown authority"},
		"another key at the server":       {issued(t, "c", "s", wallClock, b).server(), issued(t, "c", "d", wallClock, a).client("s"), "unknown authority"},
		"another node than was dialled":   {server.server(), issued(t, "c", "d", wallClock, a).client("e"), "not e"},
		"another cluster":                 {server.server(), issued(t, "other", "d", wallClock, a).client("s"), "no application protocol"},
		"a client whose time has passed":  {server.server(), withClock(issued(t, "c", "d", shifted(-100*time.Hour), a), wallClock).client("s"), "expired"},
		"a server whose time has passed":  {withClock(issued(t, "c", "s", shifted(-100*time.Hour), a), wallClock).server(), issued(t, "c", "d", wallClock, a).client("s"), "expired"},
		"a server whose time is to come":  {withClock(issued(t, "c", "s", shifted(100*time.Hour), a), wallClock).server(), issued(t, "c", "d", wallClock, a).client("s"), "not yet valid"},
		"a client without certificate":    {rotated, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{server.protocol}}, "didn't provide a certificate"},
		"a client that names no protocol": {rotated, without(issued(t, "c", "d", wallClock, a).client("s")), "another cluster, or another release"},
		"TLS 1.2":                         {rotated, older(issued(t, "c", "d", wallClock, a).client("s")), "protocol version"},
	} {
		t.Run(name, func(t *testing.T) {
			ofServer, ofClient := shake(t, row.server, row.client)
			if row.want == "" {
				if ofServer != nil || ofClient != nil {
					t.Errorf("server %v, client %v", ofServer, ofClient)
				}
				return
			}
			if ofServer == nil || ofClient == nil {
				t.Errorf("server %v, client %v: one of them was content", ofServer, ofClient)
			}
			all := strings.Join([]string{text(ofServer), text(ofClient)}, "; ")
			if !strings.Contains(all, row.want) {
				t.Errorf("%s; want %q", all, row.want)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func withClock(c *credentials, now func() time.Time) *credentials {
	c.now = now
	return c
}

func without(c *tls.Config) *tls.Config {
	c.NextProtos, c.VerifyConnection = nil, nil
	return c
}

func older(c *tls.Config) *tls.Config {
	c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	return c
}

func TestAConfigurationFollowsTheCredentials(t *testing.T) {
	s, d := issued(t, "c", "s", wallClock, keyOf('a')), issued(t, "c", "d", wallClock, keyOf('a'))
	server, client := s.server(), d.client("s")
	if a, b := shake(t, server, client); a != nil || b != nil {
		t.Fatalf("server %v, client %v", a, b)
	}
	s.current.Store(issued(t, "c", "s", wallClock, keyOf('b')).current.Load())
	if a, b := shake(t, server, client); a == nil || b == nil {
		t.Fatalf("server %v, client %v: keys differ", a, b)
	}
	d.current.Store(issued(t, "c", "d", wallClock, keyOf('b')).current.Load())
	if a, b := shake(t, server, client); a != nil || b != nil {
		t.Fatalf("server %v, client %v", a, b)
	}
}

func TestAnAuthorityIsTheSameOnAllNodes(t *testing.T) {
	_, one, err := authority(keyOf('a'), "c")
	must(t, err)
	if _, again, _ := authority(keyOf('a'), "c"); !bytes.Equal(one.Raw, again.Raw) {
		t.Error("two nodes make different authorities of one key")
	}
	for name, other := range map[string][2]string{"another cluster": {"a", "d"}, "another key": {"b", "c"}} {
		if _, cert, _ := authority(keyOf(other[0][0]), other[1]); bytes.Equal(one.Raw, cert.Raw) {
			t.Errorf("%s has the same", name)
		}
	}
}

// office issues certificates as an operator would.
type office struct {
	t    *testing.T
	key  ed25519.PrivateKey
	cert *x509.Certificate
}

func newOffice(t *testing.T, name string) *office {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return &office{t, private, cert}
}

func (o *office) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.cert.Raw})
}

// issue gives certificate and key as PEM.
func (o *office) issue(node string, until time.Time, uses ...x509.ExtKeyUsage) (cert, key []byte) {
	o.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		o.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{node}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: uses,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, o.cert, public, o.key)
	if err != nil {
		o.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		o.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

var bothUses = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}

func TestACertificateThatPeersWouldRefuseIsNotUsed(t *testing.T) {
	good, other := newOffice(t, "good"), newOffice(t, "other")
	later := time.Now().Add(time.Hour)
	cert, key := good.issue("n", later, bothUses...)
	use := func(cert, key, ca []byte, node string) (*identity, error) {
		v := &settings.Faults{}
		id := load(v, settings.PEMFile{Setting: certSetting, Path: "n.crt", Text: cert}, settings.PEMFile{Setting: keySetting, Path: "n.key", Text: key},
			settings.PEMFile{Setting: caSetting, Path: "n.ca", Text: ca}, node, time.Now())
		return id, v.Err()
	}
	if id, err := use(cert, key, append(other.pem(), good.pem()...), "n"); err != nil || id.until().Sub(later).Abs() > time.Second {
		t.Fatalf("%+v, %v", id, err)
	}
	_, foreignKey := good.issue("n", later, bothUses...)
	elsewhere, elsewhereKey := other.issue("n", later, bothUses...)
	serverOnly, serverKey := good.issue("n", later, x509.ExtKeyUsageServerAuth)
	past, pastKey := good.issue("n", time.Now().Add(-time.Minute), bothUses...)
	for name, row := range map[string]struct {
		cert, key, ca []byte
		node, want    string
	}{
		"another node's":      {cert, key, good.pem(), "m", "not m"},
		"a key of another":    {cert, foreignKey, good.pem(), "n", "cluster-tls-key: n.key is not the key of the certificate in n.crt"},
		"another authority":   {elsewhere, elsewhereKey, good.pem(), "n", "unknown authority"},
		"for servers only":    {serverOnly, serverKey, good.pem(), "n", "incompatible key usage"},
		"its time has passed": {past, pastKey, good.pem(), "n", "expired"},
		"no authority":        {cert, key, key, "n", "cluster-tls-ca: n.ca: no certificate authority in the file"},
		"no certificate":      {nil, key, good.pem(), "n", "cluster-tls-cert: n.crt has no certificate in PEM"},
		"no key":              {cert, cert, good.pem(), "n", "cluster-tls-key: n.key has no private key in PEM"},
	} {
		if _, err := use(row.cert, row.key, row.ca, row.node); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}
