package gpucheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// python runs the checks of connector/python with torch: a script prints one row
// of the report a line. Code 3 says that it cannot run here, and why.
func (c *check) python() error {
	if c.Python == "" {
		c.report.Skip("torch maps the arena", "no Python was given")
		return nil
	}
	for _, script := range []string{"torch_view.py", "gated_delta.py"} {
		if err := c.script(script); err != nil {
			c.report.Holds(script, err)
		}
	}
	return nil
}

// script runs one over a region of random numbers, which it may map by the
// descriptors from 3 on. What it gets as arguments: the library, the device's
// UUID, the bytes of the region, its digest of the first chunk in hex.
func (c *check) script(name string) (err error) {
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
	cmd.Env = append(os.Environ(), "PYTHONPATH="+c.PythonPath)
	for i := range s.Chunks {
		cmd.ExtraFiles = append(cmd.ExtraFiles, s.Chunks[i].File)
	}
	var out, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &trouble
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		c.report.Skip(name, strings.TrimSpace(trouble.String()))
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, lastLine(trouble.String()))
	}
	return c.rows(out.Bytes())
}

func (c *check) rows(out []byte) error {
	n := 0
	for line := range bytes.Lines(out) {
		var row Row
		if err := json.Unmarshal(line, &row); err != nil {
			return fmt.Errorf("a row of the script: %w", err)
		}
		c.report.Add(row)
		n++
	}
	if n == 0 {
		return errors.New("the script found nothing")
	}
	return nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
