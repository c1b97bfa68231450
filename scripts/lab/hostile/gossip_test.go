package hostile

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector"
)

// Whoever reaches the gossip port without a key opens many connections and says nothing,
// or a byte at a time: engines, probes and members get what they need all the same.
func TestHostileStrangersAtTheGossipPort(t *testing.T) {
	const descriptors, idle, dripping = 1024, 1200, 200
	flags := clusterFlags(t, "a", "b", "c")
	group := cgroup(t, "memory.max", memoryLimit)
	a := start(t, bounds{Cgroups: []string{group}, Limits: map[int]uint64{unix.RLIMIT_NOFILE: descriptors}}, flags[0]...)
	b := start(t, bounds{}, flags[1]...)
	met := func(v *victim, others float64) bool {
		n, _ := v.metric(`spliced_cluster_members{state="alive"}`)
		return n == others
	}
	eventually(t, "the nodes see each other", func() bool { return met(a, 1) && met(b, 1) })
	n := a.neighbour()
	before, fds := usage(t, group), a.descriptors()

	stop := make(chan struct{})
	var attackers sync.WaitGroup
	var tries atomic.Int64
	// The head of a stream of this cluster ("spliced"), which announces a kilobyte.
	head := slices.Concat([]byte{244, 7}, []byte("spliced"), []byte{10, 0, 0, 4, 0}, make([]byte, 1024))
	gossip := strings.TrimPrefix(flags[0][slices.IndexFunc(flags[0], func(f string) bool { return strings.HasPrefix(f, "-cluster-bind=") })], "-cluster-bind=")
	for i := range byte(6) {
		attackers.Go(func() { hold(gossip, net.IPv4(127, 0, 1, i+1), idle/6, nil, &tries, stop) })
	}
	for i := range byte(2) {
		attackers.Go(func() { hold(gossip, net.IPv4(127, 0, 2, i+1), dripping/2, head, &tries, stop) })
	}
	defer func() { close(stop); attackers.Wait() }()
	peak, most := int64(0), 0
	look := func() {
		a.mustRun()
		peak, most = max(peak, usage(t, group)-before), max(most, a.descriptors()-fds)
	}
	felt := n.during(func() {
		eventually(t, "the attackers have tried all they have twice", func() bool {
			look()
			return tries.Load() > 2*(idle+dripping)
		})
		a.mustProbe()
		late := registered(t, a.client(connector.Options{Name: "late"}), modelNamed("late"), connector.Binding{})
		if _, err := put(late, 64); err != nil {
			t.Errorf("an engine that attaches under attack: %v", err)
		}
		c := start(t, bounds{}, flags[2]...)
		eventually(t, "a node joins under attack, and nobody is lost", func() bool {
			look()
			return met(a, 2) && met(b, 2) && met(c, 2)
		})
	})
	if most > descriptors/4 || peak > memoryLimit/4 {
		t.Errorf("%d descriptors of %d and %d MiB were taken", most, descriptors, peak>>20)
	}
	report(t, fmt.Sprintf("%d connections to the gossip port that say nothing and %d that say a byte at a time, opened again when closed", idle, dripping),
		fmt.Sprintf("%d descriptors of %d, %d MiB", most, descriptors, peak>>20), felt)
}

// descriptors counts those that the daemon has open.
func (v *victim) descriptors() int {
	list, err := os.ReadDir("/proc/" + strconv.Itoa(v.command.Process.Pid) + "/fd")
	if err != nil {
		v.t.Fatal(err)
	}
	return len(list)
}

// hold keeps n connections from an address; each says the next byte of says whenever it
// is its turn, and is opened again when that fails or when it has said all.
func hold(to string, from net.IP, n int, says []byte, tries *atomic.Int64, stop <-chan struct{}) {
	type holder struct {
		net.Conn
		said int
	}
	conns := make([]holder, n)
	defer func() {
		for _, c := range conns {
			if c.Conn != nil {
				c.Close()
			}
		}
	}()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}, Timeout: time.Second}
	for i := 0; ; i = (i + 1) % n {
		select {
		case <-stop:
			return
		case <-time.After(2 * time.Millisecond):
		}
		c := &conns[i]
		if c.Conn != nil {
			if c.said < len(says) {
				if _, err := c.Write(says[c.said : c.said+1]); err == nil {
					c.said++
					continue
				}
			}
			c.Close()
		}
		*c = holder{}
		tries.Add(1)
		if conn, err := dialer.Dial("tcp", to); err == nil { // it may be too busy to accept
			c.Conn = conn
		}
	}
}
