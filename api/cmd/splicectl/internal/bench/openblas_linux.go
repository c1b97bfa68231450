package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// openBLAS is scripts/openblas/compose.c at work: the same dense job, one round
// for each line it reads, answered with the CPU seconds of that round.
type openBLAS struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startOpenBLAS runs the helper found beside our program or in PATH; missing
// says why it cannot.
func startOpenBLAS() (b *openBLAS, missing string) {
	const name = "openblas-compose"
	path, err := exec.LookPath(name)
	if self, serr := os.Executable(); serr == nil {
		if beside, berr := exec.LookPath(filepath.Join(filepath.Dir(self), name)); berr == nil {
			path, err = beside, nil
		}
	}
	if err != nil {
		return nil, "bin/" + name + " is not built: make bin/" + name
	}
	b = &openBLAS{cmd: exec.Command(path)}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err.Error()
	}
	if b.in, err = b.cmd.StdinPipe(); err != nil {
		return nil, err.Error()
	}
	b.out = bufio.NewReader(out)
	if err := b.cmd.Start(); err != nil {
		return nil, err.Error()
	}
	if _, err := b.round(); err != nil {
		return nil, strings.TrimSpace(fmt.Sprintf("libopenblas.so.0 is not installed, or did not load (%v)", b.stop()))
	}
	return b, ""
}

func (b *openBLAS) round() (seconds float64, err error) {
	if _, err := io.WriteString(b.in, "\n"); err != nil {
		return 0, fmt.Errorf("openblas: %w", err)
	}
	line, err := b.out.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("openblas: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(line), 64)
}

func (b *openBLAS) stop() error {
	return errors.Join(b.in.Close(), b.cmd.Wait())
}

// threadSeconds is the CPU time that f takes on this thread, which the caller
// has locked.
func threadSeconds(f func()) (float64, error) {
	var begin, end unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &begin); err != nil {
		return 0, err
	}
	f()
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &end); err != nil {
		return 0, err
	}
	return float64(end.Nano()-begin.Nano()) / 1e9, nil
}
