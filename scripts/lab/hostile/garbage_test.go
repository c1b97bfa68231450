package hostile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"golang.org/x/sys/unix"
)

// Frames of random bytes cost their sender the connection and nobody else anything.
func TestHostileGarbageEndsItsConnectionOnly(t *testing.T) {
	v := start(t, bounds{})
	other := v.client(connector.Options{Name: "other"})
	epoch := other.Epoch()
	const frames = 500
	for range frames {
		conn, err := seqpacket.Dial(v.Socket, patience)
		if err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, 200)
		rand.Read(frame)
		// Beyond the bound on connections of one user it has ended already.
		if err := conn.Send(frame, nil); err != nil && !errors.Is(err, seqpacket.ErrClosed) && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			t.Error(err)
		}
		conn.Close()
	}
	if !other.Attached() || other.Epoch() != epoch {
		t.Errorf("the other client is attached: %v, to epoch %d, before to %d", other.Attached(), other.Epoch(), epoch)
	}
	v.mustRun()
	report(t, fmt.Sprintf("%d frames of random bytes", frames), "an end of each connection", "nothing, its connection stayed")
}
