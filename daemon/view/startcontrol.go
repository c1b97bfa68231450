package view

import (
	"context"

	"github.com/spliced-kv/spliced/api"
)

// While it is being opened, a daemon refuses all changes.

// Leases implements api.Control.
func (s *Start) Leases(api.LeaseQuery) ([]api.Lease, error) { return nil, s.notYet() }

// RemoveSegments implements api.Remover.
func (s *Start) RemoveSegments(context.Context, api.RemovalQuery) (api.Removed, error) {
	return api.Removed{}, s.notYet()
}

// RemoveCheckpoints implements api.Remover.
func (s *Start) RemoveCheckpoints(context.Context, api.RemovalQuery) (api.Removed, error) {
	return api.Removed{}, s.notYet()
}

// Checkpoint implements api.Remover.
func (s *Start) Checkpoint(api.CheckpointName) (api.CheckpointDetail, error) {
	return api.CheckpointDetail{}, s.notYet()
}

// RemoveCheckpoint implements api.Remover.
func (s *Start) RemoveCheckpoint(api.CheckpointName, bool) (api.Removed, error) {
	return api.Removed{}, s.notYet()
}

// Pins implements api.Pinner.
func (s *Start) Pins() ([]api.Pin, error) { return nil, s.notYet() }

// Pin implements api.Pinner.
func (s *Start) Pin(context.Context, api.PinQuery) ([]api.Pin, error) { return nil, s.notYet() }

// Unpin implements api.Pinner.
func (s *Start) Unpin(api.Digest, bool) ([]api.Pin, error) { return nil, s.notYet() }

// Config implements api.Operator.
func (s *Start) Config() (api.Config, error) { return api.Config{}, s.notYet() }

// ChangeConfig implements api.Operator.
func (s *Start) ChangeConfig(api.Config, bool) (api.Config, error) { return api.Config{}, s.notYet() }

// Drain implements api.Operator.
func (s *Start) Drain(bool, bool) (api.Drained, error) { return api.Drained{}, s.notYet() }

// Reload implements api.Operator.
func (s *Start) Reload(bool) (api.Reloaded, error) { return api.Reloaded{}, s.notYet() }
