package api

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/policy/errkind"
)

// Errors of Node and Catalogue; each maps to one HTTP status.
var (
	ErrInvalid     = errors.New("invalid")     // 400
	ErrNotFound    = errors.New("not found")   // 404
	ErrBusy        = errors.New("busy")        // 409: leased, or being filled
	ErrUnavailable = errors.New("unavailable") // 503
)

// NotFound returns an ErrNotFound with this text.
func NotFound(format string, args ...any) error {
	return errkind.With(fmt.Errorf(format, args...), ErrNotFound)
}

// Node provides information about the process. Implementations return copies and are safe for
// concurrent use. Clients of the engine socket may wait for a lock that an implementation
// holds, but only while it makes the copy.
type Node interface {
	Status() Status
	Profiles() []Profile
	Pools() []Pool
	Connections() []Connection
	// Counters lists counters and gauges by name in a stable order. The operation OpStats of the
	// socket protocol returns the same ones.
	Counters() []Counter
	// Decisions returns the latest decisions that match the query, newest first, at most
	// Limit. Decisions of earlier starts of the daemon follow those of the current one.
	Decisions(DecisionQuery) []Decision
	// Cluster returns what the node knows of its cluster; Enabled is false without one.
	Cluster() Cluster
	// Requests returns the latest requests that match the query, newest first, at most Limit,
	// without spans.
	Requests(RequestQuery) []Request
	// Request returns a request with its spans, or ErrNotFound if it is not kept any more.
	Request(id uint64) (*Request, error)
	// Usage returns the sums of requests, a row per tenant and model, in a stable order.
	Usage() []Usage
	// Overview returns an overview with a history of the given span, HistoryHours if empty.
	Overview(history string) *Overview
	// ProbeObjectStore tests the object store, which takes a while; Enabled is false without one.
	ProbeObjectStore(ctx context.Context) ObjectProbe
}

// Catalogue lists cached objects. Both listings are in ascending order of key, so that a
// cursor (the last key of the previous page) stays valid while objects are stored and
// evicted. Limit is 2 to MaxLimit+1. A listing of checkpoints may exceed Limit: checkpoints
// that share a hash, such as an exact and a spliced one, are never divided between pages.
type Catalogue interface {
	Segments(SegmentQuery) ([]Segment, error)
	// Segment returns one segment with its parts, or ErrNotFound if it is not cached.
	Segment(key Digest) (SegmentDetail, error)
	Checkpoints(CheckpointQuery) ([]Checkpoint, error)
	// Remove evicts a segment: no lookup finds it any more, and its memory is freed when
	// its last lease ends. It returns ErrNotFound if the segment is not cached, and ErrBusy
	// while it is being filled.
	Remove(key Digest) error
	// Locate returns which nodes have which parts of a prompt. It does no I/O. The query was
	// validated, and the implementation may modify it until it returns. Locate returns
	// ErrNotFound for an unknown profile or tenant, and ErrInvalid for the name of a model with
	// several profiles.
	Locate(*LocateQuery) (*Located, error)
}

// Digest is a segment key, prefix hash, fingerprint, or the id of a primer, which is the
// SHA-256 of its token ids as little-endian u32. As text it is 64 hex digits.
//
//openapi:pattern ^[0-9a-f]{64}$
type Digest [32]byte

// String returns the 64 hex digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It returns ErrInvalid unless text is
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

// hasPrefix reports whether the text of d begins with lower-case hex digits. It compares digit
// by digit, so that filtering a large catalogue allocates no strings.
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
	State  string `json:"state" enum:"Check*"`
	Detail string `json:"detail,omitempty"` // for operators: the cause and the consequences
}

// Status is the state of the process.
type Status struct {
	Ready     bool      `json:"ready"` // the engine socket is served
	Alive     bool      `json:"alive"` // the main loop's heartbeat is recent
	Node      string    `json:"node"`  // name of the node
	Version   string    `json:"version"`
	BootEpoch uint64    `json:"boot_epoch,string"` // identifies this start of the daemon: a 64-bit number as text
	Started   time.Time `json:"started"`
	Socket    string    `json:"socket"` // path of the engine socket
	Device    string    `json:"device"` // kind and name
	Features  []string  `json:"features"`
	GPUs      []GPU     `json:"gpus,omitempty"` // the configured GPUs
	Checks    []Check   `json:"checks"`
}

// States of a GPU.
const (
	GPUOpening = "opening" // it is being opened
	GPUServing = "serving" // its memory is shared
	GPUMissing = "missing" // it could not be opened, or granted no memory
	GPULost    = "lost"    // it does not answer any more
)

// GPU is a configured device.
type GPU struct {
	UUID    string `json:"uuid"` // as nvidia-smi -L prints it; the text of the setting if it is unknown
	State   string `json:"state" enum:"GPU*"`
	Trouble string `json:"trouble,omitempty"` // for operators: what is wrong with the GPU
	Name    string `json:"name"`
	Driver  string `json:"driver"`           // CUDA version of the driver, such as 12.4; empty = unknown
	Mode    string `json:"mode"`             // compute mode; empty = unknown
	MPS     string `json:"mps"`              // yes: contexts of several processes run concurrently; no: they take turns; unknown
	Way     string `json:"way"`              // how clients get its memory: descriptor or handle; empty = they do not
	Stuck   int64  `json:"stuck_calls"`      // driver calls that run past their deadline
	Shared  int64  `json:"connection_bytes"` // private memory of clients

	CapacityBytes int64 `json:"capacity_bytes"` // for copies of objects, in both pools
	UsedBytes     int64 `json:"used_bytes"`
	Copies        int64 `json:"copies"`    // copies that lookups find
	Promoting     int64 `json:"promoting"` // copies that were requested or are being made
}

// Profile is one registered model identity.
type Profile struct {
	ID              uint32   `json:"id"` // valid until the daemon ends
	Fingerprint     Digest   `json:"fingerprint"`
	Model           string   `json:"model"`
	TPSize          int      `json:"tp_size"` // number of tensor-parallel ranks
	Layers          int      `json:"layers"`
	LinearLayers    int      `json:"linear_layers"`
	AttentionLayers int      `json:"attention_layers"`
	StateBytes      int64    `json:"state_bytes"`       // fixed bytes of one segment and rank: transitions, end-states, convolution windows
	RowBytes        int64    `json:"row_bytes"`         // bytes of one interior token and rank: keys and values
	Segments        int      `json:"segments"`          // published segments of all tenants
	Checkpoints     int      `json:"checkpoints"`       // published checkpoints of all tenants
	Engines         []string `json:"engines,omitempty"` // names and versions of the engines that registered it
}

// Durability levels of an object.
const (
	LevelMemory = "memory" // may be lost when the daemon ends
	LevelLogged = "logged" // survives a killed daemon
	LevelSynced = "synced" // survives power loss
)

// Segment is one published or pending segment.
type Segment struct {
	Key       Digest    `json:"key"`
	Profile   uint32    `json:"profile"` // profile id of this daemon start; 0 = no engine has registered the model since the start
	Model     string    `json:"model"`
	Tenant    string    `json:"tenant"`
	State     string    `json:"state" enum:"published,pending,removed"`
	Tiers     []string  `json:"tiers" enum:"hbm,dram,disk"` // tiers that have it, fastest first
	Level     string    `json:"level" enum:"Level*"`        // durability
	Role      string    `json:"role" enum:"first,mid"`      // first: it begins a prompt and is stored whole; mid: all others
	Tokens    int       `json:"tokens"`
	Interior  int       `json:"interior_tokens"` // stored tokens: all except the excluded ones at both ends
	Bytes     int64     `json:"bytes"`           // over all ranks
	DiskBytes int64     `json:"disk_bytes"`      // size on disk; 0 = not on disk
	Leases    int       `json:"leases"`
	Hits      uint64    `json:"hits"`
	Publisher string    `json:"publisher"` // name of the client that filled it
	Created   time.Time `json:"created"`
	LastUsed  time.Time `json:"last_used"`
	// Primer is the id of the primer after which the segment was captured; nil = no primer.
	Primer *Digest `json:"primer,omitempty"`
	// Packed is present if transitions and end-states were packed, as the profile's tolerance
	// allows.
	Packed *Packed `json:"packed,omitempty"`
}

// Packed describes the errors of packed transitions, end-states, keys and values. Each error is the
// largest one of all heads.
type Packed struct {
	PlainBytes      int64   `json:"plain_bytes"`      // size without packing, over all ranks; 0 = its profile is not registered
	TransitionError float64 `json:"transition_error"` // bound on the spectral norm of the difference
	StateError      float64 `json:"state_error"`      // Frobenius norm of the difference, relative to the end-state or to a layer's keys or values
}

// SegmentPart is one tensor of one rank.
type SegmentPart struct {
	Rank  int    `json:"rank"`
	Layer int    `json:"layer"`
	Kind  string `json:"kind" enum:"t,s,conv,k,v"` // t: transition; s: end-state; conv: convolution window; k, v: keys, values
	DType string `json:"dtype" enum:"f32,f16,bf16"`
	Shape []int  `json:"shape"`
	Bytes int64  `json:"bytes"`
}

// SegmentDetail is a segment with its parts.
type SegmentDetail struct {
	Segment
	HeadExcluded int           `json:"head_excluded_tokens"`            // tokens at its start that are recomputed and not stored
	TailExcluded int           `json:"tail_excluded_tokens"`            // tokens at its end that are recomputed and not stored
	Extents      int           `json:"extents"`                         // runs of arena memory that contain it
	DiskExtents  int           `json:"disk_extents"`                    // runs of slab files that contain it
	Codec        string        `json:"codec" enum:",none,planes-huff0"` // codec of its bytes on disk; empty = not on disk
	OtherNodes   int           `json:"other_nodes"`                     // other nodes of the cluster that are believed to have it
	ObjectStore  bool          `json:"object_store"`                    // the object store is believed to have it
	Parts        []SegmentPart `json:"parts"`
}

// SegmentQuery selects a page of segments. Zero fields do not restrict it.
type SegmentQuery struct {
	Tenant  string
	Profile *uint32
	Prefix  string  // lower-case hex digits that the key begins with
	After   *Digest // only greater keys
	Limit   int
}

// Match reports whether a segment matches the filters. It ignores After and Limit.
func (q *SegmentQuery) Match(key Digest, tenant string, profile uint32) bool {
	if q.Tenant != "" && q.Tenant != tenant || q.Profile != nil && *q.Profile != profile {
		return false
	}
	return key.hasPrefix(q.Prefix)
}

// Checkpoint is one node of a private pool's tree.
type Checkpoint struct {
	Hash      Digest    `json:"hash"`
	Parent    *Digest   `json:"parent,omitempty"` // hash of the checkpoint that it extends
	Profile   uint32    `json:"profile"`          // profile id of this daemon start; 0 = no engine has registered the model since the start
	Model     string    `json:"model"`
	Tenant    string    `json:"tenant"`
	Kind      string    `json:"kind" enum:"exact,spliced,rows"`
	Tiers     []string  `json:"tiers" enum:"hbm,dram,disk"` // tiers that have it, fastest first
	Level     string    `json:"level" enum:"Level*"`        // durability
	Tokens    int       `json:"tokens"`
	Rows      int       `json:"rows"`       // tokens whose keys and values this node of the tree stores itself
	Bytes     int64     `json:"bytes"`      // over all ranks
	DiskBytes int64     `json:"disk_bytes"` // size on disk; 0 = not on disk
	Leases    int       `json:"leases"`
	Children  int       `json:"children"` // checkpoints that extend it
	Thinned   bool      `json:"thinned"`  // its states were evicted from memory, so no prompt continues from it; its rows stay for the checkpoints that extend it
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

// Pool is one budget in one tier. A pool on disk has no leases. Its PageBytes is the unit in which
// the disk tier allocates.
type Pool struct {
	Name             string       `json:"name" enum:"public,private"` // public: segments; private: checkpoints
	Tier             string       `json:"tier" enum:"hbm,dram,disk"`
	Device           string       `json:"device,omitempty"` // UUID of the GPU of a pool in HBM
	CapacityBytes    int64        `json:"capacity_bytes"`
	UsedBytes        int64        `json:"used_bytes"`
	LeasedBytes      int64        `json:"leased_bytes"`
	PendingBytes     int64        `json:"pending_bytes"`     // reserved and not yet committed
	QuarantinedBytes int64        `json:"quarantined_bytes"` // of expired leases, until their clients release them
	PageBytes        int64        `json:"page_bytes"`        // unit of allocation
	Objects          int          `json:"objects"`
	Tenants          []TenantPool `json:"tenants"`
}

// TenantPool is one tenant's share of a pool.
type TenantPool struct {
	Tenant     string `json:"tenant"`
	UsedBytes  int64  `json:"used_bytes"`  // as its quota counts them: whole pages or extents, and records
	QuotaBytes int64  `json:"quota_bytes"` // 0 = no quota
}

// Connection is one attached client.
type Connection struct {
	ID           uint64    `json:"id"`
	Client       string    `json:"client"` // name of the client
	UID          uint32    `json:"uid"`
	GID          uint32    `json:"gid"`
	PID          int32     `json:"pid"` // 0 = the client runs in another namespace of process ids
	Tenants      []string  `json:"tenants"`
	Profiles     []uint32  `json:"profiles"`
	Engines      []string  `json:"engines"` // names and versions of the engines for which it has registered profiles
	Since        time.Time `json:"since"`
	Requests     uint64    `json:"requests"`
	InFlight     int       `json:"in_flight"` // requests that are not answered yet
	Leases       int       `json:"leases"`
	Reservations int       `json:"reservations"`
	StagingBytes int64     `json:"staging_bytes"`
	SlotBytes    int64     `json:"slot_bytes"`
	Device       string    `json:"device,omitempty"` // UUID of the GPU that it has attached
	DeviceBytes  int64     `json:"device_bytes"`     // private GPU memory; 0 = no GPU is attached
}

// Counter is one counter or gauge.
type Counter struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}
