package gpucheck

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Bounds of the output of a part's process.
const (
	mostLine = 1 << 20
	mostTail = 2 << 10
)

// endTime bounds the wait for a killed process to end. A process that hangs in the driver
// is then left running.
const endTime = 10 * time.Second

// untilEnv is the environment variable with the time at which a part's process will be stopped,
// in seconds since 1970. The process and its scripts can report their partial results before
// that time.
const untilEnv = "GPU_CHECK_UNTIL"

// errTime is the error of a part that ran out of time.
var errTime = errors.New("its time was up")

// isolated runs a part in a separate process, so that a crash, a hang or a lost context does not
// affect later parts. It adds rows to the report as they arrive, and keeps them if the process
// fails later.
func isolated(ctx context.Context, cmd *exec.Cmd, limit time.Duration, stderr io.Writer, r *Report) error {
	said := &ends{to: stderr}
	// Pdeathsig kills the process when this one ends. To the kernel, "this one" is the thread
	// that started the process, so the thread must not end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = said
	cmd.Env = append(cmd.Environ(), fmt.Sprintf("%s=%.3f", untilEnv, float64(time.Now().Add(limit).UnixMilli())/1e3))
	cmd.WaitDelay = endTime // its children may hold the pipes open
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a process for it: %w", err)
	}
	// This also kills the children of the process, which could still use the device and disturb
	// later parts.
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	defer kill()
	rows, ended := make(chan Row), make(chan error, 1)
	go func() {
		err := read(out, rows)
		close(rows)
		ended <- errors.Join(err, cmd.Wait())
	}()
	err = collect(ctx, r, rows, ended, limit, kill)
	if tail := said.String(); err != nil && tail != "" {
		err = fmt.Errorf("%w: %s", err, tail)
	}
	return err
}

// collect adds rows until the process has ended. It kills the process at the time limit, and
// stops waiting if the process does not end within endTime after that.
func collect(ctx context.Context, r *Report, rows <-chan Row, ended <-chan error, limit time.Duration, kill func()) error {
	ctx, stop := context.WithTimeoutCause(ctx, limit, errTime)
	defer stop()
	over := ctx.Done()
	var late <-chan time.Time
	var cause error
	for {
		select {
		case row, ok := <-rows:
			if !ok {
				rows = nil
				continue
			}
			r.Add(row)
		case err := <-ended:
			if cause != nil {
				return cause
			}
			return err
		case <-over:
			over = nil
			cause = fmt.Errorf("stopped after %v: %w", limit.Round(time.Second), context.Cause(ctx))
			kill()
			late = time.After(endTime)
		case <-late:
			go func() { // later rows are discarded
				for range rows { // it only drains
				}
			}()
			return fmt.Errorf("%w; its process hangs and could not be ended", cause)
		}
	}
}

// read decodes rows, one per line.
func read(from io.Reader, rows chan<- Row) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, mostLine)
	for lines.Scan() {
		var row Row
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			_, _ = io.Copy(io.Discard, from)
			return fmt.Errorf("a row %.80q: %w", lines.Bytes(), err)
		}
		rows <- row
	}
	return lines.Err()
}

// ends keeps the first and the last bytes of an output, because a crash reports its cause first,
// and a script reports it last.
type ends struct {
	to          io.Writer // nil = discard
	first, last []byte
}

func (e *ends) Write(b []byte) (int, error) {
	if e.to != nil {
		_, _ = e.to.Write(b)
	}
	n := min(len(b), mostTail-len(e.first))
	e.first = append(e.first, b[:n]...)
	e.last = append(e.last, b[n:]...)
	e.last = e.last[max(0, len(e.last)-mostTail):]
	return len(b), nil
}

// String returns the output as one line: all lines if there are at most three, otherwise the
// first two and the last.
func (e *ends) String() string {
	lines := strings.FieldsFunc(string(bytes.Join([][]byte{e.first, e.last}, nil)), func(r rune) bool { return r == '\n' })
	if len(lines) > 3 {
		lines = append(lines[:2:2], "...", lines[len(lines)-1])
	}
	return strings.Join(lines, "; ")
}
