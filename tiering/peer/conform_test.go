package peer

import (
	"net"
	"os"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// TestMain has fasthttp start the goroutine that it never ends, so that it is not taken
// for a leak.
func TestMain(m *testing.M) {
	listen := must(net.Listen("tcp", "127.0.0.1:0"))
	_ = listen.Close()
	_ = (&fasthttp.Server{Handler: func(*fasthttp.RequestCtx) {}}).Serve(listen)
	os.Exit(m.Run())
}

func TestPeersConform(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			tiertest.RemoteConformance(t, func(t testing.TB, tenants []tiertest.Tenant) tiertest.RemoteSubject {
				return open(t, tenants, options{sources: 2, secure: secure})
			})
		})
	}
}
