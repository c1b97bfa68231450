package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

// PeerCommand is the argument that makes the program run ServePeer; a socket path follows it.
const PeerCommand = "bench-peer"

// Orders of a peer.
const (
	peerRequests = "requests" // match, acquire and release
	peerEcho     = "echo"     // the same number of exchanges with the echoing process
	peerFill     = "fill"     // put small objects
	peerEvict    = "evict"    // make room for a large one
)

const peerReady = "ready"

// peerOrder is a line on a peer's standard input; peerAnswer is the line on its standard
// output that answers it.
type peerOrder struct {
	Kind  string
	For   time.Duration // duration of requests and echo
	From  int           // for fill: number of the first object
	Count int           // for fill and evict: number of pages
}

type peerAnswer struct {
	Began   time.Time
	Seconds float64
	Took    []float64 // µs of each operation
	Spent   machine.Effort
}

// ServePeer is a client process that carries out the orders on its standard input, until
// standard input ends. The parent process has put the segments that the orders need. Descriptor
// 3 is connected to the echoing process.
func ServePeer(ctx context.Context, socket string, in io.Reader, out io.Writer) error {
	client, err := connector.Open(connector.Options{Socket: socket, Name: "splicectl bench peer", StagingBytes: 4 << 20, SlotBytes: 64 << 10,
		Timeouts: patient})
	if err != nil {
		return err
	}
	defer client.Close()
	l := &local{client: client}
	if l.flat, err = l.model(ctx, "bench-flat", 0, 0, flatTokens); err != nil {
		return err
	}
	request, echo := l.requester(ctx), echoer(3)
	answers, orders := json.NewEncoder(out), bufio.NewScanner(in)
	for fmt.Fprintln(out, peerReady); orders.Scan(); {
		var o peerOrder
		if err := json.Unmarshal(orders.Bytes(), &o); err != nil {
			return err
		}
		var work func() ([]float64, error)
		switch o.Kind {
		case peerRequests:
			work = during(o.For, request)
		case peerEcho:
			work = during(o.For, echo)
		case peerFill:
			work = each(1, func() error { return l.flat.putPages(ctx, o.From, o.Count) })
		case peerEvict:
			work = each(1, func() error { return l.flat.reservePages(ctx, o.Count) })
		}
		a, err := account(work)
		if err != nil {
			return err
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
	return orders.Err()
}

// account calls the function work and returns the cost of the call.
func account(work func() ([]float64, error)) (a peerAnswer, err error) {
	before, err := machine.EffortOf(os.Getpid())
	if err != nil {
		return a, err
	}
	a.Began = time.Now()
	if a.Took, err = work(); err != nil {
		return a, err
	}
	a.Seconds = time.Since(a.Began).Seconds()
	after, err := machine.EffortOf(os.Getpid())
	a.Spent = after.Since(before)
	return a, err
}

// requester makes the requests of one operation, for a different segment each time.
func (l *local) requester(ctx context.Context) func() error {
	keys := make([]profile.SegmentKey, fewKeys)
	for i := range keys {
		keys[i], _ = l.flat.SegmentKey(l.flat.spec, tokensOf(i+1, flatTokens))
	}
	match, turn := (&local{small: l.flat}).matcher(ctx, keys), os.Getpid()
	return func() error {
		if err := match(); err != nil {
			return err
		}
		turn++
		lease, err := l.acquire(ctx, l.flat, keys[turn%len(keys)], false)
		if err != nil {
			return err
		}
		lease.Release()
		return nil
	}
}

// echoer returns a function that exchanges messages with the echoing process. The messages are
// as long as the requests of one operation.
func echoer(fd int) func() error {
	var messages [][]byte
	for _, m := range []wire.Message{&wire.MatchRequest{Keys: make([][32]byte, fewKeys)}, &wire.AcquireRequest{Keys: make([][32]byte, 1)}, &wire.ReleaseRequest{Leases: make([]uint64, 1)}} {
		messages = append(messages, make([]byte, wire.HeaderBytes+len(m.Append(nil))))
	}
	return func() error {
		for _, m := range messages {
			if err := baseline.RoundTripBare(fd, m); err != nil {
				return err
			}
		}
		return nil
	}
}

// peer is the parent's handle of one ServePeer process.
type peer struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr strings.Builder
}

func startPeers(socket string, crowd *baseline.Crowd, n int) ([]*peer, error) {
	var peers []*peer
	for i := range n {
		p, err := startPeer(socket, crowd.Client(i))
		if err != nil {
			return nil, errors.Join(err, stopPeers(peers))
		}
		peers = append(peers, p)
	}
	return peers, nil
}

func startPeer(socket string, echo *os.File) (*peer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &peer{cmd: exec.Command(self, PeerCommand, socket)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if echo != nil {
		p.cmd.ExtraFiles = []*os.File{echo} // becomes descriptor 3
	}
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a client: %w", err)
	}
	if line, err := p.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != peerReady {
		return nil, errors.Join(fmt.Errorf("a client did not start: %q", line), err, p.stop())
	}
	return p, nil
}

// orderAll lets all peers carry out an order at the same time, and returns their answers.
func orderAll(peers []*peer, o peerOrder) ([]peerAnswer, error) {
	for _, p := range peers {
		if err := p.order(o); err != nil {
			return nil, err
		}
	}
	answers := make([]peerAnswer, len(peers))
	for i, p := range peers {
		var err error
		if answers[i], err = p.answer(); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

func (p *peer) order(o peerOrder) error {
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		return fmt.Errorf("order to a client: %w", err)
	}
	return nil
}

func (p *peer) answer() (a peerAnswer, err error) {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return a, errors.Join(fmt.Errorf("answer of a client: %w", err), p.stop())
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("answer of a client: %w", err)
	}
	return a, nil
}

func stopPeers(peers []*peer) error {
	var all []error
	for _, p := range peers {
		all = append(all, p.stop())
	}
	return errors.Join(all...)
}

// stop ends the process.
func (p *peer) stop() error {
	err := p.in.Close()
	if werr := p.cmd.Wait(); werr != nil {
		err = errors.Join(err, fmt.Errorf("client: %w: %s", werr, strings.TrimSpace(p.stderr.String())))
	}
	return err
}
