package hostile

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
)

// What others feel of somebody who is as busy as an attacker and attacks nobody: so much of
// what they feel in an attack is the machine's, and that of others being served as well.
func TestHostileNothingButOnTheSameProcessors(t *testing.T) {
	v := start(t, bounds{})
	n := v.neighbour()
	elsewhere := start(t, bounds{})
	m := registered(t, elsewhere.client(connector.Options{Name: "busy"}), modelNamed("busy"), connector.Binding{})
	left, right, err := seqpacket.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	defer right.Close()
	region := sparse(t, 16<<20)
	publish := func(m *connector.Model) func() error {
		return func() error { return patiently(func() error { _, err := put(m, 64); return err }) }
	}
	const others = 5
	var served []func() error
	for i := range others {
		name := fmt.Sprintf("other %d", i)
		served = append(served, publish(registered(t, v.client(connector.Options{Name: name}), modelNamed(name), connector.Binding{})))
	}
	one := func(work func() error) []func() error { return []func() error{work} }
	for _, c := range []struct {
		tried string
		work  []func() error // each on a goroutine of its own
	}{
		{"a process that counts", one(func() error { return nil })},
		{"a process that maps 16 MiB of its own, fills and drops it", one(func() error {
			b, err := unix.Mmap(int(region.Fd()), 0, 16<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				return err
			}
			for i := 0; i < len(b); i += os.Getpagesize() {
				b[i] = 1
			}
			if err := unix.Fallocate(int(region.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 16<<20); err != nil {
				return err
			}
			return unix.Munmap(b)
		})},
		{"a process that passes descriptors to itself", one(func() error {
			fds := make([]int, 8)
			for i := range fds {
				fds[i] = int(region.Fd())
			}
			if err := left.Send([]byte("x"), fds); err != nil {
				return err
			}
			_, got, err := right.Recv(make([]byte, 16))
			seqpacket.CloseAll(got)
			return err
		})},
		{"a client of another daemon, as busy as its neighbour", one(publish(m))},
		{fmt.Sprintf("%d more clients of the same daemon, as busy as their neighbour", others), served},
	} {
		felt := n.during(func() {
			var busy sync.WaitGroup
			for _, work := range c.work {
				busy.Go(func() {
					for begun := time.Now(); time.Since(begun) < time.Second/2; {
						if err := work(); err != nil {
							t.Errorf("%s: %v", c.tried, err)
							return
						}
					}
				})
			}
			busy.Wait()
		})
		report(t, c.tried, "nothing", felt)
	}
}
