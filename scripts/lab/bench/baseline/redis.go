package baseline

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// RedisServer is a redis-server process that makes every write durable before it answers,
// on a unix socket.
type RedisServer struct {
	Socket string
	cmd    *exec.Cmd
	exited chan struct{}
	log    strings.Builder
}

const redisReady = 10 * time.Second

// FindRedis returns the path of redis-server, or an error if it is not installed.
func FindRedis() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", errors.New("redis-server is not in PATH")
	}
	return path, nil
}

// StartRedis runs the server with its append-only file in dir and its socket in sockets,
// since socket paths must be short.
func StartRedis(ctx context.Context, program, dir, sockets string) (*RedisServer, error) {
	r := &RedisServer{Socket: sockets + "/redis.sock", exited: make(chan struct{})}
	r.cmd = exec.Command(program, "--port", "0", "--unixsocket", r.Socket, "--unixsocketperm", "700", "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0",
		"--proto-max-bulk-len", "512mb", "--daemonize", "no")
	r.cmd.Stdout, r.cmd.Stderr = &r.log, &r.log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	go func() {
		_ = r.cmd.Wait() // ended by a kill
		close(r.exited)
	}()
	ctx, cancel := context.WithTimeout(ctx, redisReady)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := DialRedis(r.Socket); err == nil {
			err = c.do("PING")
			if err = errors.Join(err, c.Close()); err == nil {
				return r, nil
			}
		}
		select {
		case <-r.exited:
			return nil, fmt.Errorf("redis-server ended while starting: %s", strings.TrimSpace(r.log.String()))
		case <-ctx.Done():
			r.Stop()
			return nil, fmt.Errorf("redis-server was not ready: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// Stop kills the server; its data is no longer needed.
func (r *RedisServer) Stop() {
	_ = r.cmd.Process.Kill()
	<-r.exited
}

// RedisConn is one connection. It supports only what the rows need: commands that answer
// with a status or a value.
type RedisConn struct {
	c net.Conn
	r *bufio.Reader
}

// DialRedis connects to a server on a unix socket.
func DialRedis(socket string) (*RedisConn, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return &RedisConn{c, bufio.NewReaderSize(c, 1<<20)}, nil
}

// Close ends the connection; the server keeps running.
func (c *RedisConn) Close() error { return c.c.Close() }

// do sends a command and expects a status.
func (c *RedisConn) do(args ...string) error {
	parts := make([][]byte, len(args))
	for i, a := range args {
		parts[i] = []byte(a)
	}
	if err := c.send(parts...); err != nil {
		return err
	}
	kind, text, err := c.reply()
	if err != nil {
		return err
	}
	if kind != '+' {
		return fmt.Errorf("redis answers %c%s to %s", kind, text, args[0])
	}
	return nil
}

// Set stores a value and returns after the server has synced it.
func (c *RedisConn) Set(key string, value []byte) error {
	if err := c.send([]byte("SET"), []byte(key), value); err != nil {
		return err
	}
	kind, text, err := c.reply()
	if err == nil && kind != '+' {
		err = fmt.Errorf("redis answers %c%s to SET", kind, text)
	}
	return err
}

// Get reads a value into dst. Their lengths must be equal.
func (c *RedisConn) Get(key string, dst []byte) error {
	if err := c.send([]byte("GET"), []byte(key)); err != nil {
		return err
	}
	kind, text, err := c.reply()
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(text); kind != '$' || err != nil || n != len(dst) {
		return fmt.Errorf("redis answers %c%s to GET, want %d bytes", kind, text, len(dst))
	}
	if _, err := io.ReadFull(c.r, dst); err != nil {
		return err
	}
	_, err = c.r.Discard(2)
	return err
}

func (c *RedisConn) send(parts ...[]byte) error {
	buffers := net.Buffers{fmt.Appendf(nil, "*%d\r\n", len(parts))}
	for _, p := range parts {
		buffers = append(buffers, fmt.Appendf(nil, "$%d\r\n", len(p)), p, []byte("\r\n"))
	}
	_, err := buffers.WriteTo(c.c)
	return err
}

func (c *RedisConn) reply() (kind byte, text string, err error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return 0, "", fmt.Errorf("redis: %w", err)
	}
	if len(line) < 3 || !strings.HasSuffix(line, "\r\n") {
		return 0, "", fmt.Errorf("redis answers %q", line)
	}
	return line[0], line[1 : len(line)-2], nil
}
