package tier

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Name identifies an object in every tier. The zero Name is none.
type Name struct {
	Kind CheckpointKind // 0 = segment
	Key  [32]byte       // segment key or prefix hash
}

// String formats the name for messages.
func (n Name) String() string {
	switch n.Kind {
	case 0:
		return fmt.Sprintf("segment %x", n.Key[:8])
	case Spliced:
		return fmt.Sprintf("spliced checkpoint %x", n.Key[:8])
	case Rows:
		return fmt.Sprintf("rows %x", n.Key[:8])
	}
	return fmt.Sprintf("checkpoint %x", n.Key[:8])
}

// LayoutOf returns the layout of one rank's share of an object of a kind (0 = segment) with n
// tokens. It returns profile.ErrInvalid if the parameter packed cannot be the packed layout of
// such an object.
func LayoutOf(p *profile.Profile, kind CheckpointKind, n int, packed profile.Packed) (profile.Layout, error) {
	switch {
	case kind == 0:
		return p.PackedLayout(n, packed)
	case packed != "":
		return profile.Layout{}, fmt.Errorf("a packed checkpoint: %w", profile.ErrInvalid)
	case kind == Rows:
		return p.EdgeLayout(n), nil
	}
	return p.CheckpointLayout(n), nil
}

// Known reports whether k is 0 (a segment) or a checkpoint kind that the profile allows.
func (k CheckpointKind) Known(p *profile.Profile) bool {
	return k <= Spliced || k == Rows && p.KeepsRows()
}

// Entry is a tier's record of an object, which the tier has in memory.
type Entry struct {
	Name
	Fingerprint profile.Fingerprint
	Tenant      TenantID            // 0 = a tenant that is not configured now: no hit for any tenant
	Spec        profile.SegmentSpec // segments
	Packed      profile.Packed      // segments: layout of their packed parts
	Begin, End  int                 // segments: the interior; checkpoints: the rows stored
	Parent      Name                // checkpoints: the node this one extends, in the same tier
	Children    int                 // checkpoints: number of those that extend this one in the same tier
	Bytes       int64               // bytes charged to the tenant, exact
	Level       Level               // LevelLogged or LevelSynced
	Generation  uint64              // differs between successive entries of the same name
}

// HitTokens returns the tokens that a hit saves: the interior of a segment, or all tokens
// that a checkpoint covers.
func (e *Entry) HitTokens() int {
	if e.Kind == 0 {
		return e.End - e.Begin
	}
	return e.End
}

// Object describes a published segment or checkpoint to a Tier, which must not modify it. The
// field Shares and the memory that it names are valid until the function done of the write is
// called (see Write.Start). The other fields stay valid.
type Object struct {
	Key       [32]byte // segment key or prefix hash
	Kind      CheckpointKind
	Profile   *profile.Profile
	Tenant    TenantID
	Publisher string
	Created   time.Time

	Spec   profile.SegmentSpec // segments (Kind 0)
	Tokens []uint32            // segments: the token ids
	Hash   profile.SegmentHash // rolling hash of Tokens; zero = none
	Packed profile.Packed      // segments: layout of their packed parts

	Begin, End int  // checkpoints: the rows stored
	Parent     Name // checkpoints: the node this one extends; zero = none

	Shares []Share // by rank
}

// Layout returns the layout of each rank's share.
func (o *Object) Layout() (profile.Layout, error) {
	return LayoutOf(o.Profile, o.Kind, o.End-o.Begin, o.Packed)
}

// Share is one rank's bytes and the digests of their chunks, part by part.
type Share struct {
	Ref     gpuipc.Ref
	Digests []uint64
}

// Content is the data that a tier stores in addition to an object's bytes.
type Content struct {
	Publisher string
	Tokens    []uint32   // segments: the token ids
	Digests   [][]uint64 // by rank, one per chunk of each part
}
