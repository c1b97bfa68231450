package plan

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Store has the methods that a session calls on the store with its leases. They may be
// called concurrently. This package holds none of its locks when it calls them.
type Store interface {
	// Geometry returns the geometry of the scope's profile. The error is ErrInvalid if an
	// id of the scope does not exist.
	Geometry(s Scope) (*Geometry, error)
	// On returns the device that the leases are on, nil if the session has none of them.
	// The error is ErrInvalid if they are on several devices.
	On(leases []tier.LeaseID) (*Device, error)
	// Hold resolves leases of the scope and keeps their objects in place: all of them or
	// none. The error is ErrGone if one is not an active lease of this session and tenant. It
	// is ErrInvalid if one is of another profile or rank, or if they are on several devices.
	Hold(s Scope, leases []tier.LeaseID) (*Held, error)
	// Admit checks that the session may open another buffer in addition to the given number
	// of buffers. The error is ErrBusy if it has too many buffers and leases together.
	Admit(buffers int) error
	// NewID returns a new id from the sequence of leases, for a buffer.
	NewID() tier.LeaseID
	// Claim allocates bytes in the private pool of a device, charged to the tenant. It
	// fails with ErrFull and ErrQuota as the reservation of a checkpoint does.
	Claim(s Scope, on *Device, bytes int64) (*Claimed, error)
}

// Held is the result of Hold. The objects stay in place until Release, which is called
// once.
type Held struct {
	On      *Device  // nil if there are no leases
	Sources []Source // in the order of the leases
	Release func()
}

// Source is one rank's share of a leased object.
type Source struct {
	tier.Name
	Spec       profile.SegmentSpec // segments
	Begin, End int                 // segments: the interior; checkpoints: the rows stored
	Parts      *PartMap            // segments: the layout if packed; nil = not packed
	Share      gpuipc.Ref
	Ancestors  []Source // checkpoints: their ancestors, from the root
}

// Claimed is memory that is valid until Release, which is called once.
type Claimed struct {
	Memory  gpuipc.Ref
	Release func()
}

// share is a source or an ancestor and its layout. The zero value is none.
type share struct {
	name       tier.Name
	begin, end int // as in Source
	parts      *PartMap
	ref        gpuipc.Ref
}

// share returns a source with its layout.
func (g *Geometry) share(src *Source) share {
	out := share{name: src.Name, begin: src.Begin, end: src.End, ref: src.Share}
	switch {
	case src.Parts != nil:
		out.parts = src.Parts
	case src.Kind == 0:
		out.parts = g.SegmentParts(src.End - src.Begin)
	default:
		out.parts = g.NodeParts(src.Kind, src.End-src.Begin)
	}
	return out
}

// part returns the bytes and the layout of one part (a tensor) of the share. It panics if
// the share has no such part in memory.
func (h *share) part(layer int, kind profile.PartKind) (gpuipc.Ref, profile.Part) {
	part, ok := h.parts.Part(layer, kind)
	if !ok {
		panic(fmt.Sprintf("plan: %v has no part %d of layer %d", h.name, kind, layer))
	}
	ref := h.ref.Slice(part.Off, part.Len)
	for _, e := range ref.Extents {
		if e.Off < 0 {
			panic(fmt.Sprintf("plan: part %d of layer %d of %v is not in memory", kind, layer, h.name))
		}
	}
	return ref, part
}
