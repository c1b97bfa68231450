package hostile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector"
)

const userfaultfd = unix.SYS_USERFAULTFD

// Whoever writes into a hole of a memfd first is charged for its page. A client
// registers memory that is nothing but holes, or punches them while the daemon writes,
// and has the daemon's cgroup pay until it is killed.
func TestHostileHolesAreNotFilledAtOurCost(t *testing.T) {
	for name, denied := range map[string][]uint32{"guarded": nil, "without userfaultfd": {userfaultfd}} {
		t.Run(name, func(t *testing.T) { fillHoles(t, denied) })
	}
}

const (
	holeRows   = 8192
	holeStride = 8192 // a page for the keys of each row and one for its values
	holeRounds = 12   // of 64 MiB
	holeLimit  = 384 << 20
)

func fillHoles(t *testing.T, denied []uint32) {
	group := cgroup(t, "memory.max", holeLimit)
	v := start(t, bounds{Cgroups: []string{group}, Denied: denied}, "-staging=4MiB")
	n := v.neighbour()
	c := v.client(connector.Options{Name: "attacker"})
	p := modelNamed("attacker")

	// What is too large is not mapped at all.
	register := func(bytes int64) (*connector.Model, *connector.Memory, error) {
		memory := inBlocks(sparse(t, bytes), bytes, holeStride)
		m, err := c.Register(p, connector.Binding{BlockTokens: 1, Memory: memory})
		return m, memory, err
	}
	var m *connector.Model
	var memory *connector.Memory
	var size int64
	for size = 1 << 40; m == nil; size /= 2 {
		var err error
		if m, memory, err = register(size); err != nil && !errors.Is(err, connector.ErrFull) {
			t.Fatal(err)
		}
	}
	size *= 2
	key, err := put(m, holeRows)
	if err != nil {
		t.Fatal(err)
	}
	lease := held(t, m, key)
	rotate := func(first uint32) error {
		q := &connector.RotateQuery{Layer: connector.AllLayers, Blocks: make([]uint32, holeRows),
			Plan: connector.Plan{End: holeRows, Spans: []connector.Span{{Lease: lease, Count: holeRows}}}}
		for i := range q.Blocks {
			q.Blocks[i] = first + uint32(i)
		}
		_, err := m.Rotate(context.Background(), q)
		return err
	}
	before := usage(t, group)
	filled, punched := 0, 0
	felt := n.during(func() {
		filled = rotateIntoHoles(t, v, rotate, size)
		punched = punchWhileRotating(t, v, memory, rotate, min(size, holeRounds*holeRows*holeStride)/holeStride)
	})
	grown := usage(t, group) - before
	if grown > holeLimit/2 {
		t.Errorf("the daemon's cgroup holds %d MiB more than before", grown>>20)
	}
	report(t, fmt.Sprintf("1 TiB of holes; %d rotates into holes, %d while they were punched", holeRounds, punched),
		fmt.Sprintf("a mapping of %d MiB, %d rotates, %d MiB charged to the daemon", size>>20, filled, grown>>20), felt)
}

// rotateIntoHoles names blocks that have no pages and counts what succeeds.
func rotateIntoHoles(t *testing.T, v *victim, rotate func(uint32) error, size int64) (filled int) {
	t.Helper()
	for round := range holeRounds {
		first := int64(round) * holeRows
		if (first+holeRows)*holeStride > size {
			break
		}
		switch err := rotate(uint32(first)); {
		case err == nil:
			filled++
		case !errors.Is(err, connector.ErrInvalid):
			t.Errorf("rotate into holes: %v", err)
		}
		v.mustRun()
	}
	return filled
}

// punchWhileRotating gives blocks their pages and takes them away while rows are put
// there.
func punchWhileRotating(t *testing.T, v *victim, memory *connector.Memory, rotate func(uint32) error, blocks int64) (rounds int) {
	t.Helper()
	fd := int(memory.File.Fd())
	for first := int64(0); first+holeRows <= blocks; first += holeRows {
		at, n := first*holeStride, int64(holeRows*holeStride)
		if err := unix.Fallocate(fd, 0, at, n); err != nil {
			t.Fatal(err)
		}
		var punching sync.WaitGroup
		punching.Go(func() {
			for off := at + n - 1<<20; off >= at; off -= 1 << 20 {
				if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, 1<<20); err != nil {
					t.Error(err)
				}
			}
		})
		if err := rotate(uint32(first)); err != nil && !errors.Is(err, connector.ErrInvalid) {
			t.Errorf("rotate into memory that is punched: %v", err)
		}
		punching.Wait()
		v.mustRun()
		rounds++
	}
	return rounds
}
