package fill

import (
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// ReserveQuery asks for room for one rank's share of a segment, or joins the
// reservation that another rank began.
type ReserveQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Key     profile.SegmentKey
	Spec    profile.SegmentSpec
	Tokens  []uint32 // token ids of the whole segment, Spec.Tokens of them; the store copies the list
}

// SaveQuery asks for room for one rank's share of a checkpoint.
type SaveQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Kind    tier.CheckpointKind // Exact, Rows or Spliced
	Hash    profile.PrefixHash
	Tokens  int                // tokens covered
	Parent  profile.PrefixHash // the checkpoint that this one extends; zero = none
}

// Reservation is one rank's share of an object being filled.
type Reservation struct {
	ID    tier.ReservationID
	Bytes int64 // of this rank's layout
	// Durable is as in Committed, if SaveBuffered has published the object.
	Durable *move.Durable
}

// CommitItem commits consecutive chunks of one part. A chunk has gpuipc.ChunkBytes; the
// last chunk of a part may be shorter. Level is the durability that the object must reach
// before its publication is acknowledged. The highest level of all its commits counts.
type CommitItem struct {
	Reservation tier.ReservationID
	Part        int // index into the layout's parts
	ChunkFirst  int
	Digests     []uint64   // the client's digest of each chunk
	CRC32       bool       // Digests are CRC-32, see gpuipc.Device.Checksums
	Src         gpuipc.Ref // exactly the bytes of these chunks
	Level       tier.Level // LevelDefault = the store's default

	own bool // Src is memory of the store, so Digests need no check
}

// Committed answers a commit.
type Committed struct {
	// Published says that this commit completed the last rank, so that lookups find the object.
	Published bool
	Object    tier.Want // the published object
	// Durable must be awaited before a published object is acknowledged. It is nil if only
	// LevelMemory was requested, or if there is no lower tier.
	Durable *move.Durable
}
