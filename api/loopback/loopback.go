// Package loopback reserves ports of 127.0.0.1 for programs on one machine that must be
// told an address before anybody listens at it: the nodes of a cluster name each other
// as seeds. A port that was free a moment ago is not one: the kernel may give it to the
// next connection that goes out.
package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
)

// lowest is the first port that may be reserved: those below are of services that people
// know by number.
const lowest = 10240

// Reserve returns n addresses of 127.0.0.1 at which nobody listens, by TCP or UDP, and
// that nobody is given before release: neither by the kernel, which takes the ports of
// outgoing connections and of those who ask for any from ip_local_port_range, nor by
// Reserve in any process of this network namespace. They may be listened at meanwhile,
// as often as one likes. A process that ends releases what it has.
func Reserve(n int) (list []string, release func(), err error) {
	var held []net.Listener
	release = func() {
		for _, l := range held {
			l.Close()
		}
	}
	for range n {
		at, l, err := reserve()
		if err != nil {
			release()
			return nil, nil, err
		}
		list, held = append(list, at), append(held, l)
	}
	return list, release, nil
}

// reserve returns an address, reserved until what comes beside it is closed.
func reserve() (at string, held net.Listener, err error) {
	below := ephemeral() - lowest
	if below <= 0 {
		return "", nil, fmt.Errorf("loopback: ip_local_port_range leaves no port from %d on", lowest)
	}
	first := rand.IntN(below)
	for i := range below {
		port := lowest + (first+i)%below
		at = fmt.Sprintf("127.0.0.1:%d", port)
		if held, err = net.Listen("unix", fmt.Sprintf("@spliced-port-%d", port)); err != nil {
			continue
		}
		if err = free(at); err == nil {
			return at, held, nil
		}
		held.Close()
	}
	return "", nil, fmt.Errorf("loopback: no port of %d is free: %w", below, err)
}

// free fails where somebody listens.
func free(at string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	p, err := net.ListenPacket("udp", at)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	return errors.Join(l.Close(), p.Close())
}

// ephemeral is the lowest port that the kernel gives to those who ask for any.
func ephemeral() int {
	const usual = 32768
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return usual
	}
	first, _, _ := strings.Cut(string(text), "\t")
	low, err := strconv.Atoi(first)
	if err != nil {
		return usual
	}
	return low
}
