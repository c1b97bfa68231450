package ragdemo

import (
	"context"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/refengine/remote"
)

// modelSeed draws the demo's weights: the same on every run, so that a daemon
// that holds segments of an earlier run is a warm one.
const modelSeed = 1

// RunClient runs the demo against the daemon that client is attached to; it
// waits for one until ctx ends.
func RunClient(ctx context.Context, client *connector.Client, o Options) (*Report, error) {
	m, err := Model(modelSeed)
	if err != nil {
		return nil, err
	}
	registered, err := client.Register(m.Profile(), connector.Binding{Connector: "refengine", Engine: "ragdemo"})
	if err != nil {
		return nil, err
	}
	if err := registered.WaitReady(ctx); err != nil {
		return nil, err
	}
	return Run(ctx, m, remote.New(ctx, client, registered), o)
}
