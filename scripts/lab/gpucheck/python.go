package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// script runs a Python program that checks connector/python with torch; Script reads its output.
// The program may map a region of random numbers, through the descriptors from 3 on. Its
// arguments are the driver library, the device's UUID, the size of the region in bytes, a file
// with the numbers, and the sizes.
func (c *check) script(name string) (err error) {
	if c.Python == "" {
		c.report.Skip(name, "no Python was given")
		return nil
	}
	const bytes4 = 4 * gpuipc.ChunkBytes
	r, err := c.gpu.NewRegion(gpuipc.RegionSpec{Name: "gpu-check", Bytes: bytes4, Access: gpuipc.ClientWrites, Way: gpuipc.WayDescriptor})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	b := c.random(bytes4/4, kernel.F32, 1)
	if err := c.gpu.Store(c.ctx, gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Len: bytes4}}}, b); err != nil {
		return err
	}
	s, err := r.(gpuipc.SharedRegion).Share(gpuipc.WayDescriptor)
	if err != nil {
		return err
	}
	defer s.Close()
	numbers := filepath.Join(os.TempDir(), fmt.Sprintf("gpu-check-%d.f32", os.Getpid()))
	if err := os.WriteFile(numbers, b, 0o600); err != nil {
		return err
	}
	defer os.Remove(numbers)
	cmd := exec.CommandContext(c.ctx, c.Python, filepath.Join(c.Scripts, name),
		"--library", c.Library, "--device", c.Device, "--bytes", fmt.Sprint(s.Chunks[0].Bytes), "--numbers", numbers)
	z := c.Sizes
	cmd.Args = append(cmd.Args, "--shape", fmt.Sprintf("%d,%d,%d,%d,%d,%d", z.Layers, z.Heads, z.Dim, z.Segments, z.Rows, z.Rounds))
	cmd.Env = PythonEnv(c.PythonPath)
	for i := range s.Chunks {
		cmd.ExtraFiles = append(cmd.ExtraFiles, s.Chunks[i].File)
	}
	return Script(c.ctx, cmd, name, c.report)
}

// PythonEnv returns this process's environment with a directory in front of Python's path.
func PythonEnv(dir string) []string {
	if more := os.Getenv("PYTHONPATH"); more != "" {
		dir += string(os.PathListSeparator) + more
	}
	return append(os.Environ(), "PYTHONPATH="+dir)
}

// cannotRun is the exit status of a script whose requirements are missing here.
const cannotRun = 3

// Script runs a program that prints rows of the report, one JSON object per line, and adds each
// row as it arrives. Exit status 3 means that the program cannot run here; its standard error
// says why.
func Script(ctx context.Context, cmd *exec.Cmd, name string, r *Report) error {
	trouble := &ends{}
	cmd.Stderr, cmd.WaitDelay = trouble, endTime
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	rows, ended := make(chan Row), make(chan error, 1)
	go func() {
		err := read(out, rows)
		close(rows)
		ended <- err
	}()
	n := 0
	for row := range rows {
		r.Add(row)
		n++
	}
	err = errors.Join(<-ended, cmd.Wait())
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == cannotRun {
		r.Skip(name, trouble.String())
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %s", errors.Join(err, context.Cause(ctx)), trouble)
	}
	if n == 0 {
		return errors.New("the script found nothing")
	}
	return nil
}
