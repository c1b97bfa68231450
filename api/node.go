package api

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Errors of Node and Catalogue; each maps to one HTTP status.
var (
	ErrInvalid     = errors.New("api: invalid")     // 400
	ErrNotFound    = errors.New("api: not found")   // 404
	ErrBusy        = errors.New("api: busy")        // 409: leased, or being filled
	ErrUnavailable = errors.New("api: unavailable") // 503
)

// Node provides information about the process. Implementations return copies, hold no lock that a
// client of the socket waits for longer than the copy takes, and are safe for concurrent use.
type Node interface {
	Status() Status
	Profiles() []Profile
	Pools() []Pool
	Connections() []Connection
	// Counters lists counters and gauges by name in a stable order: the same as OpStats on
	// the socket.
	Counters() []Counter
	// Decisions returns the latest decisions that pass the query, newest first, at most
	// Limit. Those of earlier starts come last.
	Decisions(DecisionQuery) []Decision
	// Cluster returns what the node knows of its cluster; Enabled is false without one.
	Cluster() Cluster
	// Requests returns how prompts were served, newest first, at most Limit of those that
	// pass the query, without spans.
	Requests(RequestQuery) []Request
	// Request returns a request that is still kept; ErrNotFound.
	Request(id uint64) (*Request, error)
	// Usage returns the sums of all requests, in a stable order.
	Usage() []Usage
	// Overview returns an overview with a history of the given span, HistoryHours if empty.
	Overview(history string) *Overview
	// ProbeObjectStore tests the object store, which takes a while; Enabled is false without one.
	ProbeObjectStore(ctx context.Context) ObjectProbe
}

// Catalogue lists cached objects. Both listings are in ascending order of key, so that a
// cursor (the last key of the previous page) stays valid while objects are stored and
// evicted. Limit is 2 to MaxLimit+1; an answer may be longer by the other checkpoints (an
// exact and a spliced one) that share the last hash.
type Catalogue interface {
	Segments(SegmentQuery) ([]Segment, error)
	// Segment returns one segment with its parts; ErrNotFound if it is not cached.
	Segment(key Digest) (SegmentDetail, error)
	Checkpoints(CheckpointQuery) ([]Checkpoint, error)
	// Remove evicts a segment: no lookup finds it any more, and its memory is freed when
	// its last lease ends. ErrNotFound, or ErrBusy while it is being filled.
	Remove(key Digest) error
	// Locate returns which nodes have which parts of a prompt, from memory. The query is
	// valid, and belongs to the implementation until it returns. ErrNotFound for an unknown
	// profile or tenant, ErrInvalid for a model with several profiles.
	Locate(*LocateQuery) (*Located, error)
}

// Digest is a segment key, prefix hash or fingerprint; as text it is 64 hex digits.
type Digest [32]byte

// String returns the 64 hex digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; it returns ErrInvalid for anything but
// 64 hex digits.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != 2*len(d) {
		return fmt.Errorf("%d characters, want 64 hex digits: %w", len(text), ErrInvalid)
	}
	if _, err := hex.Decode(d[:], text); err != nil {
		return fmt.Errorf("not hex digits: %w", ErrInvalid)
	}
	return nil
}

// hasPrefix compares digit by digit, so that filtering a large catalogue allocates no strings.
func (d *Digest) hasPrefix(digits string) bool {
	if len(digits) > 2*len(d) {
		return false
	}
	for i := range len(digits) {
		nibble := d[i/2] >> 4
		if i%2 == 1 {
			nibble = d[i/2] & 15
		}
		if "0123456789abcdef"[nibble] != digits[i] {
			return false
		}
	}
	return true
}

// Check states.
const (
	CheckOK       = "ok"
	CheckDegraded = "degraded" // works with restrictions; never takes the node out of service
)

// Check is one capability of the node and its state.
type Check struct {
	Name   string `json:"name"`
	State  string `json:"state"`            // CheckOK or CheckDegraded
	Detail string `json:"detail,omitempty"` // for operators: the cause and the consequences
}

// Status is the state of the process.
type Status struct {
	Ready     bool      `json:"ready"` // the engine socket is served
	Alive     bool      `json:"alive"` // the main loop's heartbeat is recent
	Node      string    `json:"node"`
	Version   string    `json:"version"`
	BootEpoch uint64    `json:"boot_epoch,string"`
	Started   time.Time `json:"started"`
	Socket    string    `json:"socket"` // path of the engine socket
	Device    string    `json:"device"` // kind and name
	Features  []string  `json:"features"`
	GPUs      []GPU     `json:"gpus,omitempty"` // configured ones
	Checks    []Check   `json:"checks"`
}

// States of a GPU.
const (
	GPUOpening = "opening"
	GPUServing = "serving" // its memory is shared
	GPUMissing = "missing" // it could not be opened, or granted no memory
	GPULost    = "lost"    // it does not answer any more
)

// GPU is a configured device.
type GPU struct {
	UUID    string `json:"uuid"` // GPU-..., as in nvidia-smi -L; the text of the setting if unknown
	State   string `json:"state"`
	Trouble string `json:"trouble,omitempty"` // for operators: what is wrong with it
	Name    string `json:"name"`
	Driver  string `json:"driver"`           // CUDA version of the driver, such as 12.4; empty = unknown
	Mode    string `json:"mode"`             // compute mode; empty = unknown
	MPS     string `json:"mps"`              // yes: contexts run side by side; no: they take turns; unknown
	Way     string `json:"way"`              // how clients get its memory: descriptor or handle; empty = none
	Stuck   int64  `json:"stuck_calls"`      // driver calls running past their deadline
	Shared  int64  `json:"connection_bytes"` // private memory of clients

	CapacityBytes int64 `json:"capacity_bytes"` // for copies, of both pools
	UsedBytes     int64 `json:"used_bytes"`
	Copies        int64 `json:"copies"`    // available to lookups
	Promoting     int64 `json:"promoting"` // requested or being copied
}

// Profile is one registered model identity.
type Profile struct {
	ID              uint32   `json:"id"` // in this start of the daemon
	Fingerprint     Digest   `json:"fingerprint"`
	Model           string   `json:"model"`
	TPSize          int      `json:"tp_size"`
	Layers          int      `json:"layers"`
	LinearLayers    int      `json:"linear_layers"`
	AttentionLayers int      `json:"attention_layers"`
	StateBytes      int64    `json:"state_bytes"`       // fixed bytes of one segment and rank: T, S, conv
	RowBytes        int64    `json:"row_bytes"`         // bytes of one interior token and rank: K, V
	Segments        int      `json:"segments"`          // published, of all tenants
	Checkpoints     int      `json:"checkpoints"`       // published, of all tenants
	Engines         []string `json:"engines,omitempty"` // registered bindings: engine name and version
}

// Levels are the durability of an object.
const (
	LevelMemory = "memory" // may be lost when the daemon ends
	LevelLogged = "logged" // survives a killed daemon
	LevelSynced = "synced" // survives power loss
)

// Segment is one published or pending segment.
type Segment struct {
	Key       Digest    `json:"key"`
	Profile   uint32    `json:"profile"` // 0: of a model that no engine has registered since the start
	Model     string    `json:"model"`
	Tenant    string    `json:"tenant"`
	State     string    `json:"state"` // published, pending or removed
	Tiers     []string  `json:"tiers"` // where it is cached, fastest first: hbm, dram, disk
	Level     string    `json:"level"` // LevelMemory, LevelLogged or LevelSynced
	Role      string    `json:"role"`  // first or mid
	Tokens    int       `json:"tokens"`
	Interior  int       `json:"interior_tokens"`
	Bytes     int64     `json:"bytes"`      // over all ranks
	DiskBytes int64     `json:"disk_bytes"` // size on disk, 0 = not on disk
	Leases    int       `json:"leases"`
	Hits      uint64    `json:"hits"`
	Publisher string    `json:"publisher"` // name of the client that filled it
	Created   time.Time `json:"created"`
	LastUsed  time.Time `json:"last_used"`
	// Primer is the id of the primer after which it was captured; absent without one.
	Primer *Digest `json:"primer,omitempty"`
	// Packed is set if transitions and end-states were packed, as the profile's tolerance allows.
	Packed *Packed `json:"packed,omitempty"`
}

// Packed describes the errors of packed transitions, end-states, keys and values: the
// largest of any head.
type Packed struct {
	PlainBytes      int64   `json:"plain_bytes"`      // size without packing, over all ranks; 0 = its profile is not registered
	TransitionError float64 `json:"transition_error"` // bound on the spectral norm of the difference
	StateError      float64 `json:"state_error"`      // Frobenius norm of the difference, relative to the end-state, or to a layer's keys or values
}

// SegmentPart is one tensor of one rank.
type SegmentPart struct {
	Rank  int    `json:"rank"`
	Layer int    `json:"layer"`
	Kind  string `json:"kind"` // t, s, conv, k or v
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	Bytes int64  `json:"bytes"`
}

// SegmentDetail is a segment with its parts.
type SegmentDetail struct {
	Segment
	HeadExcluded int           `json:"head_excluded_tokens"`
	TailExcluded int           `json:"tail_excluded_tokens"`
	Extents      int           `json:"extents"`      // runs of arena memory
	DiskExtents  int           `json:"disk_extents"` // runs of slab files
	Codec        string        `json:"codec"`        // of its bytes on disk; empty = not on disk
	OtherNodes   int           `json:"other_nodes"`  // of the cluster that are believed to have it
	ObjectStore  bool          `json:"object_store"` // is believed to have it
	Parts        []SegmentPart `json:"parts"`
}

// SegmentQuery selects a page of segments. Zero fields select all.
type SegmentQuery struct {
	Tenant  string
	Profile *uint32
	Prefix  string  // lower-case hex digits that the key begins with
	After   *Digest // keys greater than this one
	Limit   int
}

// Match reports whether a segment passes the filters (not the cursor and limit).
func (q *SegmentQuery) Match(key Digest, tenant string, profile uint32) bool {
	if q.Tenant != "" && q.Tenant != tenant || q.Profile != nil && *q.Profile != profile {
		return false
	}
	return key.hasPrefix(q.Prefix)
}

// Checkpoint is one node of a private pool's tree.
type Checkpoint struct {
	Hash      Digest    `json:"hash"`
	Parent    *Digest   `json:"parent,omitempty"`
	Profile   uint32    `json:"profile"`
	Model     string    `json:"model"`
	Tenant    string    `json:"tenant"`
	Kind      string    `json:"kind"` // exact or spliced
	Tiers     []string  `json:"tiers"`
	Level     string    `json:"level"`
	Tokens    int       `json:"tokens"`
	Rows      int       `json:"rows"` // tokens whose keys and values this node stores itself
	Bytes     int64     `json:"bytes"`
	DiskBytes int64     `json:"disk_bytes"`
	Leases    int       `json:"leases"`
	Children  int       `json:"children"`
	Thinned   bool      `json:"thinned"` // its states were evicted from memory: nothing begins from it, but its rows are needed by what extends it
	Created   time.Time `json:"created"`
	LastUsed  time.Time `json:"last_used"`
}

// CheckpointQuery selects a page of checkpoints. Zero fields select all.
type CheckpointQuery struct {
	Tenant  string
	Profile *uint32
	After   *Digest
	Limit   int
}

// Pool is one budget in one tier. On disk there are no leases, and a page is the unit of
// allocation.
type Pool struct {
	Name             string       `json:"name"` // public or private
	Tier             string       `json:"tier"`
	Device           string       `json:"device,omitempty"` // of a pool of HBM: the GPU's UUID
	CapacityBytes    int64        `json:"capacity_bytes"`
	UsedBytes        int64        `json:"used_bytes"`
	LeasedBytes      int64        `json:"leased_bytes"`
	PendingBytes     int64        `json:"pending_bytes"`     // reserved, not committed
	QuarantinedBytes int64        `json:"quarantined_bytes"` // of expired leases, until the client releases them
	PageBytes        int64        `json:"page_bytes"`
	Objects          int          `json:"objects"`
	Tenants          []TenantPool `json:"tenants"`
}

// TenantPool is one tenant's share of a pool.
type TenantPool struct {
	Tenant     string `json:"tenant"`
	UsedBytes  int64  `json:"used_bytes"`  // as counted by its quota: pages or extents, and records
	QuotaBytes int64  `json:"quota_bytes"` // 0 = none
}

// Connection is one attached client.
type Connection struct {
	ID           uint64    `json:"id"`
	Client       string    `json:"client"`
	UID          uint32    `json:"uid"`
	GID          uint32    `json:"gid"`
	PID          int32     `json:"pid"` // 0 across PID namespaces
	Tenants      []string  `json:"tenants"`
	Profiles     []uint32  `json:"profiles"`
	Engines      []string  `json:"engines"` // for which it has registered profiles, with their versions
	Since        time.Time `json:"since"`
	Requests     uint64    `json:"requests"`
	InFlight     int       `json:"in_flight"`
	Leases       int       `json:"leases"`
	Reservations int       `json:"reservations"`
	StagingBytes int64     `json:"staging_bytes"`
	SlotBytes    int64     `json:"slot_bytes"`
	Device       string    `json:"device,omitempty"` // the GPU that it has attached
	DeviceBytes  int64     `json:"device_bytes"`     // private GPU memory; 0 = none attached
}

// Counter is one counter or gauge.
type Counter struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}
