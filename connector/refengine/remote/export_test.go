package remote

import "github.com/spliced-kv/spliced/connector/refengine"

// FromSaved says whether the source of l composes from a checkpoint that the
// daemon holds.
func FromSaved(l refengine.Leases) bool { return l.(*leases).src.saved != nil }
