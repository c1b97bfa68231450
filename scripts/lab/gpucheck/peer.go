package gpucheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc"
)

// message is one message between the two processes of a check. The descriptors of Share are sent
// with it.
type message struct {
	Role    string
	Library string
	Device  string
	Share   *gpuipc.Share // files are sent with it
	Rallies int
	Sizes   Sizes

	Error   string
	Digests []uint64
	Count   int
	Rate    float64 // operations per second
}

const (
	maxMessage = 64 << 10
	maxFiles   = 253 // SCM_MAX_FD
)

// peer is one end of the socket between the two processes.
type peer struct {
	conn *net.UnixConn
	cmd  *exec.Cmd // the second process; nil inside it
}

var errNoSecond = errors.New("no way to start a second process was given")

// start starts another process of this program, with additional environment variables, and sends
// it the message m with its role.
func (c *check) start(m *message, env ...string) (*peer, error) {
	if len(c.Self) == 0 {
		return nil, errNoSecond
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "peer")
	defer theirs.Close()
	conn, err := connOf(os.NewFile(uintptr(fds[0]), "peer"))
	if err != nil {
		return nil, err
	}
	p := &peer{conn: conn, cmd: exec.CommandContext(c.ctx, c.Self[0], c.Self[1:]...)}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.ExtraFiles = []*os.File{theirs}
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	m.Library, m.Device, m.Sizes = c.Library, c.Device, c.Sizes
	if err := p.send(m); err != nil {
		return nil, errors.Join(err, p.end())
	}
	return p, nil
}

func connOf(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// end waits for the second process, and kills it if it does not end by itself.
func (p *peer) end() error {
	err := p.conn.Close()
	if p.cmd == nil {
		return err
	}
	stop := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer stop.Stop()
	return errors.Join(err, p.cmd.Wait())
}

// kill kills the second process, which may hang in the driver.
func (p *peer) kill() error {
	err := errors.Join(p.conn.Close(), p.cmd.Process.Kill())
	_ = p.cmd.Wait() // an error is expected after a kill
	return err
}

func (p *peer) send(m *message) error {
	var rights []byte
	plain := *m
	if m.Share != nil {
		var fds []int
		share := *m.Share
		share.Chunks = slices.Clone(share.Chunks)
		for i := range share.Chunks {
			if f := share.Chunks[i].File; f != nil {
				fds = append(fds, int(f.Fd()))
				share.Chunks[i].File = nil
			}
		}
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		plain.Share = &share
	}
	b, err := json.Marshal(plain)
	if err != nil {
		return err
	}
	_, _, err = p.conn.WriteMsgUnix(b, rights, nil)
	return err
}

// receive waits for a message until the context ends, a minute at most.
func (p *peer) receive(ctx context.Context) (*message, error) {
	deadline := time.Now().Add(time.Minute)
	if at, ok := ctx.Deadline(); ok && at.Before(deadline) {
		deadline = at
	}
	if err := p.conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	b, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, rn, _, _, err := p.conn.ReadMsgUnix(b, rights)
	if err != nil {
		return nil, fmt.Errorf("the other process: %w", err)
	}
	files, err := filesIn(rights[:rn])
	if err != nil {
		return nil, err
	}
	var m message
	if err := json.Unmarshal(b[:n], &m); err != nil {
		return nil, err
	}
	if m.Share != nil && m.Share.Way == gpuipc.WayDescriptor {
		if len(files) != len(m.Share.Chunks) {
			return nil, fmt.Errorf("%d descriptors for %d chunks", len(files), len(m.Share.Chunks))
		}
		for i := range files {
			m.Share.Chunks[i].File = files[i]
		}
	}
	if m.Error != "" {
		return nil, errors.New(m.Error)
	}
	return &m, nil
}

func filesIn(rights []byte) ([]*os.File, error) {
	list, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range list {
		fds, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "chunk"))
		}
	}
	return files, nil
}
