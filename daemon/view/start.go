package view

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/api"
)

// Start is the view while a daemon is being opened. It reports that the daemon is alive, and which
// part is being opened.
type Start struct {
	status  api.Status
	opening func() string
}

var (
	_ api.Node      = (*Start)(nil)
	_ api.Catalogue = (*Start)(nil)
	_ api.Canaries  = (*Start)(nil)
	_ api.Control   = (*Start)(nil)
)

// NewStart creates a Start. The function opening returns the name of the part being opened.
func NewStart(status api.Status, opening func() string) *Start {
	status.Alive = true
	return &Start{status, opening}
}

// Status implements api.Node.
func (s *Start) Status() api.Status {
	status := s.status
	status.Checks = []api.Check{{Name: "start", State: api.CheckDegraded, Detail: "opening " + s.opening()}}
	return status
}

// Profiles implements api.Node.
func (s *Start) Profiles() []api.Profile { return nil }

// Pools implements api.Node.
func (s *Start) Pools() []api.Pool { return nil }

// Connections implements api.Node.
func (s *Start) Connections() []api.Connection { return nil }

// Counters implements api.Node.
func (s *Start) Counters() []api.Counter { return nil }

// Decisions implements api.Node.
func (s *Start) Decisions(api.DecisionQuery) []api.Decision { return nil }

// Requests implements api.Node.
func (s *Start) Requests(api.RequestQuery) []api.Request { return nil }

// Request implements api.Node.
func (s *Start) Request(uint64) (*api.Request, error) { return nil, s.notYet() }

// Usage implements api.Node.
func (s *Start) Usage() []api.Usage { return nil }

// Overview implements api.Node.
func (s *Start) Overview(string) *api.Overview { return &api.Overview{Status: s.Status()} }

// Cluster implements api.Node.
func (s *Start) Cluster() api.Cluster { return api.Cluster{} }

// ProbeObjectStore implements api.Node.
func (s *Start) ProbeObjectStore(context.Context) api.ObjectProbe { return api.ObjectProbe{} }

// Segments implements api.Catalogue.
func (s *Start) Segments(api.SegmentQuery) ([]api.Segment, error) { return nil, s.notYet() }

// Segment implements api.Catalogue.
func (s *Start) Segment(api.Digest) (api.SegmentDetail, error) {
	return api.SegmentDetail{}, s.notYet()
}

// Checkpoints implements api.Catalogue.
func (s *Start) Checkpoints(api.CheckpointQuery) ([]api.Checkpoint, error) { return nil, s.notYet() }

// Remove implements api.Catalogue.
func (s *Start) Remove(api.Digest) error { return s.notYet() }

// Locate implements api.Catalogue.
func (s *Start) Locate(*api.LocateQuery) (*api.Located, error) { return nil, s.notYet() }

// Canaries implements api.Canaries.
func (s *Start) Canaries() []api.Canary { return nil }

// SwitchProfile implements api.Canaries.
func (s *Start) SwitchProfile(api.SwitchQuery) ([]api.Canary, error) { return nil, s.notYet() }

func (s *Start) notYet() error {
	return fmt.Errorf("the daemon is still opening %s: %w", s.opening(), api.ErrUnavailable)
}
