package hostile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Whoever begins TLS handshakes and does not go on keeps no probe out, from an address of his
// own or from the one that the probes come from.
func TestHostileHandshakesDoNotKeepProbesOut(t *testing.T) {
	cert, key := certificate(t)
	hello := clientHello(t)
	for _, c := range []struct {
		from, name string
		pause      time.Duration // 0 = as fast as it goes
	}{{"127.0.0.2", "another address", 0}, {"127.0.0.1", "the address of the probes", 2 * time.Millisecond}} {
		t.Run(c.name, func(t *testing.T) {
			v := start(t, bounds{}, "-admin-tls-cert-file="+cert, "-admin-tls-key-file="+key)
			idle := p99(20, func() { v.mustProbe() })
			stop := make(chan struct{})
			var attackers sync.WaitGroup
			var begun atomic.Int64
			for _, says := range [][]byte{nil, hello[:5], hello} {
				for range 2 {
					attackers.Go(func() { v.halfOpen(c.from, c.pause, says, &begun, stop) })
				}
			}
			end := sync.OnceFunc(func() { close(stop); attackers.Wait() })
			defer end()
			eventually(t, "the attackers are there", func() bool { return begun.Load() > 1000 })
			first, at := begun.Load(), time.Now()
			felt := p99(30, func() { v.mustProbe() })
			rate := float64(begun.Load()-first) / time.Since(at).Seconds()
			end()
			if *bars && felt > 2*time.Second {
				t.Errorf("p99 of a probe %v under attack, %v before", felt, idle)
			}
			report(t, fmt.Sprintf("%.0f handshakes a second from %s that stop before the first byte, within the first record or behind it", rate, c.name), "an end of his own connections",
				fmt.Sprintf("p99 of a probe %v, idle %v", felt.Round(time.Microsecond), idle.Round(time.Microsecond)))
		})
	}
}

// halfOpen keeps opening connections that say the same and nothing more, and holds the last ones.
func (v *victim) halfOpen(from string, pause time.Duration, says []byte, begun *atomic.Int64, stop <-chan struct{}) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	var conns [200]net.Conn
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i := 0; ; i = (i + 1) % len(conns) {
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
		if conns[i] != nil {
			conns[i].Close()
		}
		conn, err := dialer.Dial("tcp", v.HTTP)
		if err != nil {
			v.t.Error(err)
			return
		}
		_, _ = conn.Write(says) // it may be closed already
		conns[i] = conn
		begun.Add(1)
	}
}

// clientHello is the first record that a client sends.
func clientHello(t testing.TB) []byte {
	t.Helper()
	mine, theirs := net.Pipe()
	defer mine.Close()
	go func() {
		_ = tls.Client(theirs, &tls.Config{InsecureSkipVerify: true}).Handshake() // is not answered
	}()
	b := make([]byte, 4<<10)
	n, err := mine.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// certificate writes one that nobody else knows, and its key.
func certificate(t testing.TB) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	cert, key = filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
