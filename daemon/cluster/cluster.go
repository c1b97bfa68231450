package cluster

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// Cluster is this node's part in a cluster.
type Cluster struct {
	cfg         Config
	files       reader
	ring        *memberlist.Keyring // nil = gossip is not encrypted
	creds       *credentials        // nil = the peers' port has no TLS
	secret      Secret
	started     time.Time
	incarnation uint64
	roster      *roster
	gossip      *gossip
	exchange    *exchanger // asks members for their index; nil = off
	changed     chan struct{}

	// Set by Listen.
	list      *memberlist.Memberlist
	transport *transport
	port      *port
	joiner    *joiner
	self      Member

	addresses atomic.Pointer[map[netip.Addr]bool] // addresses of members, for knows

	using    sync.Mutex        // locked while changed files are put into use
	material *material         // guarded by using once Run runs
	asked    map[uint16]*asker // by member number; used only by the goroutine of Run

	mu struct {
		sync.Mutex
		filesError string
		reloads    uint64
	}
}

// New validates a configuration and reads its files. It opens and starts nothing. Its errors wrap
// settings.ErrConfig; those of files are a *settings.Faults.
func New(cfg Config) (*Cluster, error) {
	invalid := cfg.Validate()
	cfg.fill()
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	c := &Cluster{cfg: cfg, changed: make(chan struct{}, 1), asked: map[uint16]*asker{}, started: cfg.Now()}
	warned := map[string]bool{} // at most one warning per text
	c.files = reader{&c.cfg, func(text string) {
		if !warned[text] {
			warned[text] = true
			cfg.Log.Warn().Msg(text)
		}
	}}
	files := &settings.Faults{}
	c.readFiles(files)
	if err := errors.Join(invalid, files.Err()); err != nil {
		return nil, err
	}
	var start [8]byte
	_, _ = rand.Read(start[:]) // never fails
	c.incarnation = binary.LittleEndian.Uint64(start[:]) | 1
	c.roster = newRoster(cfg.Node, cfg.Hold, c.unfit)
	c.gossip = &gossip{self: cfg.Node, roster: c.roster, changed: c.changed, now: cfg.Now, log: cfg.Log}
	if cfg.Exchange != nil {
		c.exchange = newExchanger(cfg.Exchange, cfg.Name, c.incarnation, c.creds, cfg.ExchangeRate)
	}
	return c, nil
}

func (c *Cluster) readFiles(v *settings.Faults) {
	c.material, _ = c.files.material(nil, v)
	c.secret = c.files.secret(c.material.keys, v)
	var err error
	if c.ring, err = newRing(c.material.keys); err != nil {
		v.Add(keyringSetting, "%v", err)
	}
	if c.material.id != nil {
		c.creds = newCredentials(c.cfg.Name, c.cfg.Now)
		c.creds.current.Store(c.material.id)
	}
}

// unfit returns why a live node cannot be used; "" = it can.
func (c *Cluster) unfit(m *metadata) string {
	switch {
	case m.Protocol != Protocol:
		return fmt.Sprintf("speaks protocol %d, this node %d", m.Protocol, Protocol)
	case m.Plain != (c.creds == nil):
		return "only one of the two nodes uses TLS on the peers' port"
	case m.Check != c.secret.check():
		return "hashes names with another secret: see cluster-secret"
	}
	return ""
}

// Secret returns the key with which names in the index are hashed.
func (c *Cluster) Secret() Secret { return c.secret }

// Incarnation returns a random nonzero number that identifies this start of the node.
func (c *Cluster) Incarnation() uint64 { return c.incarnation }

// ClientTLS returns the configuration for connections to the peers' port of a member; nil = no TLS.
// It stays valid when certificates change. Callers must not modify it.
func (c *Cluster) ClientTLS(node string) *tls.Config {
	if c.creds == nil {
		return nil
	}
	return c.creds.client(node)
}

// ServerTLS returns the TLS configuration of the peers' port, for use by servers on other ports of
// this node; nil = no TLS.
func (c *Cluster) ServerTLS() *tls.Config {
	if c.creds == nil {
		return nil
	}
	return c.creds.server()
}

// Listen opens gossip and the peers' port. It may be called once, before Run. If it is not called,
// Run opens them. After Listen, the caller must call Run, which closes them when it ends.
func (c *Cluster) Listen() error {
	listener, err := net.Listen("tcp", c.cfg.PeerBind.String())
	if err != nil {
		return fmt.Errorf("cluster-peer-bind: %w", err)
	}
	c.port = newPort(listener, c.creds, c.serve, c.cfg.Log)
	c.port.below, c.port.gate.known = c.cfg.BelowTLS, c.knows
	peer, err := c.peerAddress(listener.Addr())
	if err == nil {
		c.gossip.meta.Store(&metadata{
			Protocol: Protocol, Plain: c.creds == nil, Incarnation: c.incarnation, Started: c.started,
			Check: c.secret.check(), Peer: peer, Version: plainText(c.cfg.Version),
		})
		c.transport, err = newTransport(c.cfg.Bind, c.cfg.Name, c.ring, c.knows, c.cfg.Now, c.cfg.Log)
	}
	if err == nil {
		if c.list, err = memberlist.Create(c.listConfig()); err != nil {
			_ = c.transport.Shutdown()
		}
	}
	if err != nil {
		_ = listener.Close()
		return fmt.Errorf("cluster-bind: %w", err)
	}
	local := c.list.LocalNode()
	addr, _ := netip.AddrFromSlice(local.Addr)
	gossip := netip.AddrPortFrom(addr.Unmap(), local.Port)
	c.self = Member{
		Name: c.cfg.Node, Self: true, Since: c.started, Gossip: gossip, Peer: peer, Plain: c.creds == nil,
		Version: c.cfg.Version, Protocol: Protocol, Incarnation: c.incarnation, Started: c.started,
	}
	c.joiner = &joiner{
		resolver: c.cfg.Resolver, timing: &c.cfg.Timing, roster: c.roster, self: gossip, now: c.cfg.Now, join: func(addr netip.AddrPort) error {
			_, err := c.list.Join([]string{addr.String()})
			return err
		},
	}
	for _, text := range c.cfg.Seeds {
		s, _ := parseSeed(text, gossip.Port()) // Validate has checked the seed
		c.joiner.seeds = append(c.joiner.seeds, s)
	}
	return nil
}

// plainText replaces the characters that metadata cannot carry, and cuts s to maxVersion bytes.
func plainText(s string) string {
	b := []byte(s[:min(len(s), maxVersion)])
	for i := range b {
		if b[i] < ' ' || b[i] > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

// peerAddress returns the address of the peers' port that other members connect to.
func (c *Cluster) peerAddress(bound net.Addr) (netip.AddrPort, error) {
	if c.cfg.PeerAdvertise.IsValid() {
		return c.cfg.PeerAdvertise, nil
	}
	port := bound.(*net.TCPAddr).AddrPort().Port()
	for _, addr := range []netip.Addr{c.cfg.PeerBind.Addr(), c.cfg.Advertise.Addr(), c.cfg.Bind.Addr()} {
		if addr.IsValid() && !addr.IsUnspecified() {
			return netip.AddrPortFrom(addr.Unmap(), port), nil
		}
	}
	return netip.AddrPort{}, errors.New("no address to advertise for the peers' port")
}

// listConfig returns memberlist's configuration for local networks, with some values changed
// because of measurements.
func (c *Cluster) listConfig() *memberlist.Config {
	m := memberlist.DefaultLANConfig()
	m.Name, m.Label, m.Keyring = c.cfg.Node, c.cfg.Name, c.ring
	m.Transport = c.transport
	m.BindAddr, m.BindPort = c.cfg.Bind.Addr().String(), c.transport.port()
	m.AdvertiseAddr, m.AdvertisePort = "", c.transport.port()
	if c.cfg.Advertise.IsValid() {
		m.AdvertiseAddr, m.AdvertisePort = c.cfg.Advertise.Addr().String(), int(c.cfg.Advertise.Port())
	}
	m.Delegate, m.Events, m.Alive, m.Conflict, m.Ping = c.gossip, c.gossip, c.gossip, c.gossip, c.gossip
	m.Logger = newLogger(c.cfg.Log)
	m.RequireNodeNames = false // a seed is an address without a name
	// A node may return with another address, as pods do. It is accepted as soon as memberlist has
	// declared the former address dead.
	m.DeadNodeReclaimTime = time.Millisecond
	// Join blocks for this long if an address does not answer.
	m.TCPTimeout = 3 * time.Second
	// Full exchanges repair the loss of single messages. Beyond 32 nodes, memberlist makes full
	// exchanges less frequent.
	m.PushPullInterval = 10 * time.Second
	m.EnableCompression = false // compression would take CPU time for data that fits a packet anyway
	if c.cfg.tune != nil {
		c.cfg.tune(m)
	}
	return m
}

// serve answers a request to the peers' port.
func (c *Cluster) serve(ctx *fasthttp.RequestCtx) {
	switch {
	case c.exchange != nil && string(ctx.Path()) == exchangePath:
		c.exchange.answer(ctx)
	case c.cfg.Handler != nil:
		c.cfg.Handler(ctx)
	default:
		refuse(ctx, fasthttp.StatusNotFound, "no_such_path")
	}
}

// Run runs this node's membership until the context ends. Then the node leaves the cluster, which
// takes at most Timing.Leave and drainTime. Before Run returns, it calls OnLeave for every member
// that was passed to OnJoin. Run fails if Listen was not called before and fails now.
func (c *Cluster) Run(ctx context.Context) error {
	if c.list == nil {
		if err := c.Listen(); err != nil {
			return err
		}
	}
	serving, stopServing := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { c.port.run(serving) })
	joining, stopJoining := context.WithCancel(ctx)
	defer stopJoining()
	parts.Go(func() { c.joiner.run(joining) })
	parts.Go(func() { c.watch(joining) }) // separate goroutine: a file system that hangs must not delay members
	c.follow(ctx)
	c.leave()
	for _, a := range c.asked {
		c.tell(event{false, a.member})
	}
	stopServing()
	parts.Wait()
	return c.list.Shutdown()
}

// follow reports changes of members until the context ends.
func (c *Cluster) follow(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		case <-timer.C:
		}
		events, next := c.roster.settle(c.cfg.Now())
		c.learnAddresses()
		for _, e := range events {
			c.tell(e)
		}
		if doubts := c.roster.doubts(); c.cfg.OnDoubt != nil {
			for _, m := range doubts {
				c.cfg.OnDoubt(m)
			}
		}
		if !next.IsZero() {
			timer.Reset(max(0, next.Sub(c.cfg.Now())))
		}
	}
}

// learnAddresses updates the addresses that both ports treat as addresses of members.
func (c *Cluster) learnAddresses() {
	here, lost := c.roster.reached(c.cfg.Now())
	known := make(map[netip.Addr]bool, len(here)+len(lost))
	for at := range here {
		known[at.Addr()] = true
	}
	for _, at := range lost {
		known[at.Addr()] = true
	}
	c.addresses.Store(&known)
}

// knows reports whether an address belongs to a member, or to a lost member that may come back.
func (c *Cluster) knows(a netip.Addr) bool {
	known := c.addresses.Load()
	return known != nil && (*known)[a]
}

// tell calls OnJoin or OnLeave. A member is asked for its index from its join to its leave. After
// its leave, its number is free for another member.
func (c *Cluster) tell(e event) {
	m := e.member
	if e.join {
		c.cfg.Log.Info().Str("peer", m.Name).Stringer("address", m.Peer).Str("version", m.Version).Msg("cluster: a member joined")
		if c.cfg.OnJoin != nil {
			c.cfg.OnJoin(m)
		}
		a := &asker{member: m}
		if c.exchange != nil {
			a = c.exchange.begin(m)
		}
		c.asked[m.Number] = a
		return
	}
	if a := c.asked[m.Number]; a.exchanger != nil {
		a.end()
	}
	delete(c.asked, m.Number)
	if c.cfg.OnLeave != nil {
		c.cfg.OnLeave(m)
	}
	c.roster.freed(m.Number)
	switch m.State {
	case Failed:
		c.cfg.Log.Warn().Str("peer", m.Name).Stringer("address", m.Peer).Msg("cluster: a member failed: it stopped answering without announcing that it leaves")
	case Left:
		c.cfg.Log.Info().Str("peer", m.Name).Msg("cluster: a member left")
	default:
		c.cfg.Log.Info().Str("peer", m.Name).Msg("cluster: a member restarted or changed")
	}
}

// leave announces in this node's metadata that it leaves. memberlist itself does not distinguish a
// node that left from a node that died.
func (c *Cluster) leave() {
	leaving := *c.gossip.meta.Load()
	leaving.Leaving = true
	c.gossip.meta.Store(&leaving)
	if err := c.list.UpdateNode(c.cfg.Timing.Leave / 2); err != nil {
		c.cfg.Log.Debug().Err(err).Msg("cluster: cannot announce leaving")
	}
	if err := c.list.Leave(c.cfg.Timing.Leave / 2); err != nil {
		c.cfg.Log.Debug().Err(err).Msg("cluster: left without announcing it")
	}
}

// Members lists all known nodes: this node first, then the other nodes by name, gone nodes last. It
// may be called at any time after Listen.
func (c *Cluster) Members() []Member { return append([]Member{c.self}, c.roster.members()...) }

// Status is the state of the cluster for operators.
type Status struct {
	Join        JoinStatus
	FilesError  string    // why a changed file is not in use; "" = all are
	Reloads     uint64    // how often changed files were put into use
	Certificate time.Time // expiry of the certificate in use; zero = no TLS on the peers' port
	Encrypted   bool      // gossip is encrypted
	Health      int       // memberlist's score: 0 is good, 8 is a node that hardly keeps up
	Flaps       uint64    // members that became unreachable and came back within Config.Hold
	Conflicts   uint64    // pairs of nodes with the same name
	Ignored     uint64    // nodes with unreadable metadata, a bad name or no room
	Connections int       // open connections to the peers' port that are verified
	Handshakes  uint64    // failed TLS handshakes on the peers' port
	Streams     StreamStatus
	Exchange    ExchangeCounters
}

// StreamStatus describes the unauthenticated streams of the gossip port.
type StreamStatus struct {
	Open, Bytes int // streams open now, and the bytes read from them
	// Streams and packets refused since the start, in the order of the fields: failed authentication,
	// no first message in time, message or packet too long, no room, other protocol.
	Unauthenticated, Slow, TooLong, NoRoom, Foreign uint64
	Rejected                                        []Rejected // recent refusals
}

// Status returns a snapshot. It may be called at any time after Listen.
func (c *Cluster) Status() Status {
	s := Status{
		Join: c.joiner.status(), Certificate: c.until(), Encrypted: c.ring != nil, Health: c.list.GetHealthScore(),
		Conflicts: c.gossip.conflicts.Load(), Ignored: c.gossip.ignored.Load(),
		Connections: c.port.connections(), Handshakes: c.port.refused.Load(),
	}
	s.Flaps, _ = c.roster.counts()
	s.Streams = c.transport.status()
	if c.exchange != nil {
		s.Exchange = c.exchange.counters()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.FilesError, s.Reloads = c.mu.filesError, c.mu.reloads
	return s
}
