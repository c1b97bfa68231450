package fakecuda

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Peer is a second process that runs the program of the test. It reads lines and answers
// with lines.
type Peer struct {
	Cmd *exec.Cmd
	In  io.WriteCloser
	out *bufio.Reader
}

// StartPeer starts a Peer. The strings in env are added to its environment. It inherits the
// files as descriptors, from descriptor 3 on. The caller must call End.
func StartPeer(t testing.TB, env []string, files ...*os.File) *Peer {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), env...)
	cmd.ExtraFiles = files
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	return &Peer{Cmd: cmd, In: in, out: bufio.NewReader(out)}
}

// Ask sends a line and returns the answer.
func (p *Peer) Ask(t testing.TB, format string, args ...any) string {
	t.Helper()
	if _, err := fmt.Fprintf(p.In, format+"\n", args...); err != nil {
		t.Fatal(err)
	}
	return p.Answer(t)
}

// Answer returns the next line that the process has written.
func (p *Peer) Answer(t testing.TB) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// End closes the input of the process and waits until the process has ended.
func (p *Peer) End() error {
	_ = p.In.Close()
	return p.Cmd.Wait()
}
