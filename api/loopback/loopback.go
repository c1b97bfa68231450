// Package loopback reserves ports of 127.0.0.1 for programs whose addresses must be known before
// they listen, such as the nodes of a cluster on one machine, which name each other as seeds. It
// is not enough to find a free port: the kernel may assign that port to an outgoing connection.
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

// Reserve returns n addresses of 127.0.0.1 on which nothing listens by TCP or UDP. Programs may
// listen on them, repeatedly, until release is called. Until then Reserve does not return them
// again in any process of this network namespace. The kernel does not assign them either: they
// are below ip_local_port_range, from which it takes ports for outgoing connections and for port
// 0. The end of the process releases them, too.
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

// free returns an error if something listens on the address by TCP or UDP.
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
