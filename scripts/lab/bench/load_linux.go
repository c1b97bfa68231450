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
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

// LoadCommand is the argument that makes the program run ServeLoad; a socket path and a file
// follow it.
const LoadCommand = "bench-load"

// The load process has two kinds of load. One consists of writers that wait until each segment
// is logged, and readers of segments that are only on disk. The other consists of plain
// transfers of a file, which cost the machine about the same and the daemon nothing. Lines on
// standard input start and stop a load; the process reports the bytes that it moved on standard
// output.
const (
	loadWriters  = 1
	loadReaders  = 2
	loadSegments = 24 // read in turn: more than the arena holds
	loadFirst    = 1 << 20
	loadFile     = 256 << 20

	loadNode  = "node"
	loadPlain = "plain"
)

var loadSize = bulk{"16MiB", 4, 1952, loadSegments}

// ServeLoad runs the process that keeps the disk of a daemon busy on request.
func ServeLoad(ctx context.Context, socket, file string, in io.Reader, out io.Writer) error {
	client, err := openClient(socket)
	if err != nil {
		return err
	}
	defer client.Close()
	l := &load{file: file}
	if l.model, err = (&local{client: client}).bulkModel(ctx, loadSize); err != nil {
		return err
	}
	for i := range loadSegments {
		key, err := l.model.putSafe(ctx, i+1, wire.LevelLogged)
		if err != nil {
			return err
		}
		l.keys = append(l.keys, key)
	}
	if l.memory, err = machine.PageAligned(loadFile); err != nil {
		return err
	}
	defer func() { _ = machine.Unmap(l.memory) }()
	lines := bufio.NewScanner(in)
	for fmt.Fprintln(out, "ready"); lines.Scan(); {
		stop := l.start(ctx, lines.Text() == loadPlain)
		fmt.Fprintln(out, "on")
		if !lines.Scan() {
			return stop()
		}
		if err := stop(); err != nil {
			return err
		}
		fmt.Fprintln(out, l.written.Swap(0), l.read.Swap(0))
	}
	return lines.Err()
}

// load is the writers and readers of one process.
type load struct {
	model         *model
	keys          []profile.SegmentKey
	next          atomic.Int64 // segments written
	turn          atomic.Int64 // segments read
	written, read atomic.Int64 // bytes
	file          string
	memory        []byte
}

// start runs writers and readers until stop is called.
func (l *load) start(ctx context.Context, plain bool) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	failed := make(chan error, loadWriters+loadReaders)
	until := func(f func() error) {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := f(); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	whole := context.WithoutCancel(ctx) // transfers that were started run to their end
	write, read := l.write, l.fetch
	if plain {
		write, read = l.plainWrite, l.plainRead
	}
	for range loadWriters {
		until(func() error { return write(whole) })
	}
	for range loadReaders {
		until(func() error { return read(whole) })
	}
	return func() error {
		cancel()
		running.Wait()
		close(failed)
		var all []error
		for err := range failed {
			all = append(all, err)
		}
		return errors.Join(all...)
	}
}

func (l *load) write(ctx context.Context) error {
	_, err := l.model.putSafe(ctx, loadFirst+int(l.next.Add(1)), wire.LevelLogged)
	l.written.Add(l.model.layout.Bytes)
	return err
}

func (l *load) fetch(ctx context.Context) error {
	err := l.model.promote(ctx, l.keys[int(l.turn.Add(1))%len(l.keys)])
	l.read.Add(l.model.layout.Bytes)
	return err
}

// plainWrite writes 16 MiB of the file with plain transfers, about the size of a segment.
func (l *load) plainWrite(ctx context.Context) error {
	t := baseline.Transfer{Path: l.file, Write: true, Bytes: 16 << 20, Block: tierBlock, Workers: tierDepth}
	_, err := t.Run(ctx, l.memory)
	l.written.Add(t.Bytes)
	return err
}

func (l *load) plainRead(ctx context.Context) error {
	t := baseline.Transfer{Path: l.file, Bytes: 16 << 20, Block: tierBlock, Workers: tierDepth}
	t.From = l.turn.Add(1) % (loadFile / t.Bytes) * t.Bytes
	_, err := t.Run(ctx, l.memory[t.From:])
	l.read.Add(t.Bytes)
	return err
}

// loader is the parent's handle of the load process.
type loader struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr strings.Builder
}

func startLoader(socket, file string) (*loader, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l := &loader{cmd: exec.Command(self, LoadCommand, socket, file)}
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	l.cmd.Stderr = &l.stderr
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.out = bufio.NewReader(out)
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := l.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start load: %w", err)
	}
	if line, err := l.line(); err != nil || line != "ready" {
		return nil, errors.Join(fmt.Errorf("the load did not start: %q", line), err, l.stop())
	}
	return l, nil
}

func (l *loader) line() (string, error) {
	line, err := l.out.ReadString('\n')
	return strings.TrimSpace(line), err
}

// during runs f while the load of the given kind keeps the disk busy. It returns the bytes that
// the load wrote and read during that time.
func (l *loader) during(kind string, f func() error) (written, read int64, err error) {
	if _, err := fmt.Fprintln(l.in, kind); err != nil {
		return 0, 0, err
	}
	if line, err := l.line(); err != nil || line != "on" {
		return 0, 0, fmt.Errorf("the load does not begin: %q: %w", line, err)
	}
	failed := f()
	if _, err := fmt.Fprintln(l.in, "off"); err != nil {
		return 0, 0, errors.Join(failed, err)
	}
	line, err := l.line()
	if err != nil {
		return 0, 0, errors.Join(failed, err)
	}
	_, err = fmt.Sscan(line, &written, &read)
	return written, read, errors.Join(failed, err)
}

// stop ends the process.
func (l *loader) stop() error {
	err := l.in.Close()
	if werr := l.cmd.Wait(); werr != nil {
		err = errors.Join(err, fmt.Errorf("load: %w: %s", werr, strings.TrimSpace(l.stderr.String())))
	}
	return err
}
