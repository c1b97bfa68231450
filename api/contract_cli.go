package api

import "time"

// Kinds of events. A lost one stands for those that a reader missed.
const (
	EventPublished = "published"
	EventEvicted   = "evicted"
	EventDemoted   = "demoted"
	EventPromoted  = "promoted"
	EventFetched   = "fetched"
	EventRequest   = "request"
	EventCanary    = "canary"
	EventDisk      = "disk"
	EventGPU       = "gpu"
	EventAttached  = "attached"
	EventDetached  = "detached"
	EventPeer      = "peer"
	EventChanged   = "changed"
	EventLost      = "lost"
)

// EventKinds are those that can be asked for.
var EventKinds = []string{
	EventPublished, EventEvicted, EventDemoted, EventPromoted, EventFetched, EventRequest, EventCanary, EventDisk, EventGPU,
	EventAttached, EventDetached, EventPeer, EventChanged,
}

// Event is something that happened. What does not apply to its kind is left out.
type Event struct {
	ID      uint64    `json:"id"`
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`
	Object  string    `json:"object,omitempty"`
	Key     *Digest   `json:"key,omitempty"`
	Profile uint32    `json:"profile,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Model   string    `json:"model,omitempty"`
	Client  string    `json:"client,omitempty"`
	Bytes   int64     `json:"bytes,omitempty"`
	Tokens  int       `json:"tokens,omitempty"`
	Why     string    `json:"why,omitempty"`
	Policy  string    `json:"policy,omitempty"`
	Value   float64   `json:"value_ms_per_mib,omitempty"`
	Lost    uint64    `json:"lost,omitempty"` // events that are missing before the next
	Text    string    `json:"text,omitempty"` // for people
}

// EventQuery selects events. Zero fields select all.
type EventQuery struct {
	Kinds  []string // Event…
	Tenant string
	// After is the last event that is known, 0 for the oldest that are kept; nil = those
	// from now on, and of a listing the newest.
	After *uint64
	Limit int // of a listing
}

// Lease is what one client may read.
type Lease struct {
	Lease      uint64    `json:"lease"`
	Object     string    `json:"object"` // segment or checkpoint
	Key        Digest    `json:"key"`
	Tenant     string    `json:"tenant"`
	Profile    uint32    `json:"profile"`
	Client     string    `json:"client"`
	Connection uint64    `json:"connection"`
	Rank       int       `json:"rank"`
	Since      time.Time `json:"since"`
	Expires    time.Time `json:"expires"`
	Bytes      int64     `json:"bytes"`
	Device     string    `json:"device"` // the GPU's UUID; empty = of memory
}

// LeaseQuery selects a page of leases. Zero fields select all.
type LeaseQuery struct {
	Tenant     string
	Connection *uint64
	After      uint64 // ids greater than this one
	Limit      int
}

// RemovalQuery selects what is removed together. Zero fields select all.
type RemovalQuery struct {
	Tenant    string
	Profile   *uint32
	Prefix    string        // lower-case hex digits that the key begins with
	OlderThan time.Duration // not used for so long; 0 = whenever
	Dry       bool
}

// Removed answers a removal of several objects.
type Removed struct {
	DryRun  bool  `json:"dry_run"`
	Matched int   `json:"matched"`
	Removed int   `json:"removed"` // with dry_run what would be
	Busy    int   `json:"busy"`    // kept: being filled, pinned, or extended by what stays
	Bytes   int64 `json:"bytes"`   // of what was removed
}

// CheckpointName is a hash and, where several checkpoints have it, which of them.
type CheckpointName struct {
	Hash    Digest
	Tenant  string  // "" = any
	Profile *uint32 // nil = any
	Kind    string  // "" = any
}

// PinQuery asks for pins.
type PinQuery struct {
	Key Digest
	TTL time.Duration
	By  string
	Dry bool
}

// Pin keeps an object in memory until it expires.
type Pin struct {
	Key     Digest    `json:"key"`
	Object  string    `json:"object"` // segment or checkpoint
	Tenant  string    `json:"tenant"`
	Profile uint32    `json:"profile"`
	Bytes   int64     `json:"bytes"` // of memory that it keeps
	Expires time.Time `json:"expires"`
	By      string    `json:"by"`
}

// Pinned answers a change of pins: those that it is about.
type Pinned struct {
	Pins   []Pin `json:"pins"`
	DryRun bool  `json:"dry_run"`
}

// Drained answers a drain, or the end of one.
type Drained struct {
	Draining    bool `json:"draining"`
	DryRun      bool `json:"dry_run"`
	Connections int  `json:"connections"` // that are there still
	Leases      int  `json:"leases"`      // that they hold
}

// Reloaded answers a reload.
type Reloaded struct {
	DryRun  bool     `json:"dry_run"`
	Read    []string `json:"read"`    // settings whose files were read
	Changed []string `json:"changed"` // of these, with another content than before
}

// Config is a node's configuration without secrets. What stands before ArenaBytes may
// change while it runs.
type Config struct {
	LogLevel     string           `json:"log_level"`
	PublicBytes  int64            `json:"public_bytes"`
	PrivateBytes int64            `json:"private_bytes"`
	Quotas       map[string]Quota `json:"quotas"` // by tenant

	ArenaBytes int64             `json:"arena_bytes"`
	Draining   bool              `json:"draining"`
	Settings   map[string]string `json:"settings"` // as the daemon was started, by name
}

// Quota is what a tenant may hold.
type Quota struct {
	QuotaBytes int64 `json:"quota_bytes"` // in all tiers together; 0 = no bound
}
