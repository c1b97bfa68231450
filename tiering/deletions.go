package tiering

import (
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// beginDeletionLocked starts to remove a name from the lower tier. The first result reports
// whether the lower tier has the name. The second result reports whether the name is being
// written; then it is removed again after the write.
func (wr *writes) beginDeletionLocked(n tier.Name) (below, coming bool) {
	if wr.cfg.Lower == nil {
		return false, false
	}
	below = wr.noteRemovalLocked(n)
	wr.objects.Below.Deleting[n]++
	known := false // an earlier removal of the name exists and waits for the last of its writes
	for _, o := range wr.byName[n] {
		w := writeOf(o)
		known, coming = known || w.removed, coming || !w.removed
		w.removed = true
	}
	if coming && !known {
		wr.objects.Below.Deleting[n]++
	}
	return below, coming
}

// noteRemovalLocked records that an operator removed an entry of the lower tier, so that
// later misses report that reason. It reports whether the lower tier has the entry.
func (wr *writes) noteRemovalLocked(n tier.Name) (held bool) {
	if wr.objects.Below.Deleting[n] > 0 {
		return false
	}
	e := wr.objects.Below.Entry(n)
	if e == nil {
		return false
	}
	if p := wr.registered(e.Fingerprint); p != nil {
		wr.objects.Names.Ghosts.Note(ghost.Entry{Key: n.Key, Profile: p.ID, Tenant: e.Tenant, Reason: tier.ReasonRemoved, Tokens: uint32(e.HitTokens())})
	}
	return true
}

// endDeletion ends the removal of a name from the lower tier.
func (wr *writes) endDeletion(n tier.Name) {
	wr.mu.Lock()
	if wr.objects.Below.Deleting[n]--; wr.objects.Below.Deleting[n] == 0 {
		delete(wr.objects.Below.Deleting, n)
		wr.kickLocked() // the next write of this name may be waiting
	}
	wr.mu.Unlock()
	wr.launch()
}
