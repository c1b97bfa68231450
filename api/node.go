package api

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// What Node and Catalogue report; each becomes one HTTP status.
var (
	ErrInvalid     = errors.New("api: invalid")     // 400
	ErrNotFound    = errors.New("api: not found")   // 404
	ErrBusy        = errors.New("api: busy")        // 409: leased, or being filled
	ErrUnavailable = errors.New("api: unavailable") // 503
)

// Node answers questions about the process. Implementations copy what they
// answer, hold no lock that a client of the socket waits for longer than the
// copy takes, and are safe for concurrent use.
type Node interface {
	Status() Status
	Profiles() []Profile
	Pools() []Pool
	Connections() []Connection
	// Counters lists counters and gauges by name in a stable order: what
	// OpStats answers on the socket.
	Counters() []Counter
	// Decisions answers what was decided last, the newest first, at most Limit of
	// those that pass the query. Those of earlier starts come last.
	Decisions(DecisionQuery) []Decision
	// Cluster answers what the node knows of the others of its cluster; Enabled is false
	// where it is in none.
	Cluster() Cluster
	// Requests answers how prompts were served, the newest first, at most Limit of those
	// that pass the query, without spans.
	Requests(RequestQuery) []Request
	// Request answers one that is still kept; ErrNotFound.
	Request(id uint64) (*Request, error)
	// Usage answers the sums of all requests, in a stable order.
	Usage() []Usage
	// Overview answers with a history of a span, HistoryHours if empty.
	Overview(history string) *Overview
	// ProbeObjectStore tries the object store, and takes a while; Enabled is false where
	// there is none.
	ProbeObjectStore(ctx context.Context) ObjectProbe
}

// Catalogue pages through what is held. Both listings are in ascending order of
// key, so that a cursor (the last key of the page before) stays meaningful while
// objects come and go. Limit is 2 to MaxLimit+1; an answer may be longer by the
// other checkpoints (an exact and a spliced one) that share the last hash.
type Catalogue interface {
	Segments(SegmentQuery) ([]Segment, error)
	// Segment answers one segment with its parts; ErrNotFound when not held.
	Segment(key Digest) (SegmentDetail, error)
	Checkpoints(CheckpointQuery) ([]Checkpoint, error)
	// Remove evicts a segment: no lookup finds it any more, and its memory is
	// free once its last lease ends. ErrNotFound, or ErrBusy while it is filled.
	Remove(key Digest) error
	// Locate answers which nodes hold what of a prompt, from memory. The query is valid;
	// it is the implementation's until it returns. ErrNotFound for a profile or tenant
	// that is not known here, ErrInvalid for a model that several profiles have.
	Locate(*LocateQuery) (*Located, error)
}

// Digest is a segment key, prefix hash or fingerprint; as text it is 64 hex digits.
type Digest [32]byte

// String is the 64 hex digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; anything but 64 hex digits is ErrInvalid.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != 2*len(d) {
		return fmt.Errorf("%d characters where 64 hex digits belong: %w", len(text), ErrInvalid)
	}
	if _, err := hex.Decode(d[:], text); err != nil {
		return fmt.Errorf("not hex digits: %w", ErrInvalid)
	}
	return nil
}

// hasPrefix compares digit by digit, so that filtering a large catalogue makes no strings.
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
	CheckDegraded = "degraded" // works with less; never takes the node out of service
)

// Check is one capability of the node and how it is.
type Check struct {
	Name   string `json:"name"`
	State  string `json:"state"`            // CheckOK or CheckDegraded
	Detail string `json:"detail,omitempty"` // for people: what is missing and what follows
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
	GPUs      []GPU     `json:"gpus,omitempty"` // that the node was told to use
	Checks    []Check   `json:"checks"`
}

// States of a GPU.
const (
	GPUOpening = "opening"
	GPUServing = "serving" // its memory is shared
	GPUMissing = "missing" // it could not be opened, or gave no memory
	GPULost    = "lost"    // it does not answer any more
)

// GPU is a device that the node was told to use.
type GPU struct {
	UUID    string `json:"uuid"` // GPU-..., as nvidia-smi -L has it; what the setting says where that is not known
	State   string `json:"state"`
	Trouble string `json:"trouble,omitempty"` // for people: what is wrong with it
	Name    string `json:"name"`
	Driver  string `json:"driver"`           // CUDA version of the driver, such as 12.4; empty = not known
	Mode    string `json:"mode"`             // compute mode; empty = not known
	MPS     string `json:"mps"`              // yes: contexts run side by side; no: they take turns; unknown
	Way     string `json:"way"`              // how clients get its memory: descriptor or handle; empty = not at all
	Stuck   int64  `json:"stuck_calls"`      // calls of the driver that run past their time now
	Shared  int64  `json:"connection_bytes"` // memory of its own that clients have

	CapacityBytes int64 `json:"capacity_bytes"` // for copies, of both pools
	UsedBytes     int64 `json:"used_bytes"`
	Copies        int64 `json:"copies"`    // that lookups find
	Promoting     int64 `json:"promoting"` // wanted or on their way
}

// Profile is one registered model identity.
type Profile struct {
	ID              uint32   `json:"id"` // of this daemon start
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
	Engines         []string `json:"engines,omitempty"` // bindings seen: engine name and version
}

// Levels say how safe an object is by where it lies.
const (
	LevelMemory = "memory" // a daemon that ends may lose it
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
	Tiers     []string  `json:"tiers"` // where it lies, fastest first: hbm, dram, disk
	Level     string    `json:"level"` // LevelMemory, LevelLogged or LevelSynced
	Role      string    `json:"role"`  // first or mid
	Tokens    int       `json:"tokens"`
	Interior  int       `json:"interior_tokens"`
	Bytes     int64     `json:"bytes"`      // over all ranks
	DiskBytes int64     `json:"disk_bytes"` // what it takes on disk, 0 = it is not there
	Leases    int       `json:"leases"`
	Hits      uint64    `json:"hits"`
	Publisher string    `json:"publisher"` // name of the client that filled it
	Created   time.Time `json:"created"`
	LastUsed  time.Time `json:"last_used"`
	// Primer is the id of the primer after which it was captured; otherwise absent.
	Primer *Digest `json:"primer,omitempty"`
	// Of a segment whose transitions and end-states were packed, as its profile's tolerance
	// allows; otherwise absent.
	Packed *Packed `json:"packed,omitempty"`
}

// Packed is how far packed transitions, end-states, keys and values are from those that were
// written: the largest of any head.
type Packed struct {
	PlainBytes      int64   `json:"plain_bytes"`      // that it would take as it was written, over all ranks; 0 = its profile is not registered
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
	Extents      int           `json:"extents"`      // runs of arena memory it lies in
	DiskExtents  int           `json:"disk_extents"` // runs of slab files it lies in
	Codec        string        `json:"codec"`        // of its bytes on disk; empty = it is not there
	OtherNodes   int           `json:"other_nodes"`  // of the cluster that are believed to hold it
	ObjectStore  bool          `json:"object_store"` // which is believed to hold it
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
	Rows      int       `json:"rows"` // tokens whose keys and values this node holds itself
	Bytes     int64     `json:"bytes"`
	DiskBytes int64     `json:"disk_bytes"`
	Leases    int       `json:"leases"`
	Children  int       `json:"children"`
	Thinned   bool      `json:"thinned"` // its states have left memory: nothing begins from it, what extends it needs its rows
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

// Pool is one budget in one tier. On disk nothing is leased, and a page is what
// space is given in.
type Pool struct {
	Name             string       `json:"name"` // public or private
	Tier             string       `json:"tier"`
	Device           string       `json:"device,omitempty"` // of a pool of HBM: the GPU's UUID
	CapacityBytes    int64        `json:"capacity_bytes"`
	UsedBytes        int64        `json:"used_bytes"`
	LeasedBytes      int64        `json:"leased_bytes"`
	PendingBytes     int64        `json:"pending_bytes"`     // reserved, not committed
	QuarantinedBytes int64        `json:"quarantined_bytes"` // of expired leases, until the client lets go
	PageBytes        int64        `json:"page_bytes"`
	Objects          int          `json:"objects"`
	Tenants          []TenantPool `json:"tenants"`
}

// TenantPool is one tenant's share of a pool.
type TenantPool struct {
	Tenant     string `json:"tenant"`
	UsedBytes  int64  `json:"used_bytes"`  // as its quota counts: pages or extents, and records
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
	Engines      []string  `json:"engines"` // that it has registered them for, with their versions
	Since        time.Time `json:"since"`
	Requests     uint64    `json:"requests"`
	InFlight     int       `json:"in_flight"`
	Leases       int       `json:"leases"`
	Reservations int       `json:"reservations"`
	StagingBytes int64     `json:"staging_bytes"`
	SlotBytes    int64     `json:"slot_bytes"`
	Device       string    `json:"device,omitempty"` // the GPU that it has attached
	DeviceBytes  int64     `json:"device_bytes"`     // memory of the GPU of its own; 0 = not attached to it
}

// Counter is one counter or gauge.
type Counter struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}
