package peer

import (
	"io"
	"os"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// TestMain has fasthttp start the goroutine that it never ends (it keeps the date), so that
// it is not taken for a leak.
func TestMain(m *testing.M) {
	_, _ = (&fasthttp.ResponseHeader{}).WriteTo(io.Discard)
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
