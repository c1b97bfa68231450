package tier

import (
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Name is what an object is known by in every tier. The zero Name is none.
type Name struct {
	Kind CheckpointKind // 0 = segment
	Key  [32]byte       // segment key or prefix hash
}

// String names an object in messages.
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

// LayoutOf is one rank's share of an object of a kind (0 = segment) that holds n tokens.
// The error wraps profile.ErrInvalid: no object of this kind and profile is packed so.
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

// Known says that a number is that of a kind, or 0 for a segment, whose objects a
// profile may have.
func (k CheckpointKind) Known(p *profile.Profile) bool {
	return k <= Spliced || k == Rows && p.KeepsRows()
}

// Entry is what a tier knows of an object without I/O.
type Entry struct {
	Name
	Fingerprint profile.Fingerprint
	Tenant      TenantID            // 0 = a tenant that is not configured now: nobody's hit
	Spec        profile.SegmentSpec // segments
	Packed      profile.Packed      // segments: how their packed parts are laid out
	Begin, End  int                 // segments: the interior; checkpoints: rows held
	Parent      Name                // checkpoints: the node this one extends, in the same tier
	Children    int                 // checkpoints: that extend this one in the same tier
	Bytes       int64               // what its tenant is charged for the entry, to the byte
	Level       Level               // LevelLogged or LevelSynced
	Generation  uint64              // tells this entry from an earlier or later one of the same name
}

// HitTokens is what a hit of the entry saves: the interior of a segment, all
// tokens that a checkpoint covers.
func (e *Entry) HitTokens() int {
	if e.Kind == 0 {
		return e.End - e.Begin
	}
	return e.End
}

// Object describes a published segment or checkpoint to a Tier. It must not be
// written; Shares and their memory are valid until done, the rest for ever.
type Object struct {
	Key       [32]byte // segment key or prefix hash
	Kind      CheckpointKind
	Profile   *profile.Profile
	Tenant    TenantID
	Publisher string
	Created   time.Time

	Spec   profile.SegmentSpec // segments (Kind 0)
	Tokens []uint32            // segments: the token ids
	Hash   profile.SegmentHash // of these, or zero
	Packed profile.Packed      // segments: how their packed parts are laid out

	Begin, End int  // checkpoints: rows held
	Parent     Name // checkpoints: the node this one extends; zero = none

	Shares []Share // by rank
}

// Layout is that of each rank's share.
func (o *Object) Layout() (profile.Layout, error) {
	return LayoutOf(o.Profile, o.Kind, o.End-o.Begin, o.Packed)
}

// Share is one rank's bytes and the digests of their chunks, part by part.
type Share struct {
	Ref     gpuipc.Ref
	Digests []uint64
}

// Content is what a tier keeps beside an object's bytes.
type Content struct {
	Publisher string
	Tokens    []uint32   // segments: the token ids
	Digests   [][]uint64 // by rank, of each chunk of each part
}
