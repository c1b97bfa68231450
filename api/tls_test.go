package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
)

// selfSigned is a certificate for tests.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Connections that never finish their handshake take no place from requests: those that have
// one keep it, and new ones get one.
func TestUnfinishedHandshakesTakeNoPlaceFromRequests(t *testing.T) {
	f := newFake(0)
	s, err := New(Options{Shown: f.shown(), Metrics: prometheus.NewRegistry(), Log: zerolog.Nop()})
	must(t, err)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	config := &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}}
	go func() { done <- s.Run(ctx, Listener{Listener: tls.NewListener(tcp, config)}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	trusting := &tls.Config{InsecureSkipVerify: true}
	kept, err := tls.Dial("tcp", tcp.Addr().String(), trusting)
	must(t, err)
	defer kept.Close()
	must(t, exchange(kept))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting, DisableKeepAlives: true}}
	for i := range 2 * maxHandshakes {
		conn, err := net.Dial("tcp", tcp.Addr().String())
		must(t, err)
		defer conn.Close()
		if i%maxConnections == maxConnections-1 { // now and then, so that its place is never the oldest
			if err := exchange(kept); err != nil {
				t.Fatalf("a connection in use, beside %d silent ones: %v", i+1, err)
			}
			if status, _, body := request(t, client, http.MethodGet, "https://"+tcp.Addr().String()+"/livez"); status != http.StatusOK {
				t.Fatalf("a new connection beside %d silent ones: %d %s", i+1, status, body)
			}
		}
	}
	count := func(reason string) float64 {
		var m dto.Metric
		must(t, s.turnedAway.WithLabelValues(reason).Write(&m))
		return m.Counter.GetValue()
	}
	if idle, bound := count("idle"), count("bound"); idle+bound > 0 {
		t.Errorf("%v idle connections were closed, %v refused", idle, bound)
	}
}
