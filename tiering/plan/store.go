package plan

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Store is what plans need of the store that has a session's leases. Its methods may
// run at once, and none is called under a lock of this package.
type Store interface {
	// Geometry is that of the scope's profile. ErrInvalid: the scope names what is
	// not there.
	Geometry(s Scope) (*Geometry, error)
	// On is the device that leases lie on, nil when the session has none of them.
	// ErrInvalid: some lie on another one.
	On(leases []tier.LeaseID) (*Device, error)
	// Hold finds what leases of the scope name and keeps it where it lies: all or
	// none. ErrGone: one is no live lease of this session and tenant. ErrInvalid: of
	// another profile or rank, or on different devices.
	Hold(s Scope, leases []tier.LeaseID) (*Held, error)
	// Admit tells whether the session may have a buffer beside so many others.
	// ErrBusy: with its leases they are as many as it may have.
	Admit(buffers int) error
	// NewID is an id from the sequence of leases.
	NewID() tier.LeaseID
	// Claim takes memory of the private pool of a device, which the tenant pays for.
	// ErrFull and ErrQuota as for checkpoints.
	Claim(s Scope, on *Device, bytes int64) (*Claimed, error)
}

// Held is what leases name. It stays where it is until Release, which is called once.
type Held struct {
	On      *Device  // nil without leases
	Sources []Source // as the leases
	Release func()
}

// Source is one rank's share of a leased object.
type Source struct {
	tier.Name
	Spec       profile.SegmentSpec // segments
	Begin, End int                 // segments: the interior; checkpoints: rows held
	Parts      *PartMap            // of segments; nil = as they are written
	Share      gpuipc.Ref
	Ancestors  []Source // checkpoints: those that it extends, from the root
}

// Claimed is memory that lasts until Release, which is called once.
type Claimed struct {
	Memory  gpuipc.Ref
	Release func()
}

// share is a source or an ancestor with where its parts lie. The zero value is none.
type share struct {
	name       tier.Name
	begin, end int // as of Source
	parts      *PartMap
	ref        gpuipc.Ref
}

// share finds where the parts of a source lie.
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

// part names one tensor to the device.
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
