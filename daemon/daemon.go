package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Build says what was built; the main fills it in.
type Build struct {
	Version string
	Commit  string
}

// Parts are what a daemon is given beside its configuration. The zero value is
// the daemon of this machine, without logs.
type Parts struct {
	Log    zerolog.Logger
	Build  Build
	Device gpuipc.Device // nil = opened by Run; a device that is given stays open
	// Accelerator is used where the configuration asks for memory of a GPU; nil =
	// the GPU that it names, opened by Run. One that is given stays open.
	Accelerator gpuipc.Accelerator
	Machine     *Machine // nil = DetectMachine
	Now         func() time.Time
	// Lower, if set, stands between the store and the disk tier.
	Lower func(tier.Tier) tier.Tier
}

// Daemon is one node's cache. New builds it, Run runs it once.
type Daemon struct {
	// Fixed after New.
	config  Config
	machine Machine
	build   Build
	log     zerolog.Logger
	now     func() time.Time
	lower   func(tier.Tier) tier.Tier

	accelerator gpuipc.Accelerator // as given
	gpuTrouble  string             // why there is none though one was asked for; set by open

	// Set by Run before ready is closed.
	device   gpuipc.Device
	ownsDev  bool
	gpu      *gpu       // nil = none
	disk     *disk.Tier // nil = none
	store    *tiering.Store
	place    tier.Place // of the store's memory
	server   *server
	socket   *socket
	registry *prometheus.Registry
	started  time.Time
	pidfds   bool
	admin    []api.Listener

	remembered  *canaryMemory // what is switched off; nil without a disk
	diskRun     sync.WaitGroup
	abandonDisk context.CancelFunc

	serving atomic.Bool
	ready   chan struct{}
}

// New resolves and validates a configuration. Nothing is opened before Run.
func New(config Config, parts Parts) (*Daemon, error) {
	m := parts.Machine
	if m == nil {
		detected := DetectMachine()
		m = &detected
	}
	config.Resolve(*m)
	if err := config.Validate(*m); err != nil {
		return nil, err
	}
	d := &Daemon{
		config: config, machine: *m, build: parts.Build, log: parts.Log, now: parts.Now, lower: parts.Lower,
		device: parts.Device, ownsDev: parts.Device == nil, accelerator: parts.Accelerator, ready: make(chan struct{}),
	}
	if d.now == nil {
		d.now = time.Now
	}
	return d, nil
}

// Config returns the resolved configuration.
func (d *Daemon) Config() Config { return d.config }

// Ready is closed once the socket is served.
func (d *Daemon) Ready() <-chan struct{} { return d.ready }

// Socket returns the path of the engine socket; valid once Ready is closed.
func (d *Daemon) Socket() string { return d.socketPath() }

func (d *Daemon) socketPath() string {
	if d.socket == nil {
		return d.config.Socket
	}
	return d.socket.path
}

// AdminAddr returns the address of the admin REST over TCP, nil when it is off;
// valid once Ready is closed.
func (d *Daemon) AdminAddr() net.Addr {
	for _, l := range d.admin {
		if !l.Trusted {
			return l.Addr()
		}
	}
	return nil
}

// Run opens everything in the order of the package doc, serves until ctx ends or
// a part fails, and takes everything apart in the reverse order. It is called
// once.
func (d *Daemon) Run(ctx context.Context) (err error) {
	if err := d.open(); err != nil {
		return err
	}
	defer func() {
		if !errors.Is(err, errStuck) {
			err = errors.Join(err, d.close())
		}
	}()
	rest, err := d.newAdmin()
	if err != nil {
		d.closeAdmin()
		return errors.Join(err, d.socket.stopListening())
	}
	return d.run(ctx, rest)
}

// run starts what runs in the background, accepts, and stops all of it.
func (d *Daemon) run(ctx context.Context, rest *api.Server) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var parts sync.WaitGroup
	start := func(name string, run func() error) {
		parts.Go(func() {
			if err := run(); err != nil {
				fail(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	// Apart from ctx: they serve the connections until the last one is closed.
	background, stopBackground := context.WithCancel(context.Background())
	defer stopBackground()
	if d.remembered != nil {
		start("what is switched off", func() error { return d.remembered.run(background) })
	}
	d.startDisk(ctx)
	start("clients' watch", d.server.watcher.run)
	start("lease sweep", func() error { return d.store.Run(background) })
	start("admin REST", func() error { return rest.Run(background, d.admin...) })
	for range d.config.Workers {
		parts.Go(d.server.queue.work)
		if d.gpu != nil {
			parts.Go(d.server.deviceQueue.work)
		}
	}
	var accepting sync.WaitGroup
	allow := newAllowList(&d.config, d.socket.dirGID)
	accepting.Go(func() {
		if err := d.server.accept(d.socket.listener, &allow); err != nil {
			fail(fmt.Errorf("accept: %w", err))
		}
	})
	d.announce()

	<-ctx.Done()
	d.serving.Store(false)
	notify("STOPPING=1")
	d.log.Info().Msg("stopping")
	unlinked := d.socket.stopListening()
	accepting.Wait()
	if stuck := d.server.stop(); stuck != nil {
		stopBackground()
		return errors.Join(cause(ctx), unlinked, stuck)
	}
	d.server.queue.close()
	d.server.deviceQueue.close()
	d.flush()
	woken := d.server.watcher.stop()
	stopBackground()
	if !endsWithin(d.stuckAfter(), parts.Wait) {
		return errors.Join(cause(ctx), unlinked, woken, fmt.Errorf("a read of the disk tier, or a copy to the GPU, does not end: %w", errStuck))
	}
	d.log.Info().Msg("stopped")
	return errors.Join(cause(ctx), unlinked, woken)
}

// stuckAfter is how long the end of what runs in the background may take. It has
// been told to end; only a disk that hangs in the kernel keeps it.
func (d *Daemon) stuckAfter() time.Duration { return 4*d.config.DrainTimeout + time.Second }

// endsWithin reports whether wait returns in time. One that does not is left.
func endsWithin(limit time.Duration, wait func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// cause is why a part made the daemon stop; nil when it was asked to.
func cause(ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

func (d *Daemon) announce() {
	d.serving.Store(true)
	close(d.ready)
	notify("READY=1\nSTATUS=serving " + d.socket.path)
	d.log.Info().Str("version", d.build.Version).Str("socket", d.socket.path).Uint64("epoch", d.server.epoch).
		Str("arena", d.config.Arena.String()).Str("private", d.config.Private.String()).Int("workers", d.config.Workers).Msg("serving")
	for _, c := range d.checks() {
		if c.State != api.CheckOK {
			d.log.Warn().Str("check", c.Name).Msg(c.Detail)
		}
	}
}

// open is the first half of the start order. On an error everything that it
// opened is closed again.
func (d *Daemon) open() (err error) {
	d.started = d.now()
	d.pidfds = hasPeerPidfd()
	if d.ownsDev {
		if d.device, err = gpuipc.Open(gpuipc.Options{Host: gpuipc.HostOptions{Workers: d.config.Workers}}); err != nil {
			return err
		}
	}
	if err = d.openDisk(); err != nil {
		return errors.Join(err, d.close())
	}
	d.openGPU()
	if err = d.openStore(); err != nil {
		return errors.Join(err, d.close())
	}
	d.place = d.store.Pools()[0].Place
	title := strings.TrimSpace("spliced " + d.build.Version)
	if d.server, err = newServer(&d.config, d.store, d.device, d.log, title); err != nil {
		return errors.Join(err, d.close())
	}
	d.server.disk, d.server.gpu = d.disk, d.gpu
	d.server.canary = newCanary(d.now)
	if d.disk != nil {
		d.remembered = newCanaryMemory(d.server.canary, d.disk, d.server.tenants, d.log)
	}
	where, err := choosePlace(places(&d.config, d.machine))
	if err == nil {
		d.socket, err = openSocket(where, d.config.MaxConnections)
	}
	if err != nil {
		return errors.Join(err, d.close())
	}
	return nil
}

func (d *Daemon) storeConfig() tiering.Config {
	c := &d.config
	huge := map[string]gpuipc.HugePages{"auto": gpuipc.HugeAuto, "never": gpuipc.HugeNever, "require": gpuipc.HugeRequire}
	config := tiering.Config{
		Device: d.device, PublicBytes: int64(c.Arena), PrivateBytes: int64(c.Private), PageBytes: int(c.PageBytes),
		Huge: huge[c.HugePages], Tenants: tenantsOf(c), Eviction: evictionOf(c.Eviction), Now: d.now,
		LeaseTTL: c.LeaseTTL, MaxLeaseTTL: c.MaxLeaseTTL, FillTTL: c.FillTTL,
		MaxLeases: c.MaxLeases, MaxReservations: c.MaxReservations, MaxProfiles: c.MaxProfiles, Log: d.log,
		EvictionPublic: evictionOf(c.EvictionPublic), EvictionPrivate: evictionOf(c.EvictionPrivate), Cost: c.costs(),
		AdviseBytes: int64(c.AdviseMemory), AdviseNodes: c.AdviseNodes,
		AdviseCheckpoints: c.AdviseCheckpoints, AdviseSolveEvery: c.AdviseSolveEvery,
		MaxDecisions: c.Decisions,
	}
	if c.AdviseMemory == 0 {
		config.AdviseBytes = -1
	}
	if d.disk == nil {
		return config
	}
	config.Lower = d.disk
	if d.lower != nil {
		config.Lower = d.lower(d.disk)
	}
	config.DefaultLevel, config.WriteBehind, config.ReadAhead = levels[c.AckLevel], c.WriteBehind, c.ReadAhead
	config.HighWater, config.LowWater = float64(c.MemoryHigh)/100, float64(c.MemoryLow)/100
	config.MaxPromotions = c.DiskWorkers
	return config
}

// evictionOf is the policy of a name that was validated; nil for no name.
func evictionOf(name string) func() policy.Eviction {
	build, _ := policy.Named(name)
	return build
}

// costs are what is believed of engine, memory and disk before they are measured.
func (c *Config) costs() tiering.CostPriors {
	priors := tiering.CostPriors{DRAMBytesPerSecond: float64(c.MemoryBandwidth), DiskBytesPerSecond: float64(c.DiskBandwidth)}
	if c.PrefillSpeed > 0 {
		guess := cost.DefaultPrefill
		perToken := 1e3 / float64(c.PrefillSpeed)
		priors.Prefill = cost.Prefill{Fixed: guess.Fixed, PerToken: perToken, PerTokenSquared: guess.PerTokenSquared * perToken / guess.PerToken}
	}
	return priors
}

// close is the last part of the stop order; it takes what open left. A disk that
// hangs keeps the memory that it reads: then store and device stay open.
func (d *Daemon) close() error {
	var failed []error
	if d.server != nil && d.server.watcher != nil {
		d.server.watcher.close()
	}
	var stored error
	below := func() {
		if d.store != nil {
			stored = d.store.Close()
		}
		d.stopDisk()
	}
	if !endsWithin(d.stuckAfter(), below) {
		return errors.Join(append(failed, fmt.Errorf("a write of the disk tier, or a call of the GPU's driver, does not end: %w", errStuck))...)
	}
	failed = append(failed, stored)
	d.closeGPU()
	if d.ownsDev && d.device != nil {
		failed = append(failed, d.device.Close())
	}
	if d.socket != nil {
		failed = append(failed, d.socket.unlock())
	}
	return errors.Join(failed...)
}

// newAdmin opens the admin REST's listeners.
func (d *Daemon) newAdmin() (*api.Server, error) {
	token := ""
	if d.config.TokenFile != "" {
		data, err := os.ReadFile(d.config.TokenFile)
		if err != nil {
			return nil, err
		}
		if token = strings.TrimSpace(string(data)); token == "" {
			return nil, fmt.Errorf("%s is empty: %w", d.config.TokenFile, ErrConfig)
		}
	}
	d.registry = d.newRegistry()
	rest, err := api.New(api.Options{
		Node: view{d}, Catalogue: view{d}, Canaries: view{d}, Metrics: d.registry, Log: d.log, Token: token, Hosts: d.config.HTTPHosts,
	})
	if err != nil {
		return nil, err
	}
	if path := d.config.AdminSocket; path != off {
		if path == "" {
			path = filepath.Join(filepath.Dir(d.socket.path), "admin.sock")
		}
		l, err := api.ListenUnix(path)
		if err != nil {
			return nil, err
		}
		d.admin = append(d.admin, api.Listener{Listener: l, Trusted: true})
	}
	if d.config.HTTP != off {
		l, err := net.Listen("tcp", d.config.HTTP)
		if err != nil {
			return nil, err
		}
		d.admin = append(d.admin, api.Listener{Listener: l})
	}
	return rest, nil
}

func (d *Daemon) closeAdmin() {
	for _, l := range d.admin {
		l.Close()
	}
}

// hasPeerPidfd asks the kernel on a socket pair of ours.
func hasPeerPidfd() bool {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	p, err := readPeer(pair[0])
	if err != nil || p.pidfd < 0 {
		return false
	}
	unix.Close(p.pidfd)
	return true
}
