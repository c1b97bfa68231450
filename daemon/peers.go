package daemon

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/cluster"
	"github.com/spliced-kv/spliced/daemon/journal"
	"github.com/spliced-kv/spliced/daemon/parallel"
	"github.com/spliced-kv/spliced/daemon/view"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/peer"
	"github.com/spliced-kv/spliced/tiering/peer/index"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// peers is this node's part in a cluster: the members (cluster), the names of their objects
// (index), the set of names that this node publishes (own), and transfers in both directions
// (fetch, server).
type peers struct {
	journal *journal.Journal
	log     zerolog.Logger
	cluster *cluster.Cluster
	index   *index.Index
	own     *index.Own
	names   *peer.Names
	fetch   *peer.Peers
	server  *peer.Server // opened after the store, before the cluster listens
	known   learning
	push    *peer.Neighbours             // sends copies to other nodes; nil = off
	taker   *peer.Taker                  // receives copies, opened like server; nil = off
	told    [index.MaxNodes]atomic.Int64 // by number: unix nanoseconds when a member last had no more to report; 0 = not yet

	mu      sync.Mutex
	numbers map[string]peer.Node // numbers of the members in use, by name
}

// newPeers creates this node's part in a cluster, and reads the cluster's files.
func (d *Daemon) newPeers() (_ *peers, err error) {
	p := &peers{journal: d.journal, log: d.log, index: index.New(index.Config{}), own: index.NewOwn(d.epoch), known: learning{now: d.now}}
	p.numbers = map[string]peer.Node{}
	config := cluster.Of(&d.config)
	config.Version, config.Log, config.Now = d.build.Version, d.log, d.now
	config.Handler = d.handlePeers
	config.Exchange = timed{index.Exchange{Own: p.own, Index: p.index}, d.now, p}
	config.OnJoin, config.OnLeave, config.OnDoubt, config.BelowTLS = p.joined, p.left, p.doubted, peer.NewCorked
	if p.cluster, err = cluster.New(config); err != nil {
		return nil, err
	}
	return p, nil
}

// openPeers creates the parts of the cluster that the store uses. It does not listen yet.
func (d *Daemon) openPeers() (err error) {
	p := d.peers
	if p == nil {
		return nil
	}
	secret := p.cluster.Secret()
	tenants := make([]peer.Tenant, len(d.tenants))
	for i, t := range d.tenants {
		tenants[i] = peer.Tenant{ID: t.ID, Name: t.Name, Salt: t.Salt}
	}
	if p.names, err = peer.NewNames(secret[:], tenants); err != nil {
		return err
	}
	p.fetch, err = peer.New(peer.Config{
		Index: p.index, Names: p.names, Device: d.device, Insecure: d.config.ClusterInsecure, Now: d.now, Log: d.log,
		Learning: p.known.yet,
		Profile: func(f profile.Fingerprint) (*profile.Profile, bool) {
			_, found, ok := d.store.FindProfile(f)
			return found, ok
		},
	})
	if err != nil {
		return err
	}
	return d.openPush()
}

// handlePeers serves requests to the peers' port.
func (d *Daemon) handlePeers(ctx *fasthttp.RequestCtx) {
	p := d.peers
	switch path := ctx.Path(); {
	case parallel.Serves(path):
		d.work.Handler(ctx)
	case p.taker != nil && string(path) == peer.TakePath:
		p.taker.Handler(ctx)
	default:
		p.server.Handler(ctx)
	}
}

// servePeers opens the gossip port and the peers' port.
func (d *Daemon) servePeers() (err error) {
	p := d.peers
	if p == nil {
		return nil
	}
	config := peer.ServerConfig{
		Store: d.store, Device: d.device, Names: p.names, Known: &peer.Known{Own: p.own, Peers: p.fetch}, Log: d.log,
	}
	config.PeerOf = p.peerOf()
	if p.server, err = peer.NewServer(config); err != nil {
		return err
	}
	if err = d.openTaker(config.PeerOf); err != nil {
		return err
	}
	return p.cluster.Listen()
}

// peerOf returns a function that identifies the peer of a request. With TLS, it does so by the name
// in the peer's certificate, since nodes may share an address; without TLS, by the peer's address.
func (p *peers) peerOf() func(*fasthttp.RequestCtx) string {
	if p.cluster.ServerTLS() != nil {
		return cluster.PeerName
	}
	return peer.ByAddress
}

// workConfig returns the configuration of parallel work. The store must be open.
func (d *Daemon) workConfig() parallel.Config {
	c := parallel.Config{Store: d.store, Now: d.now, Log: d.log, Offers: d.offers}
	for i, t := range d.tenants {
		c.Tenants = append(c.Tenants, parallel.Tenant{ID: t.ID, Salt: t.Salt, Parallel: d.config.Tenants[i].Parallel})
	}
	if p := d.peers; p != nil {
		c.Cluster = &parallel.Cluster{
			Peers: p.fetch, Names: p.names, Self: d.config.ClusterNode, Node: p.numberOf, Name: p.nameOf, Mark: p.mark, PeerOf: p.peerOf(),
		}
	}
	return c
}

// numberOf returns the number of a member in use, by its name.
func (p *peers) numberOf(name string) (peer.Node, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.numbers[name]
	return n, ok
}

func (p *peers) nameOf(n peer.Node) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, number := range p.numbers {
		if number == n {
			return name, true
		}
	}
	return "", false
}

// mark adds an entry that is not an object to this node's own set, or removes it.
func (p *peers) mark(w tier.Want, has bool) {
	if has {
		p.Added(w)
	} else {
		p.Removed(w)
	}
}

// close ends transfers in both directions. It is called before the store is closed.
func (p *peers) close() {
	if p.push != nil {
		p.push.Close()
	}
	if p.taker != nil {
		p.taker.Close()
	}
	if p.fetch != nil {
		p.fetch.Close()
	}
	if p.server != nil {
		p.server.Close()
	}
}

func (p *peers) joined(m cluster.Member) {
	p.tell(&m, "joined")
	p.known.joined(m.Number)
	p.mu.Lock()
	p.numbers[m.Name] = peer.Node(m.Number)
	p.mu.Unlock()
	err := p.fetch.Set(peer.Member{Node: peer.Node(m.Number), Addr: m.Peer.String(), TLS: p.cluster.ClientTLS(m.Name)})
	if err != nil {
		p.log.Error().Err(err).Str("peer", m.Name).Msg("not fetching from a member")
	}
}

func (p *peers) left(m cluster.Member) {
	switch m.State {
	case cluster.Failed:
		p.tell(&m, "failed")
	case cluster.Left:
		p.tell(&m, "left")
	default:
		p.tell(&m, "replaced")
	}
	p.known.done(m.Number)
	p.mu.Lock()
	delete(p.numbers, m.Name)
	p.mu.Unlock()
	p.fetch.Remove(peer.Node(m.Number))
	p.index.Forget(index.Node(m.Number))
	p.told[m.Number].Store(0)
}

// timed is the exchange of the index that also records when a member has sent all of its names.
type timed struct {
	index.Exchange
	now func() time.Time
	of  *peers
}

// Learn implements cluster.Exchange.
func (x timed) Learn(number uint16, answer []byte) (more bool, err error) {
	more, err = x.Exchange.Learn(number, answer)
	if err == nil && !more {
		x.of.told[number].Store(x.now().UnixNano())
		x.of.known.done(number)
	}
	return more, err
}

// asOf returns when a member last had no more names to send; zero = not yet.
func (p *peers) asOf(number uint16) time.Time {
	if at := p.told[number].Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// show adds the cluster to the view.
func (d *Daemon) show(o *view.Options) {
	defer func() {
		o.Remotes = append(o.Remotes, view.Remote{Name: view.Parallel, Counters: func() []any {
			load := d.work.Load()
			return []any{d.work.Counts(), &load}
		}})
	}()
	p := d.peers
	if p == nil {
		return
	}
	m := &view.Members{
		Name: d.config.ClusterName, Cluster: p.cluster, Peers: p.fetch, Server: p.server, Index: p.index, Own: p.own, AsOf: p.asOf,
		Names: p.names,
		Push:  p.push, Taker: p.taker,
	}
	o.Members, o.Remotes = m, append(o.Remotes, m.Remotes()...)
	o.Cluster = func() api.Cluster {
		c := m.Tell()
		c.Workers = d.workers()
		return c
	}
}

// workers returns this node's engines that take segments to compute.
func (d *Daemon) workers() []api.Worker {
	list := []api.Worker{}
	for _, w := range d.work.Workers() {
		list = append(list, api.Worker{
			Connection: w.Conn, Profile: uint32(w.Scope.Profile), Tenant: d.server.TenantName(w.Scope.Tenant), Pieces: w.Pieces, AtOnce: w.Most,
			Jobs: w.Jobs, Queued: w.Queued / 1e3,
		})
	}
	return list
}

// Added implements held.Listener.
func (p *peers) Added(w tier.Want) {
	if tag, ok := p.names.Tag(&w); ok {
		p.own.Add(tag)
	}
}

// Removed implements held.Listener.
func (p *peers) Removed(w tier.Want) {
	if tag, ok := p.names.Tag(&w); ok {
		p.own.Remove(tag)
	}
}
