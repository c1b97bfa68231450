package hostile

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

const (
	frameClients = 12
	// mostFelt is below what a place was kept for (6 s at the deadline here, 11 s without
	// one, and the send-timeout of 6 s or more for clients that do not read), and far above
	// what a busy machine makes of a turn of each attacker.
	mostFelt = 3 * time.Second
)

// One frame asks for seconds of work: 1,800 rows, each with 2^20 token ids to hash.
func TestHostileFramesOfMuchWorkGiveWay(t *testing.T) {
	v := start(t, bounds{}, "-staging-max=16MiB", "-request-timeout=6s")
	n := v.neighbour()
	p := modelNamed("attacker")
	var attackers []*frames
	var id uint32
	for range frameClients {
		c := v.attached()
		attackers, id = append(attackers, c), c.register(p)
	}
	const rows = 1800
	m := &wire.ReserveRequest{Profile: id, Keys: make([][32]byte, rows), Roles: make([]uint8, rows), Heads: make([]uint32, rows), Tails: make([]uint32, rows),
		Tokens: make([]uint32, rows), TokenOff: make([]uint64, rows)}
	for i := range rows {
		m.Keys[i], m.Roles[i], m.Tokens[i] = [32]byte{byte(i), byte(i >> 8)}, uint8(profile.RoleFirst), 1<<20
	}
	felt, worst := n.duringWorst(func() {
		var together sync.WaitGroup
		for _, c := range attackers {
			together.Go(func() {
				if err := c.send(wire.OpReserve, m); err != nil {
					t.Error(err)
					return
				}
				if _, _, err := c.receive(); err != nil {
					t.Error(err)
				}
			})
		}
		together.Wait()
	})
	if *bars && worst > mostFelt {
		t.Errorf("a publish of the neighbour took %v", worst)
	}
	v.mustRun()
	report(t, fmt.Sprintf("%d clients with a frame of %d rows of 2^20 tokens", frameClients, rows), "turns of 1 ms, on all workers but one", felt)
}

// Clients ask and do not read the answers: the goroutine that sends one waits.
func TestHostileClientsThatDoNotReadKeepNoPlace(t *testing.T) {
	v := start(t, bounds{}, "-send-timeout=6s")
	n := v.neighbour()
	const rows = 2048
	m := &wire.CommitRequest{Reservations: make([]uint64, rows), Parts: make([]uint32, rows), ChunkFirst: make([]uint32, rows),
		ChunkCount: make([]uint32, rows), StagingOff: make([]uint64, rows)}
	felt, worst := n.duringWorst(func() {
		var together sync.WaitGroup
		for range frameClients {
			c := v.attached()
			together.Go(func() {
				for begun := time.Now(); time.Since(begun) < 4*time.Second; {
					if c.send(wire.OpCommit, m) != nil { // dropped
						return
					}
				}
			})
		}
		together.Wait()
	})
	if *bars && worst > mostFelt {
		t.Errorf("a publish of the neighbour took %v", worst)
	}
	v.mustRun()
	report(t, fmt.Sprintf("%d clients with commits whose answers they do not read", frameClients), "an end of each connection", felt)
}

// attached is a client of the default tenant, with room for 2^20 token ids.
func (v *victim) attached() *frames {
	v.t.Helper()
	c, code := v.frames(&wire.HelloRequest{StagingBytes: 4 << 20})
	if code != wire.OK {
		v.t.Fatalf("hello: %v", code)
	}
	return c
}
