package baseline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Transfer is one pass over a file with O_DIRECT, by fio or by our own loop, with Workers blocks
// in flight at any time. All workers take the next block from one shared position, the front,
// that moves through the file, as the disk tier does with a large object. If Apart is set, each
// worker has its own part of the file and waits for its own syncs, as writers of small objects
// do.
type Transfer struct {
	Path      string
	Write     bool
	From      int64 // offset in the file; used by our loop only
	Bytes     int64 // a multiple of Workers x Block
	Block     int64
	Workers   int
	Apart     bool
	SyncEvery int // fdatasync after this many blocks of a front; 0 = never
}

// share returns the bytes that one front moves.
func (t Transfer) share() int64 {
	if t.Apart {
		return t.Bytes / int64(t.Workers)
	}
	return t.Bytes
}

// Fio is the fio program. It only provides a limit for rows; without fio, the limit is the rate
// of our own loop.
type Fio struct{ program string }

// FindFio looks for fio in PATH.
func FindFio() (Fio, error) {
	path, err := exec.LookPath("fio")
	if err != nil {
		return Fio{}, errors.New("fio is not in PATH")
	}
	return Fio{path}, nil
}

func (t Transfer) fioArgs() []string {
	direction := "read"
	if t.Write {
		direction = "write"
	}
	share := strconv.FormatInt(t.share(), 10)
	args := []string{
		"--name=spliced", "--filename=" + t.Path, "--rw=" + direction, "--bs=" + strconv.FormatInt(t.Block, 10),
		"--direct=1", "--thread", "--group_reporting", "--size=" + share, "--fdatasync=" + strconv.Itoa(t.SyncEvery),
		"--output-format=json", "--eta=never",
	}
	if t.Apart {
		return append(args, "--ioengine=psync", "--numjobs="+strconv.Itoa(t.Workers), "--offset_increment="+share)
	}
	return append(args, "--ioengine=libaio", "--iodepth="+strconv.Itoa(t.Workers))
}

// Run returns fio's measurement, which excludes fio's own start.
func (f Fio) Run(ctx context.Context, t Transfer) (Pass, error) {
	cmd := exec.CommandContext(ctx, f.program, t.fioArgs()...)
	// An interrupt from the terminal should reach only us; we end fio through the context.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return Pass{}, ctx.Err()
		}
		return Pass{}, fmt.Errorf("fio: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return parseFio(stdout.Bytes(), t)
}

// Pass is the result of a pass.
type Pass struct {
	Seconds float64
	Bytes   int64
	CPU     float64 // seconds of all threads
}

// Rate returns GB/s.
func (p Pass) Rate() float64 { return float64(p.Bytes) / p.Seconds / 1e9 }

// parseFio reads fio's JSON, which may follow lines of warnings.
func parseFio(text []byte, t Transfer) (Pass, error) {
	if at := bytes.Index(text, []byte("\n{")); at >= 0 && !bytes.HasPrefix(text, []byte("{")) {
		text = text[at+1:]
	}
	type direction struct {
		Bytes     int64   `json:"io_bytes"`
		PerSecond float64 `json:"bw_bytes"`
		Ms        float64 `json:"runtime"`
	}
	var report struct {
		Jobs []struct {
			Error int       `json:"error"`
			Read  direction `json:"read"`
			Write direction `json:"write"`
			Ms    float64   `json:"job_runtime"` // of all threads together
			User  float64   `json:"usr_cpu"`     // % of job_runtime
			Sys   float64   `json:"sys_cpu"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return Pass{}, fmt.Errorf("output of fio: %w", err)
	}
	if len(report.Jobs) != 1 || report.Jobs[0].Error != 0 {
		return Pass{}, fmt.Errorf("output of fio: %d groups, want one without an error", len(report.Jobs))
	}
	job := report.Jobs[0]
	way := job.Read
	if t.Write {
		way = job.Write
	}
	if way.Bytes != t.Bytes || way.PerSecond <= 0 {
		return Pass{}, fmt.Errorf("fio moved %d bytes of %d", way.Bytes, t.Bytes)
	}
	// fio rounds its times to milliseconds; its bytes per second are at least as precise.
	return Pass{Seconds: float64(way.Bytes) / way.PerSecond, Bytes: way.Bytes, CPU: (job.User + job.Sys) / 100 * job.Ms / 1e3}, nil
}
