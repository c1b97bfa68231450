package hostile

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/policy/profile"
)

// memoryLimit is well above what the daemons of these tests need, and far below what
// the attacks had them hold.
const memoryLimit = 384 << 20

// A client lets the daemon touch its staging, goes, keeps the descriptors, and comes
// again: what it keeps is charged to the daemon.
func TestHostileMemoryThatClientsKeepIsTakenBack(t *testing.T) {
	group := cgroup(t, "memory.max", memoryLimit)
	v := start(t, bounds{Cgroups: []string{group}}, "-staging-max=64MiB", "-connection-memory=128MiB")
	p := modelNamed("attacker")
	before := usage(t, group)
	const times, tokens = 30, 8 << 20
	var kept []int
	defer func() { seqpacket.CloseAll(kept) }()
	for range times {
		f, fds, code := v.framesAndRegions(&wire.HelloRequest{StagingBytes: 4 * tokens, SlotBytes: 1})
		if code != wire.OK {
			t.Fatalf("hello: %v", code)
		}
		kept = append(kept, fds...)
		// Its ids are read, for a key that is wrong.
		m := rowsOf(f.register(p), 1, tokens)
		if _, code := f.ask(wire.OpReserve, m); code != wire.OK {
			t.Errorf("reserve: %v", code)
		}
		f.conn.Close()
		v.mustRun()
	}
	eventually(t, "what a client has kept is given back", func() bool {
		v.mustRun()
		return usage(t, group)-before < memoryLimit/4
	})
	grown := usage(t, group) - before
	report(t, fmt.Sprintf("%d connections that read 32 MiB of staging and ended, their descriptors kept", times),
		fmt.Sprintf("%d MiB charged to the daemon", grown>>20), "nothing")
}

// Requests in flight hold heap: their bodies, and the token ids of those that have
// begun and gave way to others.
func TestHostileRequestsInFlightFitTheMemory(t *testing.T) {
	const tokens = 4 << 20
	for name, attack := range map[string]struct {
		clients, rows, tokens int
	}{
		"token ids": {2, 1, tokens},
		"bodies":    {60, 2048, 1 << 14},
	} {
		t.Run(name, func(t *testing.T) {
			group := cgroup(t, "memory.max", memoryLimit)
			v := start(t, bounds{Cgroups: []string{group}}, "-staging-max=16MiB", "-connection-memory=128MiB")
			p := modelNamed("attacker")
			before := usage(t, group)
			peak, sent := int64(0), 0
			look := func() {
				v.mustRun()
				peak = max(peak, usage(t, group)-before)
			}
			attackers := make([]*frames, attack.clients)
			requests := make([]*wire.ReserveRequest, attack.clients)
			for i := range attackers { // while there is memory for requests
				var code wire.Code
				if attackers[i], code = v.frames(&wire.HelloRequest{StagingBytes: uint64(4 * attack.tokens), SlotBytes: 1}); code != wire.OK {
					t.Fatalf("hello: %v", code)
				}
				requests[i] = rowsOf(attackers[i].register(p), attack.rows, attack.tokens)
			}
			for i, f := range attackers {
				for range f.hello.MaxInFlight {
					if f.send(wire.OpReserve, requests[i]) != nil {
						break // it does not read its answers
					}
					sent++
				}
				look()
			}
			for begun := time.Now(); time.Since(begun) < 3*time.Second; time.Sleep(10 * time.Millisecond) {
				look()
			}
			report(t, fmt.Sprintf("%d requests in flight on %d connections, each of %d rows of %d token ids", sent, attack.clients, attack.rows, attack.tokens),
				fmt.Sprintf("%d MiB of the daemon's memory", peak>>20), "nothing")
		})
	}
}

// Requests that are no jobs are answered by whoever receives: many rows in one have all
// other connections wait.
func TestHostileManyRowsAreNotAnsweredByTheReader(t *testing.T) {
	v := start(t, bounds{})
	n := v.neighbour()
	p := modelNamed("attacker")
	const clients, rows = 12, 1980
	stop := make(chan struct{})
	time.AfterFunc(4*time.Second, func() { close(stop) })
	felt, worst := n.duringWorst(func() {
		var together sync.WaitGroup
		for range clients {
			c := v.attached()
			m := rowsOf(c.register(p), rows, 8)
			together.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, _, err := c.exchange(wire.OpReserve, m); err != nil {
						t.Error(err)
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
	report(t, fmt.Sprintf("%d clients that reserve %d small segments at a time", clients, rows), "an equal part of the workers", felt)
}

// rowsOf reserves segments whose keys are not those of their tokens.
func rowsOf(id uint32, rows, tokens int) *wire.ReserveRequest {
	m := &wire.ReserveRequest{Profile: id, Keys: make([][32]byte, rows), Roles: make([]uint8, rows), Heads: make([]uint32, rows), Tails: make([]uint32, rows),
		Tokens: make([]uint32, rows), TokenOff: make([]uint64, rows)}
	for i := range rows {
		m.Keys[i], m.Roles[i], m.Tokens[i] = [32]byte{byte(i), byte(i >> 8)}, uint8(profile.RoleFirst), uint32(tokens)
	}
	return m
}
