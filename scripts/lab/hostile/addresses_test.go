package hostile

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/spliced-kv/spliced/connector"
)

// Memory that a client registers costs the daemon addresses, of which a process has 128
// TiB; without any left it cannot start a thread, and aborts. A sparse memfd costs its
// owner nothing.
func TestHostileSparseMemoryDoesNotTakeAllAddresses(t *testing.T) {
	for name, b := range map[string]bounds{"guarded": {}, "without userfaultfd": {Denied: []uint32{userfaultfd}}} {
		t.Run(name, func(t *testing.T) { takeAddresses(t, b) })
	}
}

func takeAddresses(t *testing.T, b bounds) {
	v := start(t, b, "-connection-memory=64GiB") // as on a large node
	n := v.neighbour()
	const requests = 160
	var got int64
	var accepted int
	felt := n.during(func() { got, accepted = registerMuch(t, v, requests) })
	crowd(t, v)
	if got > 32<<40 {
		t.Errorf("the daemon has mapped %d TiB for a user", got>>40)
	}
	if accepted == requests {
		t.Error("nothing was refused")
	}
	v.mustRun()
	report(t, fmt.Sprintf("%d registrations of sparse memory of 4 TiB and less", requests),
		fmt.Sprintf("%d of them, %.1f TiB, and full for the others", accepted, float64(got)/(1<<40)), felt)
}

// registerMuch registers as large memories as it gets.
func registerMuch(t *testing.T, v *victim, requests int) (got int64, accepted int) {
	t.Helper()
	size := int64(1 << 42)
	var attacker *connector.Client
	for i := range requests {
		if i%60 == 0 { // as many as one connection has
			attacker = v.client(connector.Options{Name: "attacker"})
		}
		_, err := attacker.Register(modelNamed("attacker"), connector.Binding{
			BlockTokens: 1, Memory: inBlocks(sparse(t, size), size, 8192)})
		switch {
		case err == nil:
			accepted++
			got += size
		case errors.Is(err, connector.ErrFull):
			size = max(size/2, 1<<20)
		default:
			t.Errorf("request %d for %d bytes: %v", i, size, err)
		}
		v.mustRun()
	}
	return got, accepted
}

// crowd works on many connections at once, which has the daemon start threads.
func crowd(t *testing.T, v *victim) {
	t.Helper()
	var together sync.WaitGroup
	for range 30 {
		m := registered(t, v.client(connector.Options{Name: "crowd"}), modelNamed("neighbour"), connector.Binding{})
		together.Go(func() {
			for range 20 {
				if _, err := put(m, 64); err != nil {
					t.Errorf("a new client's put: %v", err)
				}
			}
		})
	}
	together.Wait()
}
