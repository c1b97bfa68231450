package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Resolver resolves names, as net.DefaultResolver does.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// seed is an address at which another node may be found.
type seed struct {
	host string
	port uint16
}

// parseSeed parses HOST or HOST:PORT. The default of PORT is the port of this node's gossip.
func parseSeed(text string, port uint16) (seed, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return seed{addr.String(), port}, nil // an IPv6 address needs no brackets here
	}
	host := text
	if h, p, err := net.SplitHostPort(text); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return seed{}, fmt.Errorf("%q has no port between 1 and 65535", text)
		}
		host, port = h, uint16(n)
	}
	if _, err := netip.ParseAddr(host); err != nil && (host == "" || strings.ContainsAny(host, ":/ []")) {
		return seed{}, fmt.Errorf("%q is neither HOST nor HOST:PORT", text)
	}
	return seed{host, port}, nil
}

// Limits of one attempt to join. The name of a large cluster resolves to all its nodes. One node
// that answers is enough; several are tried, since some may not answer.
const (
	maxSeeds      = 64
	maxResolved   = 4096
	joinsAtOnce   = 8
	firstInterval = 250 * time.Millisecond
)

// joiner finds other nodes. First it looks for any node. Then it looks for nodes that gossip has
// lost or never met, which heals a partition.
type joiner struct {
	seeds    []seed
	resolver Resolver
	timing   *Timing
	roster   *roster
	self     netip.AddrPort
	// join exchanges the complete state with the node at an address.
	join func(netip.AddrPort) error
	now  func() time.Time

	mu struct {
		sync.Mutex
		status JoinStatus
	}
}

// JoinStatus is the result of the latest attempt to join.
type JoinStatus struct {
	At time.Time
	// Tried and Answered count the nodes in the attempt, which were not members yet.
	Tried, Answered int
	// Errors describes some seeds that did not resolve and some nodes that did not answer.
	Errors []string
}

const maxErrors = 8

// run attempts to join repeatedly until the context ends.
func (j *joiner) run(ctx context.Context) {
	wait := firstInterval
	for {
		j.attempt(ctx)
		here, _ := j.roster.reached(j.now())
		if len(here) > 0 || wait > j.timing.Rejoin {
			wait = j.timing.Rejoin
		}
		// Random, so that nodes that start together do not join at the same time.
		timer := time.NewTimer(wait - rand.N(wait/8+1))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait *= 2
	}
}

// attempt resolves the seeds and joins some nodes that are not members yet.
func (j *joiner) attempt(ctx context.Context) {
	addrs, problems := j.resolve(ctx)
	here, lost := j.roster.reached(j.now())
	here[j.self] = true
	var missing []netip.AddrPort
	// If lost nodes must be retried, seeds get at most three quarters of the places. So hundreds of
	// dead seeds cannot keep out a lost node that would answer, and many seeds cannot prevent a
	// partition from healing.
	for i, list := range [][]netip.AddrPort{addrs, lost} {
		rand.Shuffle(len(list), func(a, b int) { list[a], list[b] = list[b], list[a] })
		most := joinsAtOnce
		if i == 0 && len(lost) > 0 {
			most = joinsAtOnce * 3 / 4
		}
		for _, addr := range list {
			if !here[addr] && len(missing) < most {
				here[addr] = true
				missing = append(missing, addr)
			}
		}
	}
	errs := make([]error, len(missing))
	var joins sync.WaitGroup
	for i, addr := range missing {
		joins.Go(func() { errs[i] = j.join(addr) })
	}
	joins.Wait()
	status := JoinStatus{At: j.now(), Tried: len(missing)}
	for i, err := range errs {
		if err == nil {
			status.Answered++
		} else {
			problems = append(problems, fmt.Errorf("%v: %w", missing[i], first(err)))
		}
	}
	for _, err := range problems[:min(len(problems), maxErrors)] {
		status.Errors = append(status.Errors, err.Error())
	}
	if ctx.Err() != nil {
		return
	}
	j.mu.Lock()
	j.mu.status = status
	j.mu.Unlock()
}

// first extracts the first cause from memberlist's multi-line error.
func first(err error) error {
	var list interface{ WrappedErrors() []error }
	if errors.As(err, &list) && len(list.WrappedErrors()) > 0 {
		return list.WrappedErrors()[0]
	}
	return err
}

func (j *joiner) resolve(ctx context.Context) (addrs []netip.AddrPort, problems []error) {
	ctx, cancel := context.WithTimeout(ctx, j.timing.Resolve)
	defer cancel()
	for _, s := range j.seeds {
		if addr, err := netip.ParseAddr(s.host); err == nil {
			addrs = append(addrs, netip.AddrPortFrom(addr.Unmap(), s.port))
			continue
		}
		found, err := j.resolver.LookupNetIP(ctx, "ip", s.host)
		if err == nil && len(found) == 0 {
			err = errors.New("no address")
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("seed %s: %w", s.host, err))
		}
		for _, addr := range found {
			addrs = append(addrs, netip.AddrPortFrom(addr.Unmap(), s.port))
		}
	}
	return addrs[:min(len(addrs), maxResolved)], problems
}

func (j *joiner) status() JoinStatus {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.status
}
