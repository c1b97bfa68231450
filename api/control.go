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

// Errors of Control, in addition to those of Node. Each maps to one HTTP status.
var (
	ErrFull        = errors.New("full")        // 507: it exceeds a limit
	ErrUnsupported = errors.New("unsupported") // 422: impossible while the daemon runs
	ErrBadFile     = errors.New("bad file")    // 422: a file to be reloaded is bad
)

// Control lets operators change a running node, and list leases. Many methods accept a dry run,
// which changes nothing and returns what the change would do.
type Control interface {
	Remover
	Pinner
	Operator
	// Leases lists leases of clients in ascending order of ids.
	Leases(LeaseQuery) ([]Lease, error)
}

// Remover removes objects.
type Remover interface {
	// RemoveSegments removes all segments that match a query, in small batches, until ctx
	// ends. It returns ErrBusy if another removal by query is running.
	RemoveSegments(context.Context, RemovalQuery) (Removed, error)
	// RemoveCheckpoints removes all checkpoints that match a query, like RemoveSegments. It keeps a
	// matching checkpoint while a checkpoint that it does not remove extends it.
	RemoveCheckpoints(context.Context, RemovalQuery) (Removed, error)
	// Checkpoint returns the first checkpoint with this name, or ErrNotFound.
	Checkpoint(CheckpointName) (CheckpointDetail, error)
	// RemoveCheckpoint removes all checkpoints with this name; the bool requests a dry run. It
	// returns ErrNotFound, or ErrBusy if one of them is being filled, pinned, or extended by
	// another.
	RemoveCheckpoint(CheckpointName, bool) (Removed, error)
}

// Pinner keeps objects in memory.
type Pinner interface {
	Pins() ([]Pin, error)
	// Pin pins all objects of a key, or changes the expiry of their pins. It returns
	// ErrNotFound, ErrBusy while an object is being filled, ErrFull if pins would exceed their
	// share of a pool or the tenant's quota, or ErrUnavailable if an object on disk cannot be
	// read.
	Pin(context.Context, PinQuery) ([]Pin, error)
	// Unpin removes the pins of a key and returns them, or ErrNotFound.
	Unpin(key Digest, dry bool) ([]Pin, error)
}

// Operator runs a node.
type Operator interface {
	Config() (Config, error)
	// ChangeConfig applies a configuration that differs from the current one only in changeable
	// values, and returns the resulting one. Errors are ErrInvalid and ErrUnsupported.
	ChangeConfig(to Config, dry bool) (Config, error)
	// Drain makes the node refuse new clients and fills if the parameter on is true, and accept
	// them again if it is false. A draining node is not ready.
	Drain(on, dry bool) (Drained, error)
	// Reload reads the files with keys, tokens and certificates again, and uses all of them or
	// none. The error is a *Problem or an ErrBadFile that names the bad files.
	Reload(dry bool) (Reloaded, error)
}

// RemovalQuery selects objects to remove. Zero fields do not restrict it.
type RemovalQuery struct {
	Tenant    string
	Profile   *uint32
	Prefix    string        // lower-case hex digits that the key begins with
	OlderThan time.Duration // only objects that were not used for this time; 0 = all
	Dry       bool
}

// Removed is the result of removing several objects.
type Removed struct {
	DryRun  bool  `json:"dry_run"` // nothing was removed
	Matched int   `json:"matched"` // objects that match the filter
	Removed int   `json:"removed"` // objects that were removed, or with dry_run would be
	Busy    int   `json:"busy"`    // objects that were kept: they are being filled, pinned, or extended by a kept checkpoint
	Bytes   int64 `json:"bytes"`   // size of the removed objects, over all ranks
}

// CheckpointName selects checkpoints by hash, and among several with the same hash by the other
// fields.
type CheckpointName struct {
	Hash    Digest
	Tenant  string  // "" = any
	Profile *uint32 // nil = any
	Kind    string  // "" = any
}

// CheckpointDetail is a checkpoint with the number of others that have its hash.
type CheckpointDetail struct {
	Checkpoint
	Others int `json:"others"` // number of checkpoints of this hash with another kind, tenant or profile
}

// checkpointKinds are the values of Checkpoint.Kind.
var checkpointKinds = []string{"exact", "spliced", "rows"}

// PinQuery requests pins.
type PinQuery struct {
	Key Digest
	TTL time.Duration
	By  string
	Dry bool
}

// MaxPinTTL is the longest duration of a pin.
const MaxPinTTL = 7 * 24 * time.Hour

// Pin keeps an object in memory until it expires. Pins end with the daemon.
type Pin struct {
	Key     Digest    `json:"key"`
	Object  string    `json:"object" enum:"segment,checkpoint"`
	Tenant  string    `json:"tenant"`
	Profile uint32    `json:"profile"`
	Bytes   int64     `json:"bytes"` // pinned memory, including the checkpoints that a checkpoint extends
	Expires time.Time `json:"expires"`
	By      string    `json:"by"` // who pinned it
}

// Pinned is the result of a change of pins.
type Pinned struct {
	Pins   []Pin `json:"pins"`    // the affected pins
	DryRun bool  `json:"dry_run"` // nothing was changed
}

// Drained is the result of starting or ending a drain.
type Drained struct {
	Draining    bool `json:"draining"`    // state after the change, or with dry_run as it would be
	DryRun      bool `json:"dry_run"`     // nothing was changed
	Connections int  `json:"connections"` // open connections
	Leases      int  `json:"leases"`      // leases of the open connections
}

// Reloaded is the result of a reload.
type Reloaded struct {
	DryRun  bool     `json:"dry_run"` // the files were only checked
	Read    []string `json:"read"`    // settings whose files were read
	Changed []string `json:"changed"` // settings among Read whose files have new content
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
		p.refuse("all", "give tenant, profile, prefix or older_than, or all=true to remove everything")
	}
	if err := p.done(); err != nil {
		return err
	}
	r, err := remove(s.stopping, q)
	r.DryRun = q.Dry
	s.audit(ctx, change{object: string(ctx.QueryArgs().QueryString()), dry: q.Dry, before: map[string]any{"matched": r.Matched}, after: r}, err)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return writeJSON(ctx, r)
}

// checkpoint parses the selection of a request's checkpoint.
func (p *params) checkpoint(key Digest) CheckpointName {
	return CheckpointName{Hash: key, Tenant: p.name("tenant"), Profile: p.profile(), Kind: p.oneOf("kind", checkpointKinds)}
}

func (from *Shown) getCheckpoint(ctx *fasthttp.RequestCtx, arg string) error {
	key, err := keyOf(arg)
	if err != nil {
		return err
	}
	p := paramsOf(ctx)
	name := p.checkpoint(key)
	if err := p.done(); err != nil {
		return err
	}
	c, err := from.Control.Checkpoint(name)
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
	s.audit(ctx, change{object: key.String(), dry: dry, before: map[string]any{"matched": r.Matched}, after: r}, err)
	if err != nil {
		return fmt.Errorf("remove checkpoint %s: %w", key, err)
	}
	return writeJSON(ctx, r)
}

func (from *Shown) listPins() (page Page[Pin], err error) {
	pins, err := from.Control.Pins()
	if err != nil {
		return page, fmt.Errorf("list pins: %w", err)
	}
	return Page[Pin]{Items: orEmpty(pins)}, nil
}

func (s *Server) putPin(ctx *fasthttp.RequestCtx, arg string) error {
	key, err := keyOf(arg)
	if err != nil {
		return err
	}
	p := paramsOf(ctx)
	q := PinQuery{Key: key, TTL: p.period("ttl", MaxPinTTL), By: p.name("by"), Dry: p.flag("dry_run")}
	if q.TTL == 0 && len(p.bad) == 0 {
		p.refuse("ttl", "is required: how long it stays pinned, such as 10m, at most %v", MaxPinTTL)
	}
	if err := p.done(); err != nil {
		return err
	}
	if q.By == "" {
		q.By = caller(ctx)
	}
	bounded, cancel := context.WithTimeout(s.stopping, pinTimeout)
	defer cancel()
	before := s.shown().pinsOf(key)
	pins, err := s.shown().Control.Pin(bounded, q)
	s.audit(ctx, change{object: key.String(), dry: q.Dry, before: before, after: pins}, err)
	if err != nil {
		return fmt.Errorf("pin %s: %w", key, err)
	}
	return writeJSON(ctx, Pinned{Pins: orEmpty(pins), DryRun: q.Dry})
}

// pinTimeout bounds the time to read objects from disk to be pinned.
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
	s.audit(ctx, change{object: key.String(), dry: dry, before: ended, after: []Pin{}}, err)
	if err != nil {
		return fmt.Errorf("unpin %s: %w", key, err)
	}
	return writeJSON(ctx, Pinned{Pins: orEmpty(ended), DryRun: dry})
}

// pinsOf returns the pins of a key, for the log.
func (from *Shown) pinsOf(key Digest) []Pin {
	pins, err := from.Control.Pins()
	if err != nil {
		return nil // the requested change fails in the same way
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
	s.audit(ctx, change{dry: dry, before: map[string]bool{"draining": before.Draining}, after: d}, err)
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
	s.audit(ctx, change{dry: dry, after: r}, err)
	if err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	return writeJSON(ctx, r)
}

// period parses a duration; 0 = not given.
func (p *params) period(name string, most time.Duration) time.Duration {
	v, ok := p.text(name)
	if !ok {
		return 0
	}
	d, err := ParsePeriod(v)
	if err != nil || d <= 0 || d > most {
		p.refuse(name, "%.40q is not a time of more than 0 and at most %dd, such as 10m or 7d", v, most/day)
		return 0
	}
	return d
}

const day = 24 * time.Hour

// ParsePeriod parses a duration, or a number of days such as 7d.
func ParsePeriod(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * day, err
	}
	return time.ParseDuration(text)
}
