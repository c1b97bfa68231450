package peer

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// TestMain has fasthttp start the goroutine that it never ends (it keeps the date), so that
// it is not taken for a leak.
func TestMain(m *testing.M) {
	_, _ = (&fasthttp.ResponseHeader{}).WriteTo(io.Discard)
	os.Exit(m.Run())
}

func TestPeersConform(t *testing.T) {
	for name, o := range map[string]options{
		"plain":      {sources: 2},
		"tls":        {sources: 2, secure: true},
		"no address": {sources: 2, unpinned: true},
	} {
		o.cfg.FindTime, o.cfg.DialTime, o.cfg.StallTime = 3*time.Second, 2500*time.Millisecond, 2500*time.Millisecond // within Patience, as sources stall
		t.Run(name, func(t *testing.T) {
			if testing.Short() && !o.secure && !o.unpinned {
				t.Skip("short: the others have pinned memory, and no TLS")
			}
			tiertest.RemoteConformance(t, func(t testing.TB, tenants []tiertest.Tenant) tiertest.RemoteSubject {
				return open(t, tenants, o)
			})
		})
	}
}

// unpinned is a device whose memory has no address here.
type unpinned struct{ gpuipc.Device }

func (unpinned) Pin(gpuipc.Ref, bool) ([][]byte, func(), error) {
	return nil, nil, gpuipc.ErrUnavailable
}
