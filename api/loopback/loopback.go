// Package loopback reserves ports of 127.0.0.1 for programs on one machine whose addresses must
// be known before they listen: the nodes of a cluster name each other as seeds. A port that was
// free a moment ago does not suffice: the kernel may assign it to the next outgoing connection.
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

// lowest is the first port that may be reserved: lower ones belong to well-known services.
const lowest = 10240

// Reserve returns n addresses of 127.0.0.1 without a listener, by TCP or UDP. Before release they
// are not assigned again: neither by the kernel, which takes ports of outgoing connections and of
// port 0 from ip_local_port_range, nor by Reserve in any process of this network namespace.
// Programs may listen on them meanwhile, repeatedly. A process that ends releases its ports.
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

// reserve returns an address that is reserved until the returned listener is closed.
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

// free returns an error if there is a listener.
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

// ephemeral returns the lowest port that the kernel assigns for port 0.
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
