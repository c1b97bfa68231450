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
	MemberUnreachable = "unreachable" // gossip gave it up; its place is kept for a while
	MemberLeaving     = "leaving"     // it has announced that it leaves
	MemberFailed      = "failed"      // it was unreachable until its place was given up; listed for 72 hours
	MemberLeft        = "left"        // it left after announcing so; listed for 72 hours
)

// Cluster is a node's view of its cluster. Without one, all fields are zero.
type Cluster struct {
	Enabled bool   `json:"enabled"`
	Name    string `json:"name,omitempty"`
	// Encrypted means that gossip is encrypted. Certificate is the expiry of the peers'
	// port's certificate; nil = no TLS.
	Encrypted   bool       `json:"gossip_encrypted"`
	Certificate *time.Time `json:"certificate_ends,omitempty"`
	FilesError  string     `json:"files_error,omitempty"` // why a changed keyring or certificate is not in use
	Join        Join       `json:"join"`
	Members     []Member   `json:"members"` // this node first, failed and left ones last
	// Rejected are addresses that speak the gossip protocol but could not be authenticated
	// in the last minute: probably nodes with a wrong key.
	Rejected []Rejected `json:"rejected"`
	Index    PeerIndex  `json:"index"`
	Own      OwnIndex   `json:"own"`
	Health   int        `json:"gossip_health"` // 0 is good, 8 a node that hardly keeps up
	Fetched  uint64     `json:"fetched_bytes"` // from all members, since the start
	Sent     uint64     `json:"sent_bytes"`    // to all members
	Counters []Counter  `json:"counters"`      // of gossip and of remote sources
	Workers  []Worker   `json:"workers"`       // engines of this node that compute segments for others
}

// Worker is an engine of a node that takes segments to compute.
type Worker struct {
	Connection uint64  `json:"connection"`
	Profile    uint32  `json:"profile"`
	Tenant     string  `json:"tenant"`
	Pieces     bool    `json:"pieces"`         // it can continue from the first piece of a segment
	AtOnce     int     `json:"at_once"`        // maximum number of jobs
	Jobs       int     `json:"jobs"`           // being computed or queued for it
	Queued     float64 `json:"queued_seconds"` // of work before a new job would start
}

// Join is the latest attempt to find nodes that are not members.
type Join struct {
	At       *time.Time `json:"at,omitempty"`
	Tried    int        `json:"tried"`    // nodes that were not members
	Answered int        `json:"answered"` // of these
	Errors   []string   `json:"errors"`   // some of the errors
}

// Rejected is an address that could not be authenticated.
type Rejected struct {
	Address string    `json:"address"`
	Since   time.Time `json:"since"`
	Seen    time.Time `json:"last_seen"`
	Times   uint64    `json:"times"`
	Why     string    `json:"why"`
}

// PeerIndex sums up this node's index of the other members' names.
type PeerIndex struct {
	Names    int64 `json:"names"`    // counted once per node that has it
	Complete int   `json:"complete"` // members whose set has been read completely
	Bytes    int64 `json:"bytes"`    // in memory
	Refused  int64 `json:"refused"`  // names for which there was no room
}

// OwnIndex is the set of names that this node publishes to the others.
type OwnIndex struct {
	Names   int64  `json:"names"`
	Version uint64 `json:"version"` // grows by one with every change
	Bytes   int64  `json:"bytes"`
	Refused int64  `json:"refused"` // names refused because the set was full
}

// Member is one node of the cluster.
type Member struct {
	Name  string    `json:"name"`
	Self  bool      `json:"self"`
	State string    `json:"state"`
	Since time.Time `json:"since"` // of the state
	// Seen is the time of the last gossip message from it; nil = this node.
	Seen   *time.Time `json:"last_seen,omitempty"`
	Gossip string     `json:"gossip"`
	Peer   string     `json:"peer"` // address of the peers' port
	TLS    bool       `json:"tls"`  // of that port

	Version  string    `json:"version"` // of the program
	Protocol int       `json:"protocol"`
	Started  time.Time `json:"started"`
	// InUse means that it is asked and fetched from. Unusable is the reason why a live
	// member never is.
	InUse    bool   `json:"in_use"`
	Unusable string `json:"unusable,omitempty"`

	// Of the latest ping; nil = none yet. ClockAhead is the lead of its clock over this
	// node's, plus or minus half of RTT.
	RTT        *float64 `json:"rtt_seconds,omitempty"`
	ClockAhead *float64 `json:"clock_ahead_seconds,omitempty"`

	Index *MemberIndex `json:"index,omitempty"` // nil = not in use, or this node
	Fetch *MemberFetch `json:"fetch,omitempty"` // the same
}

// MemberIndex is the knowledge of a member's set of names.
type MemberIndex struct {
	Names    int64      `json:"names"`    // known names
	Version  uint64     `json:"version"`  // the latest known change
	Complete bool       `json:"complete"` // the set has been read completely, in this run of the member or the previous one
	Reading  bool       `json:"reading"`  // the set is being read completely
	AsOf     *time.Time `json:"as_of,omitempty"`
}

// MemberFetch holds measurements of fetches from a member.
type MemberFetch struct {
	RoundTrip      float64    `json:"round_trip_seconds"` // of a request; 0 = none yet
	BytesPerSecond float64    `json:"bytes_per_second"`   // 0 = none yet
	QueuedBytes    int64      `json:"queued_bytes"`       // requested but not received yet
	Reads          int        `json:"reads"`              // objects being read
	Open           bool       `json:"breaker_open"`       // it failed, and is not used for a while
	LeftAlone      *time.Time `json:"left_alone_until,omitempty"`
}

// Lag returns the age of the oldest index knowledge among members in use; false while
// nothing is known.
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
	FoundAlone       = "alone"
	FoundClock       = "clock"
	FoundVersion     = "version"
	FoundFailing     = "failing" // up, but fetches from it fail
	FoundKeys        = "keys"    // files, certificate, encryption
)

// Finding is a problem of a cluster, for operators.
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

// Findings lists problems, by member in the order of Members, followed by those of this
// node. now is the reader's time.
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

// listed returns some of many names.
func listed(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
