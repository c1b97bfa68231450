package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/daemon/decided"
	"github.com/spliced-kv/spliced/daemon/events"
	"github.com/spliced-kv/spliced/daemon/gpu"
	"github.com/spliced-kv/spliced/daemon/journal"
	"github.com/spliced-kv/spliced/daemon/note"
	"github.com/spliced-kv/spliced/daemon/parallel"
	"github.com/spliced-kv/spliced/daemon/server"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/daemon/socket"
	"github.com/spliced-kv/spliced/daemon/spans"
	"github.com/spliced-kv/spliced/daemon/usage"
	"github.com/spliced-kv/spliced/daemon/view"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/object"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Build describes the build of the program. The main fills it in.
type Build struct {
	Version string
	Commit  string
}

// Parts are dependencies of a daemon other than its configuration. With the zero value, the daemon
// uses this machine and writes no logs.
type Parts struct {
	Log    zerolog.Logger
	Build  Build
	Device gpuipc.Device // nil = Run opens it, and closes it at the end; a device that is passed in stays open
	// Accelerators are used if the configuration asks for memory of GPUs. nil = Run opens the GPUs that
	// the configuration names. Accelerators that are passed in stay open.
	Accelerators []gpuipc.Accelerator
	Machine      *settings.Machine // nil = settings.DetectMachine
	Now          func() time.Time
	Level        view.Level // log level of Log; nil = fixed
	// Lower wraps the disk tier before the store uses it; nil = no wrapper.
	Lower func(tier.Tier) tier.Tier
}

// Daemon is one node's cache. New builds it, Run runs it once.
type Daemon struct {
	// Fixed after New.
	config  settings.Config
	machine settings.Machine
	short   []settings.Shortfall
	build   Build
	log     zerolog.Logger
	now     func() time.Time
	tenants tiering.Tenants
	epoch   uint64 // identifies this start
	journal *journal.Journal
	lower   func(tier.Tier) tier.Tier
	level   view.Level
	every   time.Duration // interval between writes of notes; 0 = note.Every
	offers  time.Duration // longest wait for offers of parallel work; 0 = the default

	peers     *peers // nil = no cluster
	objectKey []byte // secret of the object store; nil = none

	accelerators []gpuipc.Accelerator // as passed in

	// Set by Run before ready is closed.
	device   gpuipc.Device
	ownsDev  bool
	gpus     gpu.Devices       // those that the configuration requests
	disk     *disk.Tier        // nil = none
	segments *find.Index       // shared by disk and store; nil without a disk
	events   *events.Publisher // nil = none
	held     *held.Set         // objects published to peers and events; nil = no listeners
	object   *object.Store     // nil = no object store
	store    *tiering.Store
	canary   *canary.Canary
	usage    *usage.Usage
	history  *usage.History
	spans    *spans.Spans // nil = none
	work     *parallel.Work
	server   *server.Server
	socket   *socket.Socket
	view     *view.View
	registry *prometheus.Registry
	started  time.Time
	admin    []api.Listener
	own      *api.AdminListener // one of admin; nil = none
	rest     *api.Server

	secrets secrets // tokens and certificate in use; see reload.go

	remembered  *canary.Memory  // switched-off profiles; nil without a disk
	summed      *usage.Memory   // usage before this start; nil without a disk
	decisions   *decided.Memory // decisions before this start; nil without a disk
	diskRun     sync.WaitGroup
	abandonDisk context.CancelFunc

	serving atomic.Bool
	stage   atomic.Pointer[string] // name of the part being opened
	ready   chan struct{}
}

// New resolves and validates a configuration, and reads the files that it names. It opens nothing
// else; Run does.
func New(config settings.Config, parts Parts) (*Daemon, error) {
	m := parts.Machine
	if m == nil {
		m = new(settings.DetectMachine())
	}
	config.Resolve(*m)
	d := &Daemon{
		config: config, machine: *m, build: parts.Build, log: parts.Log, now: parts.Now, lower: parts.Lower, level: parts.Level,
		tenants: tenantsOf(&config), epoch: newEpoch(),
		device: parts.Device, ownsDev: parts.Device == nil, accelerators: parts.Accelerators, ready: make(chan struct{}),
	}
	if d.now == nil {
		d.now = time.Now
	}
	d.journal = journal.New(d.epoch, journal.DefaultBytes, d.now)
	if err := d.config.Validate(d.readFiles); err != nil {
		return nil, err
	}
	d.short = d.config.Fit(*m)
	return d, nil
}

// Config returns the resolved configuration.
func (d *Daemon) Config() settings.Config { return d.config }

// HeapLimit returns the soft limit of Go's heap in bytes that leaves room for the pools on this
// machine; 0 = none.
func (d *Daemon) HeapLimit() settings.Bytes { return d.config.HeapLimit(d.machine) }

// Ready is closed once the socket is served.
func (d *Daemon) Ready() <-chan struct{} { return d.ready }

// Socket returns the path of the engine socket. It is valid once Ready is closed.
func (d *Daemon) Socket() string { return d.socketPath() }

func (d *Daemon) socketPath() string {
	if d.socket == nil {
		return d.config.Socket
	}
	return d.socket.Path
}

// AdminAddr returns the address of the admin REST over TCP, nil if it is off. It is valid once
// Ready is closed.
func (d *Daemon) AdminAddr() net.Addr {
	for _, l := range d.admin {
		if !l.Trusted {
			return l.Addr()
		}
	}
	return nil
}

// Run opens all parts in the order of the package doc, serves until ctx ends or a part fails, and
// closes all parts in reverse order. It may be called once.
func (d *Daemon) Run(ctx context.Context) (err error) {
	d.started = d.now()
	defer func() {
		if !errors.Is(err, server.ErrStuck) {
			err = errors.Join(err, d.close())
		}
	}()
	rest, err := d.openAdmin()
	if err != nil {
		return remedied(err)
	}
	// Independent of ctx: the background parts serve connections until the last one is closed.
	background, stopBackground := context.WithCancel(context.Background())
	defer stopBackground()
	ended := make(chan error, 1)
	go func() { ended <- rest.Run(background, d.admin...) }()
	if err := d.open(ctx); err != nil {
		stopBackground()
		if errors.Is(err, ctx.Err()) {
			err = nil // the daemon was asked to end
		}
		return errors.Join(remedied(err), <-ended)
	}
	d.view.Register(d.registry)
	rest.Show(api.Shown{Node: d.view, Catalogue: d.view, Canaries: d.view, Control: d.view})
	return d.run(ctx, serving{background, stopBackground, ended})
}

// serving holds what runs before all parts are open: the admin REST and its context.
type serving struct {
	background     context.Context
	stopBackground context.CancelFunc
	admin          <-chan error // delivers the reason why the admin REST has ended
}

// run starts the background parts, accepts connections, and stops everything at the end.
func (d *Daemon) run(ctx context.Context, on serving) error {
	background, stopBackground := on.background, on.stopBackground
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
	if d.remembered != nil {
		start("what is switched off", func() error { return d.remembered.Run(background) })
		start("sums of what was served", func() error { return d.summed.Run(background) })
		start("what was decided", func() error { return d.decisions.Run(background) })
	}
	start("history", func() error { return d.history.Run(background) })
	d.startDisk(ctx)
	start("clients' watch", d.server.Watch)
	start("lease sweep", func() error { return d.store.Run(background) })
	start("parallel work", func() error { return d.work.Run(background) })
	start("admin REST", func() error { return <-on.admin })
	if d.peers != nil {
		// It ends after sendCopies, since other nodes fetch these copies from this node.
		start("cluster", func() error { return d.peers.cluster.Run(background) })
	}
	if d.object != nil {
		start("object store", func() error { d.object.Run(background); return nil })
	}
	if d.events != nil {
		start("KV events", func() error { return d.events.Run(ctx) })
	}
	var accepting sync.WaitGroup
	allow := d.socket.NewAllowList(d.config.AllowUIDs, d.config.AllowGIDs)
	accepting.Go(func() { d.socket.Guard(ctx, d.log) })
	if d.own != nil {
		log := d.log.With().Str("socket", d.own.Addr().String()).Logger()
		accepting.Go(func() { socket.GuardPath(ctx, log, "the admin socket", d.own.TakeBack) })
	}
	accepting.Go(func() {
		if err := d.server.Accept(d.socket, allow); err != nil {
			fail(fmt.Errorf("accept: %w", err))
		}
	})
	d.announce()

	<-ctx.Done()
	d.serving.Store(false)
	notify("STOPPING=1")
	d.log.Info().Msg("stopping")
	unlinked := d.socket.StopListening()
	accepting.Wait()
	d.work.Stop() // ends the waits of watch requests
	if stuck := d.server.Stop(); stuck != nil {
		stopBackground()
		return errors.Join(cause(ctx), unlinked, stuck)
	}
	d.flush()
	d.sendCopies()
	woken := d.server.StopWatch()
	stopBackground()
	if !endsWithin(d.stuckAfter(), parts.Wait) {
		return errors.Join(cause(ctx), unlinked, woken, fmt.Errorf("a disk read or GPU copy does not finish: %w", server.ErrStuck))
	}
	d.log.Info().Msg("stopped")
	return errors.Join(cause(ctx), unlinked, woken)
}

// stuckAfter returns how long run and close wait for the background parts to end. The parts have
// been told to end by then, and only a disk or driver that hangs can delay them.
func (d *Daemon) stuckAfter() time.Duration { return 4*d.config.DrainTimeout + time.Second }

// endsWithin reports whether the function wait returns in time. If not, wait continues in the
// background.
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

// cause returns the error that made the daemon stop; nil if it was asked to stop.
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
	notify("READY=1\nSTATUS=serving " + d.socket.Path)
	d.log.Info().Str("version", d.build.Version).Str("socket", d.socket.Path).Uint64("epoch", d.epoch).
		Str("arena", d.config.Arena.String()).Str("private", d.config.Private.String()).Int("workers", d.config.Workers).Msg("serving")
	for _, c := range d.view.Checks() {
		if c.State != api.CheckOK {
			d.log.Warn().Str("check", c.Name).Msg(c.Detail)
		}
	}
}

// open opens the parts in the first half of the start order. If it fails, close closes the parts
// that are open.
func (d *Daemon) open(ctx context.Context) (err error) {
	if d.ownsDev {
		if d.device, err = gpuipc.Open(gpuipc.Options{Host: gpuipc.HostOptions{Workers: d.config.Workers}}); err != nil {
			return err
		}
	}
	d.opening("the cluster")
	if err = d.openPeers(); err != nil {
		return err
	}
	if err = d.openObject(); err != nil {
		return err
	}
	if err = d.openEvents(); err != nil {
		return err
	}
	d.openHeld()
	d.opening("the disk tier")
	if err = d.openDisk(); err != nil {
		return err
	}
	d.opening("the GPUs")
	d.openGPUs(ctx)
	if err = ctx.Err(); err != nil {
		return err
	}
	d.opening("memory")
	if err = d.openStore(); err != nil {
		return err
	}
	d.canary = canary.New(d.now)
	d.usage = usage.New(d.now, d.told)
	if d.config.OTLPEndpoint != "" {
		if err = d.openSpans(); err != nil {
			return err
		}
	}
	d.work = parallel.New(d.workConfig())
	if d.server, err = d.newServer(); err != nil {
		return err
	}
	if d.disk != nil {
		d.remembered = canary.NewMemory(d.canary, d.disk, d.tenants, d.log)
		notes := note.Keeper{Disk: d.disk, Every: d.every, Log: d.log}
		d.summed = usage.NewMemory(d.usage, notes, d.tenants)
		d.decisions = decided.NewMemory(d.store.Decisions(), notes, d.store.Profile, d.tenants)
	}
	if err = d.socket.Listen(d.config.MaxConnections); err != nil {
		return err
	}
	if err = d.servePeers(); err != nil {
		return err
	}
	if err = d.serveEvents(); err != nil {
		return err
	}
	d.history = usage.NewHistory(d.sample)
	d.view = d.newView()
	return nil
}

// opening records the part being opened, for operators who ask why the start takes long.
func (d *Daemon) opening(what string) { d.stage.Store(&what) }

func (d *Daemon) newServer() (*server.Server, error) {
	return server.New(server.Options{
		Config: &d.config, Store: d.store, Device: d.device, GPUs: d.gpus, Canary: d.canary, Usage: d.usage, Work: d.work, Tenants: d.tenants,
		Epoch: d.epoch, Title: strings.TrimSpace("spliced " + d.build.Version), Log: d.log,
		Stats: func() []api.Counter { return d.view.Counters() }, Served: d.advised(), Journal: d.journal,
	})
}

func (d *Daemon) newView() *view.View {
	o := view.Options{
		Config: &d.config, Machine: d.machine, Shortfalls: d.short, Version: d.build.Version, Commit: d.build.Commit, Started: d.started,
		Epoch: d.epoch, Socket: d.socketPath(), Guard: d.socket, Pidfds: socket.HasPidfd(), Serving: d.serving.Load,
		Store: d.store, Place: d.store.Pools()[0].Place, Device: d.device, GPUs: d.gpus, Disk: d.disk,
		Server: d.server, Canary: d.canary, Usage: d.usage, History: d.history, Tenants: d.tenants, Decided: d.decisions, Journal: d.journal, Events: d.events,
	}
	o.Reload, o.Level, o.Now = d.Reload, d.level, d.now
	d.show(&o)
	o.Copies = d.copies
	if d.object != nil {
		o.Object = d.object
		o.Remotes = append(o.Remotes, view.Remote{Name: "object", Counters: d.object.Counters})
	}
	if d.spans != nil {
		o.Remotes = append(o.Remotes, view.Remote{Name: view.Spans, Counters: func() []any {
			c := d.spans.Counters()
			return []any{&c}
		}})
	}
	return view.New(o)
}

// close is the last step of a stop: it closes the parts that open has opened. A disk that hangs may
// still read memory. In that case, close leaves the store and the device open, and returns an
// error.
func (d *Daemon) close() error {
	var failed []error
	if d.server != nil {
		d.server.Close()
	}
	if d.events != nil {
		d.events.Close()
	}
	d.closeSpans()
	var stored error
	below := func() {
		if d.work != nil {
			d.work.Close()
		}
		if d.peers != nil {
			d.peers.close()
		}
		if d.store != nil {
			stored = d.store.Close()
		}
		d.stopDisk()
	}
	if !endsWithin(d.stuckAfter(), below) {
		return errors.Join(append(failed, fmt.Errorf("a disk write or GPU driver call does not finish: %w", server.ErrStuck))...)
	}
	failed = append(failed, stored)
	d.gpus.Close()
	if d.ownsDev && d.device != nil {
		failed = append(failed, d.device.Close())
	}
	if d.socket != nil {
		failed = append(failed, d.socket.Unlock())
	}
	return errors.Join(failed...)
}

// openAdmin reserves the engine socket and opens the listeners of the admin REST. The admin REST
// answers from then on, since a disk or driver that hangs can delay the rest of the start.
func (d *Daemon) openAdmin() (rest *api.Server, err error) {
	if d.socket, err = socket.Reserve(d.config.Socket, d.machine); err != nil {
		return nil, err
	}
	d.opening("the device")
	defer func() {
		if err != nil {
			d.closeAdmin()
		}
	}()
	d.registry = prometheus.NewRegistry()
	start := view.NewStart(api.Status{
		Node: d.config.Node, Version: d.build.Version, BootEpoch: d.epoch, Started: d.started, Socket: d.socket.Path,
	}, func() string { return *d.stage.Load() })
	rest, err = api.New(api.Options{
		Shown: api.Shown{Node: start, Catalogue: start, Canaries: start, Control: start}, Metrics: d.registry, Log: d.log, Hosts: d.config.HTTPHosts,
		Tokens: d.secrets.tokens, Events: d.journal,
	})
	if err != nil {
		return nil, err
	}
	d.rest = rest
	if path := d.config.AdminSocket; path != settings.Off {
		path = cmp.Or(path, api.SocketBeside(d.socket.Path))
		l, err := api.ListenUnix(path)
		if err != nil {
			return nil, err
		}
		d.own, d.admin = l, append(d.admin, api.Listener{Listener: l, Trusted: true})
	}
	if d.config.HTTP != settings.Off {
		l, err := net.Listen("tcp", d.config.HTTP)
		if err != nil {
			return nil, fmt.Errorf("http: %w", err)
		}
		d.admin = append(d.admin, api.Listener{Listener: d.secrets.listener(l)})
	}
	return rest, nil
}

func (d *Daemon) closeAdmin() {
	for _, l := range d.admin {
		l.Close()
	}
}

// newEpoch draws a random number, not 0, that identifies this start. Clients that know no epoch
// send 0.
func newEpoch() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if epoch := binary.LittleEndian.Uint64(b[:]); epoch != 0 {
			return epoch
		}
	}
}
