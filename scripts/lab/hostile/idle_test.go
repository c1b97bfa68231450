package hostile

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// Whoever can reach the port cannot keep the kubelet out, and so have the pod killed.
func TestHostileIdleConnectionsDoNotKeepProbesOut(t *testing.T) {
	v := start(t, bounds{})
	idle := p99(100, func() { v.mustProbe() })
	stop := make(chan struct{})
	var attackers sync.WaitGroup
	const each = 100
	for _, says := range []string{"", "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET /livez HTTP/1.1\r\nHost: local"} {
		for range 2 {
			attackers.Go(func() { v.holdOpen(says, each, stop) })
		}
	}
	eventually(t, "the attackers are there", func() bool {
		n, _ := v.metric(`spliced_admin_connections_closed_total{reason="idle"}`)
		return n > 0
	})
	calls := 20
	if *bars {
		calls = 100
	}
	felt := p99(calls, func() { v.mustProbe() })
	close(stop)
	attackers.Wait()
	if *bars && felt > 2*time.Second {
		t.Errorf("p99 of a probe %v under attack, %v before", felt, idle)
	}
	report(t, fmt.Sprintf("%d connections that say nothing, half a request, or read no answer, opened again when closed", 6*each), "an end of his own connections",
		fmt.Sprintf("p99 of a probe %v, idle %v, on processors that also opened a thousand connections a second", felt.Round(time.Microsecond), idle.Round(time.Microsecond)))
}

// probes is how often the kubelet asks before it gives up; docker/sidecar.yaml says 6.
const probes = 3

// mustProbe asks /livez on connections of its own, as the kubelet does. Where there is
// little processor time, one may be the longest idle before it is read.
func (v *victim) mustProbe() {
	v.t.Helper()
	for i := 1; ; i++ {
		status, body := v.get("/livez")
		if status == http.StatusOK {
			return
		}
		if i == probes {
			v.t.Errorf("/livez answers %d %s, %d times", status, body, probes)
			return
		}
	}
}

// holdOpen keeps n connections that have said the same and read nothing.
func (v *victim) holdOpen(says string, n int, stop <-chan struct{}) {
	conns := make([]net.Conn, n)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i := 0; ; i = (i + 1) % n {
		select {
		case <-stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		if conns[i] != nil {
			conns[i].Close()
		}
		conn, err := net.Dial("tcp", v.HTTP)
		if err != nil {
			v.t.Error(err)
			return
		}
		_, _ = conn.Write([]byte(says)) // it may be closed already
		conns[i] = conn
	}
}
