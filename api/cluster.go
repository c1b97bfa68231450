package api

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// States of a member.
const (
	MemberAlive       = "alive"
	MemberUnreachable = "unreachable" // gossip does not reach it; its place is kept for a while
	MemberLeaving     = "leaving"     // it has announced that it leaves
	MemberFailed      = "failed"      // it was unreachable until its place was given up; listed for 72 hours
	MemberLeft        = "left"        // it left after announcing so; listed for 72 hours
)

// Cluster is a node's view of its cluster.
type Cluster struct {
	Enabled bool   `json:"enabled"`        // the node is in a cluster; otherwise all other fields are zero
	Name    string `json:"name,omitempty"` // name of the cluster
	// Encrypted means that gossip is encrypted.
	Encrypted bool `json:"gossip_encrypted"`
	// Certificate is the expiry of the certificate of the peers' port; nil = no TLS.
	Certificate *time.Time `json:"certificate_ends,omitempty"`
	FilesError  string     `json:"files_error,omitempty"` // why a changed keyring or certificate is not in use
	Join        Join       `json:"join"`
	Members     []Member   `json:"members"` // this node first, failed and left ones last
	// Rejected lists addresses that spoke the gossip protocol in the last minute but could not
	// be authenticated. They are probably nodes with a wrong key.
	Rejected []Rejected `json:"rejected"`
	Index    PeerIndex  `json:"index"`
	Own      OwnIndex   `json:"own"`
	Health   int        `json:"gossip_health"` // 0 is good, 8 is a node that hardly keeps up
	Fetched  uint64     `json:"fetched_bytes"` // bytes fetched from all members since the start
	Sent     uint64     `json:"sent_bytes"`    // bytes sent to all members since the start
	Counters []Counter  `json:"counters"`      // counters of gossip and of remote sources
	Workers  []Worker   `json:"workers"`       // engines of this node that compute segments for others
}

// Worker is an engine of a node that computes segments for other engines.
type Worker struct {
	Connection uint64  `json:"connection"`
	Profile    uint32  `json:"profile"`
	Tenant     string  `json:"tenant"`
	Pieces     bool    `json:"pieces"`         // the engine can continue from the first piece of a segment, which another engine has computed
	AtOnce     int     `json:"at_once"`        // maximum number of concurrent jobs
	Jobs       int     `json:"jobs"`           // jobs that it computes or that are queued for it
	Queued     float64 `json:"queued_seconds"` // predicted wait of a new job
}

// Join is the latest attempt to find nodes that are not members.
type Join struct {
	At       *time.Time `json:"at,omitempty"` // time of the attempt; nil = none yet
	Tried    int        `json:"tried"`        // nodes that were not members and were asked
	Answered int        `json:"answered"`     // nodes that answered
	Errors   []string   `json:"errors"`       // some of the errors
}

// Rejected is an address that could not be authenticated.
type Rejected struct {
	Address string    `json:"address"`
	Since   time.Time `json:"since"`
	Seen    time.Time `json:"last_seen"`
	Times   uint64    `json:"times"` // number of attempts
	Why     string    `json:"why"`
}

// PeerIndex sums up this node's index of the names of objects on other members.
type PeerIndex struct {
	Names    int64 `json:"names"`    // a name counts once for each member that has it
	Complete int   `json:"complete"` // members whose names have all been read
	Bytes    int64 `json:"bytes"`    // memory of the index
	Refused  int64 `json:"refused"`  // names that did not fit into the index
}

// OwnIndex is the set of names that this node publishes to the other members.
type OwnIndex struct {
	Names   int64  `json:"names"`
	Version uint64 `json:"version"` // increases by one with every change
	Bytes   int64  `json:"bytes"`   // memory of the set
	Refused int64  `json:"refused"` // names refused because the set was full
}

// Member is one node of the cluster.
type Member struct {
	Name  string    `json:"name"`
	Self  bool      `json:"self"` // it is this node
	State string    `json:"state" enum:"Member*"`
	Since time.Time `json:"since"` // when the state began
	// Seen is the time of the last gossip message from the member; nil = this node.
	Seen   *time.Time `json:"last_seen,omitempty"`
	Gossip string     `json:"gossip"` // address of the gossip port
	Peer   string     `json:"peer"`   // address of the peers' port
	TLS    bool       `json:"tls"`    // the peers' port uses TLS

	Version  string    `json:"version"`  // version of the program
	Protocol int       `json:"protocol"` // version of the protocol
	Started  time.Time `json:"started"`
	// InUse means that this node looks up and fetches objects there.
	InUse bool `json:"in_use"`
	// Unusable is the reason why a live member is never in use.
	Unusable string `json:"unusable,omitempty"`

	// RTT is the round trip of the latest ping by gossip; nil = none yet.
	RTT *float64 `json:"rtt_seconds,omitempty"`
	// ClockAhead is the lead of the member's clock over this node's at the latest ping, plus or
	// minus half of RTT; nil = no ping yet.
	ClockAhead *float64 `json:"clock_ahead_seconds,omitempty"`

	Index *MemberIndex `json:"index,omitempty"` // nil = not in use, or this node
	Fetch *MemberFetch `json:"fetch,omitempty"` // nil = not in use, or this node
}

// MemberIndex shows how much of a member's set of names this node knows.
type MemberIndex struct {
	Names    int64      `json:"names"`           // known names
	Version  uint64     `json:"version"`         // the latest known change
	Complete bool       `json:"complete"`        // the whole set has been read, in this run of the member or the previous one
	Reading  bool       `json:"reading"`         // the whole set is being read
	AsOf     *time.Time `json:"as_of,omitempty"` // when the member last had no more changes to report
}

// MemberFetch holds measurements of fetches from a member.
type MemberFetch struct {
	RoundTrip      float64    `json:"round_trip_seconds"`         // time of a request; 0 = not measured yet
	BytesPerSecond float64    `json:"bytes_per_second"`           // 0 = not measured yet
	QueuedBytes    int64      `json:"queued_bytes"`               // bytes requested and not received yet
	Reads          int        `json:"reads"`                      // objects that are being read
	Open           bool       `json:"breaker_open"`               // fetches failed, and the member is not used for a while
	LeftAlone      *time.Time `json:"left_alone_until,omitempty"` // end of the time in which the member is not used because fetches failed
}

// Lag returns the age of the oldest part of this node's index. Each part has the names of objects
// of one other member, and was up to date at Index.AsOf. Lag returns false if no part was ever up
// to date.
func (c *Cluster) Lag(now time.Time) (time.Duration, bool) {
	var lag time.Duration
	known := false
	for i := range c.Members {
		if x := c.Members[i].Index; x != nil && x.AsOf != nil {
			lag, known = max(lag, now.Sub(*x.AsOf)), true
		}
	}
	return lag, known
}

// Kinds of findings.
const (
	FoundUnreachable = "unreachable"
	FoundUnusable    = "unusable" // another protocol, another secret, another key
	FoundFailed      = "failed"   // crashed or partitioned, and given up
	FoundAlone       = "alone"    // no other members
	FoundClock       = "clock"    // clocks differ
	FoundVersion     = "version"  // members run several versions
	FoundFailing     = "failing"  // up, but fetches from it fail
	FoundKeys        = "keys"     // files, certificate, encryption
)

// Finding describes a problem of a cluster to operators.
type Finding struct {
	Kind   string `json:"kind"`
	Member string `json:"member,omitempty"` // "" = the node itself, or several
	Text   string `json:"text"`
}

// Bounds for findings.
const (
	maxClockApart   = time.Second
	certificateSoon = 24 * time.Hour // certificates that nodes issue themselves always have more
)

// Findings lists the problems of each member in the order of Members, and then those of the
// cluster and this node. now is the current time of the caller.
func (c *Cluster) Findings(now time.Time) []Finding {
	if !c.Enabled {
		return nil
	}
	var list []Finding
	var versions []string
	others := 0
	for i := range c.Members {
		m := &c.Members[i]
		if m.State == MemberAlive && !slices.Contains(versions, m.Version) {
			versions = append(versions, m.Version)
		}
		if m.Self {
			continue
		}
		if m.State == MemberAlive {
			others++
		}
		list = append(list, m.findings(now)...)
	}
	add := func(kind, format string, a ...any) {
		list = append(list, Finding{Kind: kind, Text: fmt.Sprintf(format, a...)})
	}
	for i := range c.Rejected {
		r := &c.Rejected[i]
		add(FoundUnusable, "%s cannot be authenticated: %s (%d attempts, the last %v ago)", r.Address, r.Why, r.Times, now.Sub(r.Seen).Round(time.Second))
	}
	if others == 0 {
		why := ""
		if len(c.Join.Errors) > 0 {
			why = ": " + c.Join.Errors[0]
		}
		add(FoundAlone, "no other members%s", why)
	}
	if len(versions) > 1 {
		add(FoundVersion, "members run %d versions: %s", len(versions), listed(versions))
	}
	c.keys(now, add)
	return list
}

func (c *Cluster) keys(now time.Time, add func(kind, format string, a ...any)) {
	if c.FilesError != "" {
		add(FoundKeys, "a changed file cannot be used: %s", c.FilesError)
	}
	if !c.Encrypted {
		add(FoundKeys, "gossip is not encrypted")
	}
	switch {
	case c.Certificate == nil:
		add(FoundKeys, "the peers' port has no TLS")
	case !c.Certificate.After(now):
		add(FoundKeys, "the certificate expired at %s", c.Certificate.Format(time.RFC3339))
	case c.Certificate.Before(now.Add(certificateSoon)):
		add(FoundKeys, "the certificate expires in %v", c.Certificate.Sub(now).Round(time.Minute))
	}
}

func (m *Member) findings(now time.Time) (list []Finding) {
	add := func(kind, format string, a ...any) {
		list = append(list, Finding{Kind: kind, Member: m.Name, Text: fmt.Sprintf(format, a...)})
	}
	if m.State == MemberUnreachable {
		add(FoundUnreachable, "unreachable for %v", now.Sub(m.Since).Round(time.Second))
		return list
	}
	if m.State == MemberFailed {
		seen := m.Since
		if m.Seen != nil {
			seen = *m.Seen
		}
		add(FoundFailed, "it failed: last seen %v ago, at %s", now.Sub(seen).Round(time.Second), seen.Format(time.RFC3339))
	}
	if m.State != MemberAlive {
		return list
	}
	if m.Unusable != "" {
		add(FoundUnusable, "%s", m.Unusable)
	}
	if m.ClockAhead != nil {
		ahead := time.Duration(*m.ClockAhead * float64(time.Second)).Round(time.Millisecond)
		switch {
		case ahead > maxClockApart:
			add(FoundClock, "its clock is %v ahead", ahead)
		case -ahead > maxClockApart:
			add(FoundClock, "its clock is %v behind", -ahead)
		}
	}
	if f := m.Fetch; f != nil && f.Open {
		add(FoundFailing, "it failed too often and is skipped for a while")
	}
	return list
}

// listed returns a text with up to four names and the number of the others.
func listed(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
