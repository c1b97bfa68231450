package tiering

import (
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/fill"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/serve"
)

// The types by which callers configure a Store and talk to it. Its parts define them.
type (
	// Config configures a Store. A zero field takes the default that its comment states.
	Config = catalog.Config
	// Tenant is a group of clients that share cached objects.
	Tenant = catalog.Tenant
	// Tenants is a list of tenants with distinct ids and names.
	Tenants = catalog.Tenants
	// Outlet is a place for copies of objects that this node may evict.
	Outlet = catalog.Outlet
	// Budgets are the limits that can be changed while a store runs.
	Budgets = move.Budgets

	// Session is one client: its leases, reservations, plans and buffers.
	Session = serve.Session

	// MatchQuery asks for the longest checkpoint and the status of segments, MatchResult
	// answers it. SegmentStatus is one row of a match.
	MatchQuery    = serve.MatchQuery
	MatchResult   = serve.MatchResult
	SegmentStatus = serve.SegmentStatus
	// Located answers the same query to compare nodes, see Store.Locate.
	Located = serve.Located
	// KnownQuery asks which cached segments occur where in a prompt, Known answers it.
	KnownQuery   = serve.KnownQuery
	Known        = serve.Known
	KnownSegment = serve.KnownSegment
	// AcquireQuery leases segments, Acquired is one row of the answer.
	AcquireQuery = serve.AcquireQuery
	Acquired     = serve.Acquired
	// LoadQuery leases a checkpoint, Loaded answers it with the nodes of its chain.
	LoadQuery  = serve.LoadQuery
	Loaded     = serve.Loaded
	LoadedNode = serve.LoadedNode
	// LeaseFilter selects leases, LeaseInfo is one of them.
	LeaseFilter = serve.LeaseFilter
	LeaseInfo   = serve.LeaseInfo

	// ReserveQuery asks for room for a segment, SaveQuery for a checkpoint. Reservation
	// answers both.
	ReserveQuery = fill.ReserveQuery
	SaveQuery    = fill.SaveQuery
	Reservation  = fill.Reservation
	// CommitItem commits chunks of a reservation, Committed answers a commit.
	CommitItem = fill.CommitItem
	Committed  = fill.Committed
	// Durable lets a caller wait until a published object has reached its level.
	Durable = move.Durable
)

// Defaults returns the configuration that the daemon uses if no setting changes it.
func Defaults() Config { return catalog.Defaults() }
