package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spliced-kv/spliced/api/child"
	proc "github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

// Soak configures a soak: how long a daemon is kept under load, and how.
type Soak struct {
	For    time.Duration
	Every  time.Duration // between samples
	Load   float64       // share of the measured maximum, above 0 and at most 1; unused with a Rate
	Rate   float64       // steps per second; 0 = Load of the measured maximum
	Bound  float64       // largest slope of memory, descriptors and goroutines: percent of the mean per hour
	Seed   uint64
	Binary string // path of spliced; empty = child.Find
	// Visitor is the command that starts a visitor process. Its role, the socket and a seed are
	// appended as arguments.
	Visitor  []string
	Progress func(line string) // nil = silent
}

// The work of a soak. A mill is a worker that puts and reads. The arena has room for a part of
// the data that mills read, and the disk only for a part of the data that they put, so that
// every object is evicted at some time.
const (
	soakClients = 2
	soakMills   = 4
	soakTokens  = 1000

	calibrateShare = 20 // 1/20 of the time to fill the tiers, and the same to count steps
	leastCalibrate = time.Second
	mostCalibrate  = 20 * time.Second
	restart        = 500 * time.Millisecond // longest pause between two visitors of a role
	shortestLife   = 200 * time.Millisecond // of a visitor that is killed
	longestLife    = 3 * time.Second

	// In shorter runs, slopes are reported but are no failures: the daemon's heap, its catalog
	// and the disk's files are still growing to the size that the load requires.
	leastJudged = 10 * time.Minute

	latencyBound = 5 // slopes of latencies may be this many times Bound
	// settled is the share of the time after which samples count, so slopes cover the last
	// third.
	settled = 2.0 / 3
)

var soakArgs = []string{"-arena", "48MiB", "-private", "16MiB", "-slots", "1MiB", "-disk-size", "192MiB", "-disk-private", "48MiB",
	"-disk-slab", "4MiB", "-disk-reserve", "0B"}

// Sample is one observation. Latencies cover the calls since the previous sample.
type Sample struct {
	Seconds     float64            `json:"seconds"` // since the load began
	RSS         float64            `json:"rss_bytes"`
	Private     float64            `json:"private_bytes"` // unshared memory: the daemon's own heap and stacks
	Descriptors float64            `json:"descriptors"`
	Goroutines  float64            `json:"goroutines"`
	Steps       int                `json:"steps"`
	Latency     map[string]float64 `json:"latency_us"` // by call and quantile: match_p50, match_p99, ...
}

// SoakReport is the result of a soak.
type SoakReport struct {
	Version   string         `json:"version"`
	Commit    string         `json:"commit"`
	Seed      uint64         `json:"seed,string"`
	Seconds   float64        `json:"seconds"`         // under load
	Bears     float64        `json:"steps_per_s_max"` // measured maximum
	Paced     float64        `json:"steps_per_s_aim"`
	Done      float64        `json:"steps_per_s"`
	Steps     int            `json:"steps"`
	Absent    int            `json:"absent"`  // reads of evicted objects
	Refused   int            `json:"refused"` // puts without room
	Read      int            `json:"read_back"`
	ReadBytes int64          `json:"read_back_bytes"`
	Corrupt   int            `json:"corrupt"` // reads with other bytes than were put
	Visitors  map[string]int `json:"visitors"`
	Lies      int            `json:"lies"`
	Believed  int            `json:"believed"` // lies that the daemon accepted
	Samples   []Sample       `json:"samples"`
	Slopes    []Slope        `json:"slopes"`
	Notes     []string       `json:"notes,omitempty"`
	Judged    bool           `json:"slopes_judged"`    // the run was long enough to fail by its slopes
	UsedShare float64        `json:"slopes_over_last"` // share of the time
}

type soak struct {
	Soak
	daemon *child.Daemon
	http   *http.Client
	mills  []*mill
	rng    *rand.Rand

	mu        sync.Mutex
	latencies map[string][]time.Duration
	report    *SoakReport
}

// RunSoak starts a daemon and keeps it under load. An error means that this was not possible, or
// that a well-behaved client got an error. Other faults are in the report.
func RunSoak(ctx context.Context, o Soak) (_ *SoakReport, err error) {
	dir, err := os.MkdirTemp("", "spliced-soak-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := &soak{Soak: o, rng: rand.New(rand.NewPCG(o.Seed, 8)), latencies: map[string][]time.Duration{},
		report: &SoakReport{Seed: o.Seed, Visitors: map[string]int{}, UsedShare: 1 - settled, Judged: o.For >= leastJudged}}
	file := filepath.Join(dir, "spliced.yaml")
	if err := os.WriteFile(file, []byte(tenantsFile), 0o600); err != nil {
		return nil, err
	}
	args := slices.Concat(soakArgs, []string{"-config", file, "-disk", filepath.Join(dir, "disk")})
	if s.daemon, err = child.Start(ctx, child.Options{Binary: o.Binary, Args: args}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.daemon.Stop()) }()
	s.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.daemon.Admin)
	}}}
	defer s.http.CloseIdleConnections()
	return s.report, s.run(ctx)
}

func (s *soak) progress(format string, a ...any) {
	if s.Progress != nil {
		s.Progress(fmt.Sprintf(format, a...))
	}
}

func (s *soak) run(ctx context.Context) (err error) {
	for n := range soakClients {
		shapes, err := newShapes()
		if err != nil {
			return err
		}
		c, err := openClient(ctx, s.daemon.Socket, s.daemon.API(), nil, shapes)
		if err != nil {
			return err
		}
		defer c.conn.Close()
		for k := range soakMills / soakClients {
			s.mills = append(s.mills, newMill(c, shapes, s.Seed+uint64(n<<8|k), soakTokens))
		}
	}
	if err := s.calibrate(ctx); err != nil {
		return err
	}
	s.progress("the machine bears %.0f steps/s; %.0f/s from here on", s.report.Bears, s.report.Paced)
	ctx, cancel := context.WithTimeout(ctx, s.For)
	defer cancel()
	began := time.Now()
	var all sync.WaitGroup
	failed := make(chan error, soakMills+8)
	start := func(run func() error) {
		all.Go(func() {
			if err := run(); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	before := s.steps()
	start(func() error { return s.grind(ctx, s.report.Paced/soakMills) })
	for _, role := range []string{comes, dies, stalls, lies} {
		start(func() error { return s.visits(ctx, role, rand.New(rand.NewPCG(s.rng.Uint64(), 1))) })
	}
	start(func() error { return s.sample(ctx, began) })
	all.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	s.report.Seconds = time.Since(began).Seconds()
	s.finish(before)
	return err
}

// calibrate fills the daemon, and then counts the steps of the mills without pauses.
func (s *soak) calibrate(ctx context.Context) error {
	d := min(max(s.For/calibrateShare, leastCalibrate), mostCalibrate)
	for range 2 {
		before := s.steps()
		part, cancel := context.WithTimeout(ctx, d)
		err := s.grind(part, 0)
		cancel()
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		s.report.Bears = float64(s.steps()-before) / d.Seconds()
	}
	if s.report.Paced = s.Rate; s.Rate == 0 {
		s.report.Paced = s.Load * s.report.Bears
	}
	s.mu.Lock()
	clear(s.latencies)
	s.mu.Unlock()
	return nil
}

func (s *soak) steps() (n int) {
	for _, m := range s.mills {
		n += m.steps
	}
	return n
}

// grind runs the mills until ctx ends. rate is the number of steps per second of each mill; 0 =
// without pauses.
func (s *soak) grind(ctx context.Context, rate float64) error {
	failed := make([]error, len(s.mills))
	var all sync.WaitGroup
	for n, m := range s.mills {
		all.Go(func() {
			next := time.Now()
			for ctx.Err() == nil {
				// When ctx ends, only the pauses between steps are interrupted. Calls have their own
				// timeouts and are not interrupted.
				if failed[n] = m.step(context.WithoutCancel(ctx), s.tell); failed[n] != nil {
					return
				}
				if rate == 0 {
					continue
				}
				if next = next.Add(time.Duration(float64(time.Second) / rate)); time.Until(next) < -time.Second {
					next = time.Now() // the mill fell behind; do not make up for the missed steps
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Until(next)):
				}
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

func (s *soak) tell(call string, took time.Duration) {
	s.mu.Lock()
	s.latencies[call] = append(s.latencies[call], took)
	s.mu.Unlock()
}

// visits starts processes of one role, one after another.
func (s *soak) visits(ctx context.Context, role string, rng *rand.Rand) error {
	for {
		if err := s.visit(ctx, role, rng); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Duration(rng.Int64N(int64(restart)))):
		}
	}
}

func (s *soak) visit(ctx context.Context, role string, rng *rand.Rand) error {
	killed := role == dies || role == stalls
	life := ctx
	if killed {
		var cancel context.CancelFunc
		life, cancel = context.WithTimeout(ctx, shortestLife+time.Duration(rng.Int64N(int64(longestLife-shortestLife))))
		defer cancel()
	}
	args := slices.Concat(s.Visitor[1:], []string{role, s.daemon.Socket, strconv.FormatUint(rng.Uint64(), 10)})
	command := exec.CommandContext(life, s.Visitor[0], args...) // the end of life kills the process with SIGKILL
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said, failed strings.Builder
	command.Stdout, command.Stderr = &said, &failed
	err := command.Run()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Visitors[role]++
	if life.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("a client that came to %s: %w: %s", role, err, strings.TrimSpace(failed.String()))
	}
	var v visit
	if err := json.Unmarshal([]byte(said.String()), &v); err != nil {
		return fmt.Errorf("a client that came to %s said %q: %w", role, said.String(), err)
	}
	s.report.Read += v.Reads
	s.report.Corrupt += v.Corrupt
	s.report.Lies += v.Lies
	s.report.Believed += v.Believed
	return nil
}

// sample observes the daemon at intervals of Every.
func (s *soak) sample(ctx context.Context, began time.Time) error {
	tick := time.NewTicker(s.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		one, err := s.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("sample: %w", err)
		}
		one.Seconds = time.Since(began).Seconds()
		s.mu.Lock()
		for call, took := range s.latencies {
			slices.Sort(took)
			one.Steps += len(took)
			one.Latency[call+"_p50"] = float64(took[len(took)/2].Nanoseconds()) / 1e3
			one.Latency[call+"_p99"] = float64(took[(len(took)*99-1)/100].Nanoseconds()) / 1e3
		}
		clear(s.latencies)
		s.report.Samples = append(s.report.Samples, one)
		s.mu.Unlock()
		s.progress("%4.0f s: %.1f MiB, %.1f of them private, %.0f descriptors, %.0f goroutines; p99 of match %.0f µs, acquire %.0f µs, release %.0f µs",
			one.Seconds, one.RSS/(1<<20), one.Private/(1<<20), one.Descriptors, one.Goroutines,
			one.Latency["match_p99"], one.Latency["acquire_p99"], one.Latency["release_p99"])
	}
}

// look takes a sample: it reads the figures of the daemon's process from the kernel and from the
// daemon.
func (s *soak) look(ctx context.Context) (one Sample, err error) {
	one.Latency = map[string]float64{}
	memory, err := proc.ResidentOf(s.daemon.PID())
	if err != nil {
		return one, err
	}
	one.RSS, one.Private = float64(memory.All), float64(memory.Private)
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.daemon.PID()))
	if err != nil {
		return one, err
	}
	one.Descriptors = float64(len(open))
	one.Goroutines, err = s.metric(ctx, "go_goroutines")
	return one, err
}

// metric returns one of the daemon's metrics.
func (s *soak) metric(ctx context.Context, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := s.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(text, 64)
		}
	}
	return 0, errors.Join(lines.Err(), fmt.Errorf("no %s in /metrics: status %d", name, answer.StatusCode))
}

// finish computes the totals and fits the slopes.
func (s *soak) finish(before int) {
	r := s.report
	for _, m := range s.mills {
		r.Absent += m.absent
		r.Refused += m.refused
		r.Read += m.findings.Read
		r.ReadBytes += m.findings.Bytes
		r.Corrupt += m.findings.Corrupt
		r.Notes = append(r.Notes, m.findings.Notes...)
	}
	r.Steps = s.steps() - before
	r.Done = float64(r.Steps) / r.Seconds
	r.fit(s.Bound)
}

// fit computes the slopes of the samples of the last part of the time.
func (r *SoakReport) fit(bound float64) {
	add := func(name, unit string, bound float64, of func(*Sample) (float64, bool)) {
		var hours, y []float64
		for i := range r.Samples {
			v, ok := of(&r.Samples[i])
			if ok && r.Samples[i].Seconds >= settled*r.Seconds {
				hours, y = append(hours, r.Samples[i].Seconds/3600), append(y, v)
			}
		}
		one := slopeOf(hours, y, bound)
		one.Name, one.Unit = name, unit
		r.Slopes = append(r.Slopes, one)
	}
	add("memory", "bytes", bound, func(s *Sample) (float64, bool) { return s.RSS, true })
	add("private memory", "bytes", bound, func(s *Sample) (float64, bool) { return s.Private, true })
	add("descriptors", "", bound, func(s *Sample) (float64, bool) { return s.Descriptors, true })
	add("goroutines", "", bound, func(s *Sample) (float64, bool) { return s.Goroutines, true })
	for _, call := range []string{"match", "acquire", "release"} {
		for _, q := range []string{"p50", "p99"} {
			add(call+" "+q, "µs", latencyBound*bound, func(s *Sample) (float64, bool) { v, ok := s.Latency[call+"_"+q]; return v, ok })
		}
	}
}

// Failures lists the faults of a soak, nil if there are none.
func (r *SoakReport) Failures() (bad []string) {
	if r.Corrupt > 0 {
		bad = append(bad, fmt.Sprintf("%d reads had other bytes than were put", r.Corrupt))
	}
	if r.Believed > 0 {
		bad = append(bad, fmt.Sprintf("%d of %d lies were believed", r.Believed, r.Lies))
	}
	if r.Read == 0 {
		bad = append(bad, "nothing was read back: nothing is proved")
	}
	for _, s := range r.Slopes {
		if s.Verdict == rises && r.Judged {
			bad = append(bad, fmt.Sprintf("%s rises by %.2g %% an hour or more, %.2g %% is the bound", s.Name, 100*s.Low/s.Mean, s.Bound))
		}
	}
	return bad
}
