// Package network runs clusters of real daemons on networks that fail: each node is a
// process in a network namespace of its own, the hub between them (network/hub)
// loses, delays, slows and cuts, and engines are Go clients in the test's process. One
// file is one kind of failure. It has tests and benchmarks only.
//
// What holds in all of them: no byte that a client leases differs from what was
// published, every call ends within its bound, and healBound after the network has
// healed a new segment of each node is seen by all others. Each test prints a line with
// what it measured.
//
// Without root, or without /dev/net/tun, all of it skips and says why.
package network

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/scripts/lab/network/hub"
)

const (
	// patience bounds waits that are not what a test is about.
	patience = 60 * time.Second
	// healBound is how long a cluster may take to work again once its network does.
	healBound = 10 * time.Second
	// slack is what a call may take beyond its own bound on a machine that is busy.
	slack = 5 * time.Second
	poll  = 5 * time.Millisecond
)

// roleEnv makes the test binary a node of another kind; its value is a name in roles.
const roleEnv = "SPLICED_NETWORK_ROLE"

// roles are what such nodes do, by name; each file adds its own.
var roles = map[string]func(args []string) error{}

// role adds a role and returns its name.
func role(name string, run func(args []string) error) string {
	roles[name] = run
	return name
}

func TestMain(m *testing.M) {
	if name := os.Getenv(roleEnv); name != "" {
		if err := roles[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	// Tests wait most of their time, for timers of gossip.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "5")
	}
	os.Exit(run(m))
}

var binDir string // of the daemon that is built

func run(m *testing.M) int {
	var err error
	if binDir, err = os.MkdirTemp("", "network"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binDir)
	return m.Run()
}

// program builds the daemon once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binDir, "spliced")
	command := exec.Command("go", "build", "-o", path, "./daemon/cmd/spliced")
	command.Dir, command.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	if text, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build spliced: %w: %s", err, text)
	}
	return path, nil
})

// needNetwork skips where there can be no networks of ours.
func needNetwork(t testing.TB) {
	t.Helper()
	if err := hub.Available(); err != nil {
		t.Skipf("SKIP: root and /dev/net/tun are needed: %v", err)
	}
}

// eventually polls until ok, or fails with what.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	within(t, patience, what, ok)
}

// within polls until ok and returns how long that took, or fails.
func within(t testing.TB, bound time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > bound {
			t.Fatalf("not within %v: %s", bound, what)
		}
		<-time.After(poll)
	}
	return time.Since(began)
}

// report prints the line of a test.
func report(t testing.TB, format string, a ...any) {
	t.Helper()
	t.Logf("NETWORK %s | %s", t.Name(), fmt.Sprintf(format, a...))
}

// bed is a cluster's machines and the network between them.
type bed struct {
	t       testing.TB
	dir     string // short: it holds sockets
	keyring string
	hub     *hub.Hub
	plain   *hub.Namespace // of a bridge of the kernel's in the place of the hub; nil = the hub
	nodes   []*node
}

// newBed makes machines without daemons. Node i is port i of the hub.
func newBed(t testing.TB, machines int) *bed {
	t.Helper()
	b := emptyBed(t)
	for range machines {
		b.machine()
	}
	return b
}

func emptyBed(t testing.TB) *bed {
	t.Helper()
	needNetwork(t)
	dir, err := os.MkdirTemp("", "net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &bed{t: t, dir: dir, hub: hub.New(1)}
	b.keyring = b.ring("keyring", 1)
	t.Cleanup(func() {
		if err := b.hub.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// ring writes a keyring of one key.
func (b *bed) ring(name string, fill byte) string {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	text := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, 32))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// machine adds one, with a namespace and an interface.
func (b *bed) machine() *node {
	b.t.Helper()
	ns, err := hub.NewNamespace()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(ns.Close)
	i := len(b.nodes)
	n := &node{bed: b, t: b.t, name: "n" + strconv.Itoa(i), ns: ns, addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}
	if b.plain != nil {
		b.plug(n)
	} else if n.port, err = b.hub.Attach(ns, netip.PrefixFrom(n.addr, 24)); err != nil {
		b.t.Fatal(err)
	}
	b.nodes = append(b.nodes, n)
	return n
}

// start runs a daemon on each machine and waits until they are one cluster.
func (b *bed) start(flags ...string) {
	b.t.Helper()
	for _, n := range b.nodes {
		n.launch(flags...)
	}
	for _, n := range b.nodes {
		n.open()
	}
	b.joined()
}

// joined waits until all know all.
func (b *bed) joined() {
	b.t.Helper()
	eventually(b.t, "the nodes are a cluster", func() bool {
		for _, n := range b.nodes {
			n.mustRun()
			if n.using() != len(b.nodes)-1 {
				return false
			}
		}
		return true
	})
}

// rule sets links in one direction.
func (b *bed) rule(from, to *node, r hub.Rule) {
	b.t.Helper()
	if err := b.hub.Set(from.port, to.port, r); err != nil {
		b.t.Fatal(err)
	}
}

// cut separates nodes in both directions, or mends that.
func (b *bed) cut(a, z *node, cut bool) {
	b.t.Helper()
	b.rule(a, z, hub.Rule{Cut: cut})
	b.rule(z, a, hub.Rule{Cut: cut})
}

func (b *bed) all(r hub.Rule) {
	b.t.Helper()
	if err := b.hub.SetAll(r); err != nil {
		b.t.Fatal(err)
	}
}

// healed publishes a new segment on each node and waits until all others see it and one
// of them has leased its bytes. It returns how long the first took, which healBound
// bounds. The network healed at a time.
func (b *bed) healed(at time.Time, nodes ...*node) time.Duration {
	b.t.Helper()
	docs := make([]*document, len(nodes))
	for i, n := range nodes {
		docs[i] = n.publish(100)
	}
	within(b.t, healBound-time.Since(at), "new segments are seen everywhere", func() bool {
		for i := range nodes {
			for k := range nodes {
				if i != k && !nodes[k].sees(docs[i]) {
					return false
				}
			}
		}
		return true
	})
	took := time.Since(at)
	for i := range nodes {
		nodes[(i+1)%len(nodes)].mustFetch(docs[i])
	}
	return took
}

// node is a machine, its daemon and an engine beside it.
type node struct {
	*bed
	t    testing.TB // of the bed, or of a part of it
	name string
	ns   *hub.Namespace
	addr netip.Addr
	port hub.Port

	*process
	admin  *api.Client
	client *connector.Client
	model  *connector.Model

	mu      sync.Mutex
	longest time.Duration // of the calls of its engine
	fetched int           // segments that came right
	missed  int           // that did not come
}

// small is a daemon that suits a test, whose engine is so slow that everything is worth
// fetching; later flags win.
var small = []string{"-http=off", "-arena=64MiB", "-private=8MiB", "-staging=16MiB", "-slots=1MiB", "-connection-memory=256MiB",
	"-page-bytes=4KiB", "-prefill-speed=1", "-cluster-name=bed"}

const gossipPort = 7946

func (n *node) gossip() netip.AddrPort { return netip.AddrPortFrom(n.addr, gossipPort) }

// arguments of the daemon. All machines of the bed are seeds.
func (n *node) arguments(flags ...string) []string {
	var seeds []string
	for _, m := range n.nodes {
		seeds = append(seeds, m.gossip().String())
	}
	args := append([]string{"-socket=" + n.socket()}, small...)
	args = append(args, "-cluster-node="+n.name, "-cluster-bind="+n.gossip().String(), "-cluster-seeds="+strings.Join(seeds, ","),
		"-cluster-keyring="+n.keyring)
	return append(args, flags...)
}

func (n *node) socket() string { return filepath.Join(n.dir, n.name, "s") }

// launch starts the daemon and waits for nothing.
func (n *node) launch(flags ...string) {
	n.t.Helper()
	path, err := program()
	if err != nil {
		n.t.Fatal(err)
	}
	n.launchAs(exec.Command(path), n.arguments(flags...))
}

// launchAs starts a program in the place of the daemon.
func (n *node) launchAs(command *exec.Cmd, args []string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Join(n.dir, n.name), 0o700); err != nil {
		n.t.Fatal(err)
	}
	command.Args = append(command.Args, args...)
	n.process = start(n.t, n.ns, n.name, command)
	if n.admin == nil {
		var err error
		if n.admin, err = api.NewClient("unix:"+filepath.Join(n.dir, n.name, "admin", "admin.sock"), ""); err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(n.admin.Close)
	}
}

// cluster is what the daemon tells of its cluster; zero while it does not answer.
func (n *node) cluster() api.Cluster {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, _ := n.admin.Cluster(ctx)
	return c
}

// using is how many others it works with.
func (n *node) using() (others int) {
	for _, m := range n.cluster().Members {
		if m.InUse && m.State == api.MemberAlive && !m.Self {
			others++
		}
	}
	return others
}

// member is what the daemon tells of another one; nil = nothing.
func (n *node) member(name string) *api.Member {
	for _, m := range n.cluster().Members {
		if m.Name == name {
			return &m
		}
	}
	return nil
}

// counter is one of the cluster's, by its name; 0 when it is not there.
func (n *node) counter(name string) uint64 {
	for _, c := range n.cluster().Counters {
		if c.Name == name {
			return uint64(c.Value)
		}
	}
	return 0
}

// process is one that runs in a namespace, until the test ends or end is called. One
// that ends by itself fails the test.
type process struct {
	t       testing.TB
	name    string
	command *exec.Cmd
	log     *lockedBuffer
	ended   chan struct{} // closed at the end of the process, of which err is the state
	err     error
	wanted  bool // its end is
}

func start(t testing.TB, ns *hub.Namespace, name string, command *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, command: command, log: &lockedBuffer{}, ended: make(chan struct{})}
	p.command.Stderr = p.log
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SPLICED_") {
			p.command.Env = append(p.command.Env, e)
		}
	}
	if err := ns.Start(p.command); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() { p.end(syscall.SIGTERM) })
	return p
}

// asRole makes a command of this binary.
func asRole(name string) *exec.Cmd {
	command := exec.Command("/proc/self/exe")
	command.Env = []string{roleEnv + "=" + name}
	return command
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// mustRun fails the test with the log when the process has ended.
func (p *process) mustRun() {
	p.t.Helper()
	if !p.running() {
		p.t.Fatalf("%s ended: %v\n%s", p.name, p.err, p.log)
	}
}

// end sends a signal and waits; what does not end fails the test. It returns how long
// that took.
func (p *process) end(s syscall.Signal) time.Duration {
	p.t.Helper()
	if p.wanted {
		return 0
	}
	if p.wanted = true; !p.running() {
		p.t.Errorf("%s has ended by itself: %v\n%s", p.name, p.err, p.log)
		return 0
	}
	began := time.Now()
	_ = p.command.Process.Signal(s)
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.command.Process.Kill()
		<-p.ended
		p.t.Errorf("%s does not end\n%s", p.name, p.log)
	}
	return time.Since(began)
}

// lockedBuffer is the log of a process that writes while it is read.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// count is how often the log has a text.
func (b *lockedBuffer) count(text string) int { return strings.Count(b.String(), text) }

var errNone = errors.New("nothing came")
