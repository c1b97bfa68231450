package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// VictimCommand is the argument that makes the program run ServeVictim; a socket path follows
// it.
const VictimCommand = "bench-victim"

const (
	victimName   = "splicectl bench victim"
	victimLeases = 64
	victimReady  = "holding"
	// victimSegment is the number of the segment that a victim begins to write. The benchmark
	// has put the segments that the victim leases.
	victimSegment = 1 << 30
)

// ServeVictim is a client that holds leases, staging and a half-written segment
// until it is killed or standard input ends.
func ServeVictim(ctx context.Context, socket string, in io.Reader, out io.Writer) error {
	client, err := connector.Open(connector.Options{Socket: socket, Name: victimName, StagingBytes: 8 << 20,
		Timeouts: patient})
	if err != nil {
		return err
	}
	defer client.Close()
	l := &local{client: client}
	if l.small, err = l.model(ctx, "bench-small", 1, smallHeads, smallTokens); err != nil {
		return err
	}
	for i := range victimLeases {
		key, _ := l.small.SegmentKey(l.small.spec, tokensOf(i+1, smallTokens))
		if _, err := l.acquire(ctx, l.small, key, false); err != nil {
			return err
		}
	}
	stuck, end := make(chan struct{}), make(chan struct{})
	write := make(chan error, 1)
	go func() { write <- l.halfWrite(ctx, stuck, end) }()
	select {
	case <-stuck:
	case err := <-write:
		return fmt.Errorf("half-written segment: %w", err)
	}
	if _, err := fmt.Fprintln(out, victimReady); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	close(end)
	if werr := <-write; !errors.Is(werr, errEnough) {
		err = errors.Join(err, werr)
	}
	return err
}

var errEnough = errors.New("the rest is never written")

// halfWrite begins a segment and stays in its last part until end is closed.
func (l *local) halfWrite(ctx context.Context, stuck, end chan struct{}) error {
	last := len(l.small.layout.Parts) - 1
	fill := func(_ profile.Part, i int, _ int64, dst []byte) error {
		if i == last {
			close(stuck)
			<-end
			return errEnough
		}
		clear(dst)
		return nil
	}
	_, err := l.small.Put(ctx, &connector.PutQuery{Spec: l.small.spec, Tokens: tokensOf(victimSegment, smallTokens),
		Source: connector.Source{Fill: fill}})
	return err
}

// killRow kills clients that hold memory and measures the time until the daemon has reclaimed
// all of that memory. The figure is the worst of a few runs.
func killRow(ctx context.Context, s *session) (err error) {
	l, err := startLocal(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	if _, err := l.putMany(ctx, l.small, victimLeases); err != nil {
		return err
	}
	var samples []float64
	for range s.rounds(5) {
		ms, err := l.killOne(ctx)
		if err != nil {
			return err
		}
		samples = append(samples, ms)
	}
	s.add(row("client_kill_free", "ms", quantile(samples, 1), 0, bar{atMost: 100}))
	return nil
}

func (l *local) killOne(ctx context.Context) (ms float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, VictimCommand, l.daemon.Socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if _, err := cmd.StdinPipe(); err != nil { // keeps its standard input open
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() { _ = cmd.Wait() }() // a kill is not an error
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != victimReady {
		return 0, errors.Join(fmt.Errorf("the client that holds memory did not start: %q %s", line, &stderr), cmd.Process.Kill())
	}
	if h, err := l.holdings(ctx); err != nil || h.leases < victimLeases || h.pending == 0 {
		return 0, errors.Join(fmt.Errorf("the client to kill holds %+v", h), err, cmd.Process.Kill())
	}
	begin := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		return 0, err
	}
	for {
		h, err := l.holdings(ctx)
		if err != nil {
			return 0, err
		}
		if h == (holdings{}) {
			return time.Since(begin).Seconds() * 1e3, nil
		}
		if time.Since(begin) > 10*time.Second {
			return 0, fmt.Errorf("10 s after its death a client still holds %+v", h)
		}
	}
}

// holdings is the memory held by victims, as the daemon reports it.
type holdings struct {
	connections, leases int
	pending, leased     int64 // bytes
}

func (l *local) holdings(ctx context.Context) (h holdings, err error) {
	connections, err := l.daemon.API().Connections(ctx)
	if err != nil {
		return h, err
	}
	for _, c := range connections {
		if c.Client == victimName {
			h.connections++
			h.leases += c.Leases
		}
	}
	pools, err := l.daemon.API().Pools(ctx)
	for _, p := range pools {
		h.pending += p.PendingBytes
		h.leased += p.LeasedBytes
	}
	return h, err
}
