package tiering

import (
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// aheadShare limits objects that were read ahead and are not used yet, including those in
// flight, to 1/aheadShare of a pool (a guess: a prompt's segments are far smaller). Wrong
// guesses therefore evict at most an eighth of a pool, its least valuable objects, and
// nothing that is leased.
const aheadShare = 8

// hintRows is the maximum number of recorded hits that one critical section handles.
const hintRows = 32

// hintReadAheadLocked records a hit of a match in the lower tier. It never waits.
func (pro *promotions) hintReadAheadLocked(n tier.Name, p *objects.Profile, t *objects.Tenant) {
	pro.hintAheadLocked(wanted{name: n, profile: p, tenant: t})
}

func (pro *promotions) hintAheadLocked(w wanted) {
	if !pro.cfg.ReadAhead {
		return
	}
	if !pro.hints.Add(w) {
		pro.counters.ReadAheadDropped++
	} else if pro.hints.Len() == 1 {
		pro.engine.Wake()
	}
}

// readAheadLocked starts promotions for some of the recorded hits, until a promotion is
// ready to run. It reports whether more hits are left.
func (pro *promotions) readAheadLocked() (more bool) {
	h := &pro.hints
	var far []wanted
	for n := 0; n < hintRows && h.Len() > 0 && !pro.engine.Waiting(); n++ {
		w := h.Take()
		if o := pro.objects.Names.Find(w.name, w.profile, w.tenant); pro.engine.Find(w.name) == nil && (o == nil || o.Phase == objects.Stripped) {
			if o == nil && pro.remote.farLocked(w.identity()) {
				far = append(far, w)
			} else {
				pro.promoteLocked(w)
			}
		}
	}
	pro.remote.seekAheadLocked(far)
	return h.Len() > 0
}

// readAheadRoomLocked reports whether the pool and the tenant have room to read the objects
// of some promotions ahead. A read-ahead is a guess, and must not evict what the tenant
// has.
func (pro *promotions) readAheadRoomLocked(nodes []*promotion) bool {
	var bytes, charge int64
	for _, p := range nodes {
		size := p.size()
		bytes, charge = bytes+size.PageBytes, charge+size.Charge()
	}
	first := nodes[0]
	if first.pool.AheadBytes+bytes <= first.pool.Budget/aheadShare && pro.objects.Quotas.Over(first.tenant, charge) <= 0 {
		return true
	}
	pro.counters.ReadAheadDropped++
	return false
}

// expectUseLocked starts a timeout for the first use of an object that was read ahead.
// After it an unused object no longer counts towards aheadShare. The object itself stays.
func (pro *promotions) expectUseLocked(o *objects.Object) {
	o.Until = deadline.Deadline[any]{At: pro.cfg.Now().Add(pro.cfg.FillTTL), Order: pro.leaseIDs.Add(1), Of: o}
	pro.objects.Deadlines.Add(&o.Until)
}
