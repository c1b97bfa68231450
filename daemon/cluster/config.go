package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// Config configures a Cluster.
type Config struct {
	// Name identifies this cluster: 1 to MaxName bytes of printable ASCII. Gossip and certificates with
	// another name are refused.
	Name string
	// Node is this node's name, unique in the cluster; see settings.ValidNode for the rules.
	Node string
	// Version is the program's version, for operators.
	Version string
	// Seeds are addresses of other nodes, each HOST or HOST:PORT. The default port is Bind's port. Host
	// names are resolved at every attempt. Seeds that do not resolve or do not answer are retried.
	Seeds []string

	// Bind is the address of gossip over UDP and TCP; port 0 = any free port. Advertise is the address
	// that other nodes use; zero = Bind. If Bind is a wildcard (0.0.0.0), Advertise must be set.
	Bind, Advertise netip.AddrPort
	// PeerBind is the TCP address of the peers' port; zero = Bind's address and the port after Bind's
	// port. PeerAdvertise is the address that other nodes use; zero = the address that gossip
	// advertises, with PeerBind's port.
	PeerBind, PeerAdvertise netip.AddrPort

	// Keyring is a file with one base64 key of 16, 24 or 32 bytes per line. The first key encrypts, and
	// all keys decrypt. The file is read again when it changes.
	Keyring string
	// Insecure allows a cluster without Keyring. Then gossip is not encrypted, and the peers' port is
	// encrypted only with certificates.
	Insecure bool
	// TLSCert, TLSKey and TLSCA are PEM files for the peers' port; set all or none. They are read again
	// when they change. If none is set, certificates are derived from the keyring.
	TLSCert, TLSKey, TLSCA string
	// SecretFile is a file of at least 16 bytes. It is the key for names in the index; see Secret.
	SecretFile string

	// Handler serves the requests to the peers' port that are not of the exchange; nil = none.
	Handler fasthttp.RequestHandler
	// BelowTLS wraps each connection to the peers' port before TLS; nil = no wrapper.
	BelowTLS func(net.Conn) net.Conn
	// Exchange is the protocol for asking members for their index; nil = members are not asked.
	Exchange Exchange
	// ExchangeRate limits the exchange, in bytes per second in each direction; 0 = DefaultExchangeRate.
	ExchangeRate int
	// OnJoin and OnLeave are called one at a time, without a lock; nil = no listener. They must return
	// soon, since other changes of members wait for them. The state of a member that leaves is Failed,
	// Left, or Alive if it restarted, moved or became unusable.
	OnJoin, OnLeave func(Member)
	// OnDoubt is called like OnJoin, between a member's join and leave: when the member stops
	// answering (state Unreachable) and when it answers again; nil = no listener.
	OnDoubt func(Member)

	// Hold is the time that an unreachable member stays a member, 2 s to 10 m; 0 = DefaultHold.
	Hold     time.Duration
	Timing   Timing
	Resolver Resolver // nil = net.DefaultResolver
	Log      zerolog.Logger
	// Now returns the time for checks of certificates and of members' clocks; nil = time.Now.
	Now func() time.Time

	tune func(*memberlist.Config) // for tests
}

// Of returns the configuration that follows from the daemon's settings for clusters. The caller
// adds the callbacks, Handler, Exchange, Version and Log.
func Of(c *settings.Config) Config {
	return Config{
		Name: c.ClusterName, Node: c.ClusterNode, Seeds: c.ClusterSeeds,
		Bind: c.ClusterBind, Advertise: c.ClusterAdvertise, PeerBind: c.ClusterPeerBind, PeerAdvertise: c.ClusterPeerAdvertise,
		Keyring: c.ClusterKeyring, Insecure: c.ClusterInsecure, TLSCert: c.ClusterTLSCert, TLSKey: c.ClusterTLSKey, TLSCA: c.ClusterTLSCA,
		SecretFile: c.ClusterSecret, Hold: c.ClusterHold,
	}
}

// DefaultHold is the default of Config.Hold, minHold and maxHold are its limits. minHold is long
// enough for this case: a node that came back had a stale view of a third node, which therefore
// seemed to be lost for 0.2 s (measured).
const (
	DefaultHold = 5 * time.Second
	minHold     = 2 * time.Second
	maxHold     = 10 * time.Minute
)

// MaxName is the largest length of a cluster's name: memberlist stores the length in one byte.
const MaxName = 128

// Timing holds intervals and limits; zero values mean the defaults.
type Timing struct {
	Rejoin  time.Duration // interval between attempts to join, 5 s; a healed network is joined again within it
	Resolve time.Duration // limit for resolving all seeds, 3 s
	Watch   time.Duration // interval between checks of files for changes, 2 s
	Leave   time.Duration // limit for leaving, 2 s
}

func (t *Timing) fill() {
	for _, d := range []struct {
		of   *time.Duration
		zero time.Duration
	}{{&t.Rejoin, 5 * time.Second}, {&t.Resolve, 3 * time.Second}, {&t.Watch, 2 * time.Second}, {&t.Leave, 2 * time.Second}} {
		if *d.of <= 0 {
			*d.of = d.zero
		}
	}
}

// fill sets the defaults of fields that are zero.
func (c *Config) fill() {
	c.Hold = cmp.Or(c.Hold, DefaultHold)
	c.ExchangeRate = cmp.Or(c.ExchangeRate, DefaultExchangeRate)
	if c.Now == nil {
		c.Now = time.Now
	}
	if !c.PeerBind.IsValid() && c.Bind.IsValid() {
		c.PeerBind = settings.NextPort(c.Bind)
	}
	c.Timing.fill()
}

// Validate returns all errors of the configuration, except errors in the files that it names.
func (c *Config) Validate() error {
	var bad []error
	add := func(format string, args ...any) { bad = append(bad, fmt.Errorf(format, args...)) }
	if c.Name == "" || len(c.Name) > MaxName || strings.ContainsFunc(c.Name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		add("name %.64q: want 1 to %d letters, digits and punctuation marks of ASCII", c.Name, MaxName)
	}
	if !settings.ValidNode(c.Node) {
		add("node %.64q: want a DNS name in lower case", c.Node)
	}
	if len(c.Seeds) == 0 || len(c.Seeds) > maxSeeds {
		add("%d seeds: want 1 to %d", len(c.Seeds), maxSeeds)
	}
	for _, s := range c.Seeds {
		if _, err := parseSeed(s, 1); err != nil {
			add("seed: %w", err)
		}
	}
	if !c.Bind.IsValid() {
		add("no address to bind gossip to")
	} else if c.Bind.Addr().IsUnspecified() && !c.Advertise.IsValid() {
		add("gossip binds a wildcard address: set the address to advertise")
	}
	for _, a := range []netip.AddrPort{c.Advertise, c.PeerAdvertise} {
		if a.IsValid() && (a.Port() == 0 || a.Addr().IsUnspecified()) {
			add("%v cannot be advertised", a)
		}
	}
	switch files := c.TLSCert != "" && c.TLSKey != "" && c.TLSCA != ""; {
	case !files && c.TLSCert+c.TLSKey+c.TLSCA != "":
		add("set all of certificate, key and authority, or none")
	case c.Keyring == "" && !c.Insecure:
		add("no keyring: gossip would not be encrypted and any host could join; Insecure allows that")
	case c.Keyring != "" && c.Insecure:
		add("Insecure cannot be combined with a keyring")
	}
	if c.Hold != 0 && (c.Hold < minHold || c.Hold > maxHold) {
		add("hold %v: want %v to %v", c.Hold, minHold, maxHold)
	}
	if c.ExchangeRate < 0 {
		add("exchange rate %d is negative", c.ExchangeRate)
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: %w", settings.ErrConfig, errors.Join(bad...))
	}
	return nil
}
