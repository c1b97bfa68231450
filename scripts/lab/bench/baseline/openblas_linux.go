package baseline

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
)

// OpenBLAS is a running helper, scripts/openblas/compose.c, that does the benchmark's dense job
// with OpenBLAS. It does one round for each line that it reads, and answers with the CPU seconds
// of that round.
type OpenBLAS struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// StartOpenBLAS starts the helper found next to our program or in PATH. If it cannot, missing
// says why.
func StartOpenBLAS() (b *OpenBLAS, missing string) {
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
	b = &OpenBLAS{cmd: exec.Command(path)}
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
	if _, err := b.Round(); err != nil {
		return nil, strings.TrimSpace(fmt.Sprintf("libopenblas.so.0 is not installed, or did not load (%v)", b.Stop()))
	}
	return b, ""
}

// Round runs the job once and returns its CPU seconds.
func (b *OpenBLAS) Round() (seconds float64, err error) {
	if _, err := io.WriteString(b.in, "\n"); err != nil {
		return 0, fmt.Errorf("openblas: %w", err)
	}
	line, err := b.out.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("openblas: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(line), 64)
}

// Stop ends the helper and waits for it.
func (b *OpenBLAS) Stop() error {
	return errors.Join(b.in.Close(), b.cmd.Wait())
}
