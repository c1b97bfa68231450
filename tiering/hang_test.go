package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// A write that hangs costs the memory it reads and a few refusals, until it is
// seen to hang; then the rest of the pool serves who publishes, whether what is in
// it could be dropped at once or would have to be written.
func TestWriteThatHangsDoesNotStopReservations(t *testing.T) {
	for name, clean := range map[string]bool{"others are on disk": true, "others are only in memory": false} {
		t.Run(name, func(t *testing.T) {
			x := newTwoTiers(t, hybrid(1), poolOf(8))
			x.objects.WriteBehind = true
			x.publish(x.c, x.mid(0, 64, 8)) // its write never ends
			x.objects.WriteBehind = clean
			for i := 1; i < 8; i++ {
				x.publish(x.c, x.mid(i, 64, 8))
				if clean {
					x.tier.finish(1, nil)
				}
			}
			// The oldest leaves, and its memory with it only when it was read.
			_, err := x.c.Reserve(x.reserveQuery(x.mid(99, 64, 8), 0))
			x.wantErr(err, tier.ErrBusy)
			for range hungSweeps {
				x.Sweep()
			}
			for i := range 50 {
				r, err := x.c.Reserve(x.reserveQuery(x.mid(100+i, 64, 8), 0))
				if err != nil {
					t.Fatalf("reservation %d: %v", i, err)
				}
				x.must(x.c.Abort(r.ID))
				x.audit()
			}
			x.tier.finishAll()
			x.audit()
		})
	}
}
