package daemon

import (
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// A device whose streams cannot write numbers lends a pair of events beside the
// page, and the numbers then say that an event was recorded.
func TestWithoutStreamMemoryOperationsThereIsAPairOfEvents(t *testing.T) {
	for name, lacking := range map[string]bool{"with": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			lib := fakecuda.Open(t)
			if lacking {
				lib.Set(t, "NOWAITVALUE", "1")
			}
			r, _ := startFake(t, deviceConfig(t))
			before := lib.Stats().Events
			c := deviceHello(t, r.Socket())
			reply := c.attachUnmapped(3, nil)
			if got := len(reply.Events) != 0; got != lacking {
				t.Errorf("%d bytes of handles", len(reply.Events))
			}
			if made := lib.Stats().Events - before; lacking && made < 2 {
				t.Errorf("%d events were made", made)
			}
			c.close()
			r.deviceAtRest()
		})
	}
}
