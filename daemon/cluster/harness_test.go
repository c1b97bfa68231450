package cluster

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"
)

// patience is how long a test waits for what takes milliseconds on a machine that has
// nothing else to do.
const patience = time.Minute

// eventually waits for a condition.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", patience, what)
		}
		pause(5 * time.Millisecond)
	}
}

func pause(d time.Duration) { <-time.After(d) }

// cut stands between nodes: what it has been told to drop does not arrive.
type cut struct {
	memberlist.NodeAwareTransport
	dropped *sync.Map // of host:port; shared by all nodes of a test
	own     string
}

func (c *cut) drops(to string) bool {
	_, a := c.dropped.Load(to)
	_, b := c.dropped.Load(c.own)
	return a || b
}

func (c *cut) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	if c.drops(a.Addr) {
		return time.Now(), nil
	}
	return c.NodeAwareTransport.WriteToAddress(b, a)
}

func (c *cut) WriteTo(b []byte, addr string) (time.Time, error) {
	return c.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (c *cut) DialAddressTimeout(a memberlist.Address, d time.Duration) (net.Conn, error) {
	if c.drops(a.Addr) {
		return nil, errors.New("cut off")
	}
	return c.NodeAwareTransport.DialAddressTimeout(a, d)
}

func (c *cut) DialTimeout(addr string, d time.Duration) (net.Conn, error) {
	return c.DialAddressTimeout(memberlist.Address{Addr: addr}, d)
}

// bed is a test's cluster on loopback.
type bed struct {
	t       *testing.T
	dir     string
	dropped sync.Map
}

func newBed(t *testing.T) *bed {
	// Suspicions that were running end by themselves, some seconds later.
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		eventually(t, "goroutines are back where they began", func() bool { return runtime.NumGoroutine() <= before })
	})
	return &bed{t: t, dir: t.TempDir()}
}

// file writes a file and gives its path.
func (b *bed) file(name string, text []byte) string {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// node is a running node and what it was told.
type node struct {
	*Cluster
	*bed
	log  *lockedText
	halt context.CancelFunc
	done chan error
	once sync.Once
	mu   struct {
		sync.Mutex
		told    []string          // "+a", "-a"
		members map[string]Member // joined and not left
	}
}

// lockedText is a log.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedText) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// start runs a node of a bed; change may change its configuration.
func (b *bed) start(name string, seeds []string, change func(*Config)) *node {
	b.t.Helper()
	n := &node{bed: b, log: &lockedText{}, done: make(chan error, 1)}
	n.mu.members = map[string]Member{}
	cfg := Config{
		Name: "test", Node: name, Version: "1.2.3", Seeds: seeds, Bind: loopback, PeerBind: loopback, Keyring: filepath.Join(b.dir, "keys"),
		Timing: Timing{Rejoin: 200 * time.Millisecond, Resolve: time.Second, Watch: 20 * time.Millisecond, Leave: 10 * time.Second},
		Log:    zerolog.New(n.log), OnJoin: n.join, OnLeave: n.leave,
		tune: func(m *memberlist.Config) {
			m.ProbeInterval, m.ProbeTimeout, m.SuspicionMult = 100*time.Millisecond, 50*time.Millisecond, 2
			m.GossipInterval, m.PushPullInterval, m.TCPTimeout = 10*time.Millisecond, 500*time.Millisecond, patience
			own := netip.AddrPortFrom(loopback.Addr(), uint16(m.BindPort))
			m.Transport = &cut{NodeAwareTransport: m.Transport.(memberlist.NodeAwareTransport), dropped: &b.dropped, own: own.String()}
		},
	}
	if change != nil {
		change(&cfg)
	}
	if cfg.Keyring != "" {
		if _, err := os.Stat(cfg.Keyring); err != nil {
			b.file("keys", []byte(ringText(keyOf('a'))))
		}
	}
	var err error
	if n.Cluster, err = New(cfg); err != nil {
		b.t.Fatal(err)
	}
	if err := n.Listen(); err != nil {
		b.t.Fatal(err)
	}
	ctx, halt := context.WithCancel(context.Background())
	n.halt = halt
	go func() { n.done <- n.Run(ctx) }()
	b.t.Cleanup(n.stop)
	return n
}

// hold changes how long nodes hold members.
func hold(d time.Duration, nodes ...*node) {
	for _, n := range nodes {
		n.roster.mu.Lock()
		n.roster.hold = d
		n.roster.mu.Unlock()
	}
}

// address is the node's gossip address.
func (n *node) address() string { return n.Members()[0].Gossip.String() }

// stop has the node leave and waits until it has.
func (n *node) stop() {
	n.once.Do(func() {
		n.halt()
		select {
		case err := <-n.done:
			if err != nil {
				n.t.Errorf("%s: %v", n.cfg.Node, err)
			}
		case <-time.After(patience):
			n.t.Errorf("%s does not stop", n.cfg.Node)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.mu.members) != 0 {
			n.t.Errorf("%s stopped and was not told that %v left", n.cfg.Node, n.mu.members)
		}
	})
}

// kill ends the node as the death of its process would: nobody hears that it leaves.
func (n *node) kill() {
	n.dropped.Store(n.address(), true)
	n.stop()
}

func (n *node) join(m Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.mu.members[m.Name]; ok {
		n.t.Errorf("%s was told twice that %s joined", n.cfg.Node, m.Name)
	}
	for _, other := range n.mu.members {
		if other.Number == m.Number {
			n.t.Errorf("%s: %s and %s have number %d", n.cfg.Node, m.Name, other.Name, m.Number)
		}
	}
	n.mu.members[m.Name] = m
	n.mu.told = append(n.mu.told, "+"+m.Name)
}

func (n *node) leave(m Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.members[m.Name].Incarnation != m.Incarnation {
		n.t.Errorf("%s was told that %s left, which had not joined", n.cfg.Node, m.Name)
	}
	delete(n.mu.members, m.Name)
	n.mu.told = append(n.mu.told, "-"+m.Name)
}

// told is what the node was told, in order.
func (n *node) told() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.mu.told, " ")
}

// knows reports whether the node works with exactly these others.
func (n *node) knows(names ...string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		if _, ok := n.mu.members[name]; !ok {
			return false
		}
	}
	return len(n.mu.members) == len(names)
}

// member is what the node knows of another one.
func (n *node) member(name string) (Member, bool) {
	for _, m := range n.Members() {
		if m.Name == name {
			return m, true
		}
	}
	return Member{}, false
}

// resolver gives what it is told to; a name that it does not know is an error.
type resolver struct {
	names sync.Map // name to []netip.Addr
	asked atomic.Int64
}

func (r *resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	r.asked.Add(1)
	if addrs, ok := r.names.Load(host); ok {
		return addrs.([]netip.Addr), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
