package settings

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// clusterSettings returns the settings of a cluster. Without seeds there is no cluster.
func (c *Config) clusterSettings() []setting {
	return []setting{
		{"cluster-seeds", free(&c.ClusterSeeds, "list of HOST or HOST:PORT, at most 64"), "no cluster",
			"Addresses of other nodes, or names to resolve again at every attempt, such as a headless service's. The default port is cluster-bind's. Seeds that do not resolve or answer are retried and block nothing."},
		{"cluster-name", free((*text)(&c.ClusterName), "1 to 128 letters, digits and punctuation marks of ASCII"), "not allowed",
			"Name of the cluster. Messages from other clusters are refused."},
		{"cluster-node", free((*text)(&c.ClusterNode), "DNS name in lower case, unique in the cluster"), "the host's name in lower case",
			"Name of this node in the cluster and in its certificate."},
		{"cluster-bind", free((*address)(&c.ClusterBind), "ADDRESS:PORT"), "not allowed with cluster-seeds",
			"Address of gossip, UDP and TCP. A wildcard address (0.0.0.0) requires cluster-advertise."},
		{"cluster-advertise", free((*address)(&c.ClusterAdvertise), "ADDRESS:PORT"), "as cluster-bind",
			"Address at which other nodes reach gossip."},
		{"cluster-peer-bind", free((*address)(&c.ClusterPeerBind), "ADDRESS:PORT"), "the address of cluster-bind, and the next port",
			"Address of the peers' port, TCP, which carries index changes and the bytes of segments and checkpoints."},
		{"cluster-peer-advertise", free((*address)(&c.ClusterPeerAdvertise), "ADDRESS:PORT"), "the address that gossip advertises, and the port of cluster-peer-bind",
			"Address at which other nodes reach the peers' port."},
		{"cluster-keyring", path(&c.ClusterKeyring, "path of a file with 1 to 16 keys"), "refused with cluster-seeds, unless cluster-insecure is on",
			"File with the cluster's keys, one per line: 16, 24 or 32 bytes in base64. The first key encrypts, all keys decrypt. The file is reread when it changes. To rotate, add the new key on all nodes, then move it to the top on all, then remove the old one."},
		{"cluster-insecure", onOff(&c.ClusterInsecure), "not allowed",
			"Whether a cluster may run without a keyring. Gossip is then not encrypted, nor is the peers' port unless cluster-tls-cert is set, and any host that reaches the ports can join."},
		{"cluster-tls-cert", path(&c.ClusterTLSCert, "path of a PEM file"), "certificates are made from the keyring",
			"Certificate of this node for the peers' port, as client and server; it must include the name cluster-node. The files of cluster-tls-cert, cluster-tls-key and cluster-tls-ca are reread when they change."},
		{"cluster-tls-key", path(&c.ClusterTLSKey, "path of a PEM file; with cluster-tls-cert"), "see cluster-tls-cert",
			"Private key of the certificate in cluster-tls-cert."},
		{"cluster-tls-ca", path(&c.ClusterTLSCA, "path of a PEM file; with cluster-tls-cert"), "see cluster-tls-cert",
			"Certificate authorities accepted for other nodes' certificates."},
		{"cluster-secret", path(&c.ClusterSecret, "path of a file with at least 16 bytes, the same on all nodes"), "derived from the first key at the start",
			"File with the key for hashing the names of objects in the index of other nodes' objects. Set it if the keyring is rotated while nodes run: without it a node restarted after a rotation does not find objects of nodes started before."},
		{"cluster-hold", duration(&c.ClusterHold, 2*time.Second, 10*time.Minute), "not allowed",
			"How long an unreachable node keeps its place in the index of other nodes' objects. A node that announces that it leaves loses its place immediately."},
		{"cluster-copies", onOff(&c.ClusterCopies), "not allowed",
			"Whether objects about to be evicted from memory are copied to a node with free space, if they are not on disk and not known to be on another node; and whether this node accepts such copies."},
	}
}

// UsesCluster reports whether this node is part of a cluster.
func (c *Config) UsesCluster() bool { return len(c.ClusterSeeds) > 0 }

const (
	maxClusterSeeds = 64
	maxClusterName  = 128
)

// checkCluster checks the cluster settings, and whether required ones are present if there is a
// cluster.
func (c *Config) checkCluster(v *Faults) {
	if len(c.ClusterSeeds) > maxClusterSeeds {
		v.Add("cluster-seeds", "%d seeds, at most %d", len(c.ClusterSeeds), maxClusterSeeds)
	}
	for _, s := range c.ClusterSeeds {
		if err := checkSeed(s); err != nil {
			v.Add("cluster-seeds", "%v", err)
		}
	}
	if c.ClusterName == "" || len(c.ClusterName) > maxClusterName || strings.ContainsFunc(c.ClusterName, func(r rune) bool { return r <= ' ' || r > '~' }) {
		v.Add("cluster-name", "%.64q is not 1 to %d letters, digits and punctuation marks of ASCII", c.ClusterName, maxClusterName)
	}
	for name, a := range map[string]netip.AddrPort{"cluster-advertise": c.ClusterAdvertise, "cluster-peer-advertise": c.ClusterPeerAdvertise} {
		if a.IsValid() && (a.Port() == 0 || a.Addr().IsUnspecified()) {
			v.Add(name, "%v cannot be reached: give a specific address and a port", a)
		}
	}
	if c.UsesCluster() {
		c.checkNeeded(v)
	}
}

func (c *Config) checkNeeded(v *Faults) {
	if given := (c.ClusterTLSCert != "") == (c.ClusterTLSKey != "") && (c.ClusterTLSKey != "") == (c.ClusterTLSCA != ""); !given {
		v.Add("cluster-tls-cert", "set all of cluster-tls-cert, cluster-tls-key and cluster-tls-ca, or none")
	}
	if !ValidNode(c.ClusterNode) {
		v.Add("cluster-node", "%.64q is not a DNS name in lower case", c.ClusterNode)
	}
	switch {
	case v.Has("cluster-bind"): // it could not be read
	case !c.ClusterBind.IsValid():
		v.Add("cluster-bind", "required with cluster-seeds: an address and port to listen on, such as 10.0.0.7:7946")
	case c.ClusterBind.Addr().IsUnspecified() && !c.ClusterAdvertise.IsValid() && !v.Has("cluster-advertise"):
		v.Add("cluster-advertise", "required because cluster-bind is a wildcard: set the address that other nodes reach")
	}
	if bind, peer := c.ClusterBind, c.ClusterPeerBind; bind.IsValid() && bind.Port() != 0 && bind == peer {
		v.Add("cluster-peer-bind", "%v is already used by cluster-bind", peer)
	}
	switch {
	case c.ClusterKeyring == "" && !c.ClusterInsecure:
		v.Add("cluster-keyring", "required with cluster-seeds: without a keyring any host that reaches the ports can join; cluster-insecure allows that")
	case c.ClusterKeyring != "" && c.ClusterInsecure:
		v.Add("cluster-insecure", "cannot be combined with cluster-keyring")
	}
}

func checkSeed(s string) error {
	if _, err := netip.ParseAddr(s); err == nil {
		return nil
	}
	host := s
	if h, p, err := net.SplitHostPort(s); err == nil {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%q has no port between 1 and 65535", s)
		}
		host = h
	}
	if _, err := netip.ParseAddr(host); err != nil && (host == "" || strings.ContainsAny(host, ":/ []")) {
		return fmt.Errorf("%q is neither HOST nor HOST:PORT", s)
	}
	return nil
}

// ValidNode reports whether a name is a valid node name. Since it appears in certificates, it must
// be a DNS name in lower case (letters, digits, - and ., at most 253 bytes).
func ValidNode(name string) bool {
	if len(name) == 0 || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if len(label) == 0 || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}

// address is the address and port of a listener as a flag.Value. The empty text means no address.
type address netip.AddrPort

func (a *address) String() string {
	if addr := (*netip.AddrPort)(a); addr.IsValid() {
		return addr.String()
	}
	return ""
}

func (a *address) Set(s string) error {
	if s = strings.TrimSpace(s); s == "" {
		*a = address{}
		return nil
	}
	addr, err := netip.ParseAddrPort(s)
	if err != nil {
		return fmt.Errorf("%q is not ADDRESS:PORT", s)
	}
	*a = address(netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()))
	return nil
}
