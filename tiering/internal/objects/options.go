package objects

import (
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Options configures a Set; it never changes.
type Options struct {
	Now       func() time.Time
	Log       *decision.Log
	Lower     tier.Tier   // nil = none
	Find      *find.Index // index of segments, shared with the lower tier; nil = a new one
	Held      *held.Set   // listener for all hits, shared with the lower tier; nil = none
	Place     tier.Place
	Arena     gpuipc.Region // of public + private bytes
	PageBytes int           // page size of the arena in bytes
	Public    int64         // budget of segments, whole pages
	Private   int64         // budget of checkpoints, whole pages
	MaxChain  int
	MaxGhosts int

	EvictionPublic, EvictionPrivate, Eviction func() policy.Eviction

	Outlets bool // copies are sent to outlets

	// Fractions of a pool's budget, see Policies.ShortOf. Only used with a lower tier or outlets.
	HighWater, LowWater float64
	// Short is called when a pool has become short, see Policies.Short. It must not block.
	Short func()
}
