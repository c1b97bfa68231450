package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// What Control reports beside the errors of Node; each becomes one HTTP status.
var (
	ErrFull        = errors.New("api: full")        // 507: it does not fit what may be taken
	ErrUnsupported = errors.New("api: unsupported") // 422: not while the daemon runs
	ErrBadFile     = errors.New("api: bad file")    // 422: a file that was to be read again
)

// Control is what operators change of a running node, and who holds what of it. With dry
// nothing is changed, and the answer is what would be.
type Control interface {
	Remover
	Pinner
	Operator
	// Leases lists leases of clients by id; LeaseQuery says which.
	Leases(LeaseQuery) ([]Lease, error)
}

// Remover removes what is held.
type Remover interface {
	// RemoveSegments removes all that pass a query, a few at a time, until ctx ends.
	// ErrBusy: another such removal runs.
	RemoveSegments(context.Context, RemovalQuery) (Removed, error)
	// RemoveCheckpoints does the same with checkpoints; those that one which stays
	// extends stay as well.
	RemoveCheckpoints(context.Context, RemovalQuery) (Removed, error)
	// Checkpoint answers the first of a hash that passes; ErrNotFound.
	Checkpoint(CheckpointName) (CheckpointDetail, error)
	// RemoveCheckpoint removes all of a hash that pass. ErrNotFound, or ErrBusy where one is
	// being filled, is pinned, or is extended by another.
	RemoveCheckpoint(CheckpointName, bool) (Removed, error)
}

// Pinner keeps objects in memory.
type Pinner interface {
	Pins() ([]Pin, error)
	// Pin pins all objects of a key, or gives their pins another time. ErrNotFound, ErrBusy
	// while it is being filled, ErrFull, or ErrUnavailable where it lies on disk and cannot be
	// read.
	Pin(context.Context, PinQuery) ([]Pin, error)
	// Unpin ends the pins of a key; ErrNotFound.
	Unpin(key Digest, dry bool) ([]Pin, error)
}

// Operator runs a node.
type Operator interface {
	Config() (Config, error)
	// ChangeConfig makes the configuration that of the argument, which differs in what may
	// change only, and answers it as it is then. ErrInvalid, or ErrUnsupported.
	ChangeConfig(to Config, dry bool) (Config, error)
	// Drain has new clients and fills refused, and the node not ready, or ends that.
	Drain(on, dry bool) (Drained, error)
	// Reload reads keys, tokens and certificates again, all of them or none: the *Problem
	// or ErrBadFile says which are wrong.
	Reload(dry bool) (Reloaded, error)
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
	Removed int   `json:"removed"` // with dry_run what would be, unless it is in use by then
	Busy    int   `json:"busy"`    // kept: being filled, pinned, or extended by what stays
	Bytes   int64 `json:"bytes"`   // of what was removed, over all ranks
}

// CheckpointName is a hash and, where several checkpoints have it, which of them.
type CheckpointName struct {
	Hash    Digest
	Tenant  string  // "" = any
	Profile *uint32 // nil = any
	Kind    string  // "" = any
}

// CheckpointDetail is a checkpoint, and how many others have its hash.
type CheckpointDetail struct {
	Checkpoint
	Others int `json:"others"` // of another kind, tenant or profile
}

// checkpointKinds are those of Checkpoint.Kind.
var checkpointKinds = []string{"exact", "spliced", "rows"}

// PinQuery asks for pins.
type PinQuery struct {
	Key Digest
	TTL time.Duration
	By  string
	Dry bool
}

// MaxPinTTL is how long a pin lasts at most.
const MaxPinTTL = 7 * 24 * time.Hour

// Pin keeps an object in memory until it expires. Pins end with the daemon.
type Pin struct {
	Key     Digest    `json:"key"`
	Object  string    `json:"object"` // segment or checkpoint
	Tenant  string    `json:"tenant"`
	Profile uint32    `json:"profile"`
	Bytes   int64     `json:"bytes"` // of memory that it keeps, with what a checkpoint extends
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
	Draining    bool `json:"draining"` // as it is now, or with dry_run would be
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

func (s *Server) removeSegments(ctx *fasthttp.RequestCtx, _ string) error {
	return s.removeMany(ctx, "remove segments", s.shown().Control.RemoveSegments)
}

func (s *Server) removeCheckpoints(ctx *fasthttp.RequestCtx, _ string) error {
	return s.removeMany(ctx, "remove checkpoints", s.shown().Control.RemoveCheckpoints)
}

func (s *Server) removeMany(ctx *fasthttp.RequestCtx, what string, remove func(context.Context, RemovalQuery) (Removed, error)) error {
	p := paramsOf(ctx)
	all := p.flag("all")
	q := RemovalQuery{Tenant: p.name("tenant"), Profile: p.profile(), Prefix: p.digits("prefix"), OlderThan: p.period("older_than", 100*365*24*time.Hour), Dry: p.flag("dry_run")}
	if len(p.bad) == 0 && !all && q.Tenant == "" && q.Profile == nil && q.Prefix == "" && q.OlderThan == 0 {
		p.refuse("all", "neither tenant, profile, prefix nor older_than is given: all=true removes everything")
	}
	if err := p.done(); err != nil {
		return err
	}
	r, err := remove(s.stopping, q)
	r.DryRun = q.Dry
	s.audit(ctx, change{action: what, object: string(ctx.QueryArgs().QueryString()), dry: q.Dry, before: map[string]any{"matched": r.Matched}, after: r}, err)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return writeJSON(ctx, r)
}

// checkpoint reads which checkpoint a request is about.
func (p *params) checkpoint(key Digest) CheckpointName {
	return CheckpointName{Hash: key, Tenant: p.name("tenant"), Profile: p.profile(), Kind: p.oneOf("kind", checkpointKinds)}
}

func (s *Server) getCheckpoint(ctx *fasthttp.RequestCtx, arg string) error {
	key, err := keyOf(arg)
	if err != nil {
		return err
	}
	p := paramsOf(ctx)
	name := p.checkpoint(key)
	if err := p.done(); err != nil {
		return err
	}
	c, err := s.shown().Control.Checkpoint(name)
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", key, err)
	}
	c.Tiers = orEmpty(c.Tiers)
	return writeJSON(ctx, c)
}

func (s *Server) removeCheckpoint(ctx *fasthttp.RequestCtx, arg string) error {
	key, err := keyOf(arg)
	if err != nil {
		return err
	}
	p := paramsOf(ctx)
	name, dry := p.checkpoint(key), p.flag("dry_run")
	if err := p.done(); err != nil {
		return err
	}
	r, err := s.shown().Control.RemoveCheckpoint(name, dry)
	r.DryRun = dry
	s.audit(ctx, change{action: "remove checkpoint", object: key.String(), dry: dry, before: map[string]any{"matched": r.Matched}, after: r}, err)
	if err != nil {
		return fmt.Errorf("remove checkpoint %s: %w", key, err)
	}
	return writeJSON(ctx, r)
}

func (s *Server) listPins(ctx *fasthttp.RequestCtx, _ string) error {
	if err := noParams(ctx); err != nil {
		return err
	}
	pins, err := s.shown().Control.Pins()
	if err != nil {
		return fmt.Errorf("list pins: %w", err)
	}
	return writeJSON(ctx, Page[Pin]{Items: orEmpty(pins)})
}

func (s *Server) putPin(ctx *fasthttp.RequestCtx, arg string) error {
	key, err := keyOf(arg)
	if err != nil {
		return err
	}
	p := paramsOf(ctx)
	q := PinQuery{Key: key, TTL: p.period("ttl", MaxPinTTL), By: p.name("by"), Dry: p.flag("dry_run")}
	if q.TTL == 0 && len(p.bad) == 0 {
		p.refuse("ttl", "is needed: how long it stays pinned, as in 10m, at most %v", MaxPinTTL)
	}
	if err := p.done(); err != nil {
		return err
	}
	if q.By == "" {
		q.By = caller(ctx)
	}
	bounded, cancel := context.WithTimeout(s.stopping, pinTimeout)
	defer cancel()
	before := s.pinsOf(key)
	pins, err := s.shown().Control.Pin(bounded, q)
	s.audit(ctx, change{action: "pin", object: key.String(), dry: q.Dry, before: before, after: pins}, err)
	if err != nil {
		return fmt.Errorf("pin %s: %w", key, err)
	}
	return writeJSON(ctx, Pinned{Pins: orEmpty(pins), DryRun: q.Dry})
}

// pinTimeout bounds how long a disk may take to bring what is to be pinned.
const pinTimeout = 20 * time.Second

func (s *Server) removePin(ctx *fasthttp.RequestCtx, arg string) error {
	key, err := keyOf(arg)
	if err != nil {
		return err
	}
	dry, err := onlyDryRun(ctx)
	if err != nil {
		return err
	}
	ended, err := s.shown().Control.Unpin(key, dry)
	s.audit(ctx, change{action: "unpin", object: key.String(), dry: dry, before: ended, after: []Pin{}}, err)
	if err != nil {
		return fmt.Errorf("unpin %s: %w", key, err)
	}
	return writeJSON(ctx, Pinned{Pins: orEmpty(ended), DryRun: dry})
}

// pinsOf is what is pinned of a key, for the log.
func (s *Server) pinsOf(key Digest) []Pin {
	pins, err := s.shown().Control.Pins()
	if err != nil {
		return nil // so does the change that asks
	}
	return slices.DeleteFunc(orEmpty(pins), func(p Pin) bool { return p.Key != key })
}

func (s *Server) drainOn(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	return s.drainNode(ctx, p, !p.flag("undo"))
}

func (s *Server) drainOff(ctx *fasthttp.RequestCtx, _ string) error {
	return s.drainNode(ctx, paramsOf(ctx), false)
}

func (s *Server) drainNode(ctx *fasthttp.RequestCtx, p *params, on bool) error {
	dry := p.flag("dry_run")
	if err := p.done(); err != nil {
		return err
	}
	control := s.shown().Control
	before, err := control.Config()
	var d Drained
	if err == nil {
		d, err = control.Drain(on, dry)
	}
	s.audit(ctx, change{action: "drain", dry: dry, before: map[string]bool{"draining": before.Draining}, after: d}, err)
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return writeJSON(ctx, d)
}

func (s *Server) reload(ctx *fasthttp.RequestCtx, _ string) error {
	dry, err := onlyDryRun(ctx)
	if err != nil {
		return err
	}
	r, err := s.shown().Control.Reload(dry)
	r.DryRun, r.Read, r.Changed = dry, orEmpty(r.Read), orEmpty(r.Changed)
	s.audit(ctx, change{action: "reload", dry: dry, after: r}, err)
	if err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	return writeJSON(ctx, r)
}

// period reads a duration; 0 = not given.
func (p *params) period(name string, most time.Duration) time.Duration {
	v, ok := p.text(name)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(v)
	if days, isDays := strings.CutSuffix(v, "d"); err != nil && isDays {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d <= 0 || d > most {
		p.refuse(name, "%q is not a time above 0 and at most %v, as in 10m or 7d", v, most)
		return 0
	}
	return d
}
