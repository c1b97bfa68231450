// Package child runs a temporary spliced as a child process. The program is found next to the
// caller's program or in PATH. Its sockets are in a separate directory. It ends when the caller
// stops it or dies.
package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spliced-kv/spliced/api"
)

// Bounds of waiting for a daemon.
const (
	readyTimeout = 20 * time.Second
	stopTimeout  = 10 * time.Second
	readyPoll    = time.Millisecond
)

// Options configure the daemon. The zero value runs one with its defaults.
type Options struct {
	Binary string    // path; empty = Find
	Dir    string    // for sockets; empty = a new temporary one, removed by Stop
	Args   []string  // additional flags of spliced
	Disk   bool      // use a disk directory next to the sockets, whose content survives restarts
	Log    io.Writer // gets the daemon's output, too; nil = none
}

// Daemon is a running spliced. Its methods are for one goroutine.
type Daemon struct {
	Socket string        // for engines
	Admin  string        // admin socket
	Ready  time.Duration // from the start of the process to the first served reply

	options Options
	dir     string
	owned   bool // Stop removes dir
	client  *api.Client

	cmd    *exec.Cmd
	exited chan struct{} // closed once cmd.Wait returned
	tail   *tailBuffer
}

// Find looks for the spliced program next to ours, then in PATH.
func Find() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "spliced")
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath("spliced")
	if err != nil {
		return "", errors.New("spliced is neither next to this program nor in PATH; `make build` builds both")
	}
	return path, nil
}

// Start runs a daemon and waits until it is ready.
func Start(ctx context.Context, o Options) (*Daemon, error) {
	d := &Daemon{options: o, dir: o.Dir}
	var err error
	if d.options.Binary == "" {
		if d.options.Binary, err = Find(); err != nil {
			return nil, err
		}
	}
	if d.dir == "" {
		if d.dir, err = temporaryDir(); err != nil {
			return nil, fmt.Errorf("directory for sockets: %w", err)
		}
		d.owned = true
	}
	d.Socket = filepath.Join(d.dir, "spliced.sock")
	d.Admin = api.SocketBeside(d.Socket)
	if d.client, err = api.NewClient("unix:"+d.Admin, ""); err != nil {
		return nil, errors.Join(err, d.clean())
	}
	if err := d.launch(ctx); err != nil {
		return nil, errors.Join(err, d.clean())
	}
	return d, nil
}

// temporaryDir creates a directory for sockets. It falls back to /dev/shm, which every
// container has, since an image that contains only our programs has no /tmp.
func temporaryDir() (string, error) {
	dir, err := os.MkdirTemp("", "spliced-")
	if err == nil {
		return dir, nil
	}
	dir, again := os.MkdirTemp("/dev/shm", "spliced-")
	if again != nil {
		return "", errors.Join(err, again)
	}
	return dir, nil
}

// API returns a client of the daemon's admin socket, valid across restarts.
func (d *Daemon) API() *api.Client { return d.client }

// PID returns the process id of the running daemon.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Kill kills the daemon, as a crash would, and waits for its end.
func (d *Daemon) Kill() error {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill spliced: %w", err)
	}
	<-d.exited
	return nil
}

// Restart starts the daemon again after Kill or End, on the same sockets. args, if any, replace
// its additional flags.
func (d *Daemon) Restart(ctx context.Context, args ...string) error {
	if len(args) > 0 {
		d.options.Args = args
	}
	return d.launch(ctx)
}

// Stop ends the daemon as End does, and removes the directory that Start created. It returns an
// error if the daemon did not end cleanly.
func (d *Daemon) Stop() error {
	err := d.End()
	d.client.Close()
	return errors.Join(err, d.clean())
}

// End sends SIGTERM to the daemon, and kills it if it does not end within stopTimeout. Restart
// can start it again.
func (d *Daemon) End() error {
	select {
	case <-d.exited: // it was killed, or crashed
		return nil
	default:
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop spliced: %w", err)
	}
	limit := time.NewTimer(stopTimeout)
	defer limit.Stop()
	select {
	case <-d.exited:
	case <-limit.C:
		return errors.Join(fmt.Errorf("spliced did not end within %s of SIGTERM", stopTimeout), d.Kill())
	}
	if !d.cmd.ProcessState.Success() {
		return fmt.Errorf("spliced ended with %s%s", d.cmd.ProcessState, d.tail.text())
	}
	return nil
}

func (d *Daemon) clean() error {
	if !d.owned {
		return nil
	}
	return os.RemoveAll(d.dir)
}

func (d *Daemon) launch(ctx context.Context) error {
	args := []string{"-socket", d.Socket, "-admin-socket", d.Admin, "-http", "off", "-log-level", "warn"}
	if d.options.Disk {
		args = append(args, "-disk", filepath.Join(d.dir, "disk"))
	}
	args = append(args, d.options.Args...)
	d.tail = &tailBuffer{}
	d.cmd = exec.Command(d.options.Binary, args...)
	d.cmd.Stdout, d.cmd.Stderr = d.tail, d.tail
	if d.options.Log != nil {
		w := io.MultiWriter(d.tail, d.options.Log)
		d.cmd.Stdout, d.cmd.Stderr = w, w
	}
	// Pdeathsig ends the daemon if the caller is killed. In a separate process group, the
	// daemon does not get the terminal's interrupt; the caller gets it and stops the daemon.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	begin := time.Now()
	if err := d.cmd.Start(); err != nil {
		if path, ok := errors.AsType[*os.PathError](err); ok {
			err = path.Err
		}
		return fmt.Errorf("start %s: %w", d.options.Binary, err)
	}
	d.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		// The methods read the outcome from ProcessState.
		_ = cmd.Wait()
		close(exited)
	}(d.cmd, d.exited)
	if err := d.await(ctx); err != nil {
		return errors.Join(err, d.Kill())
	}
	d.Ready = time.Since(begin)
	return nil
}

// await polls until the daemon reports that it serves engines.
func (d *Daemon) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		h, err := d.client.Ready(ctx)
		if err == nil && h.Status != api.HealthUnavailable {
			return nil
		}
		select {
		case <-d.exited:
			return fmt.Errorf("spliced ended while starting (%s)%s", d.cmd.ProcessState, d.tail.text())
		case <-ctx.Done():
			return fmt.Errorf("spliced was not ready: %w%s", ctx.Err(), d.tail.text())
		case <-tick.C:
		}
	}
}

// tailBuffer keeps the last bytes written to it, for error texts.
type tailBuffer struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 4 << 10

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tailBuffer) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.buf) == 0 {
		return ""
	}
	return ":\n" + string(bytes.TrimSpace(t.buf))
}
