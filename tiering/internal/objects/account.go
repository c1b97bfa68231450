package objects

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy"
)

// Accounts charges objects to their pools and tenants, counts their users, and frees the
// memory that nobody uses.
type Accounts struct {
	table    *policy.Table[Object]
	names    *Names
	memory   *Memory
	policies *Policies
}

// settle updates the accounts after a count of o has changed, and frees the memory of o
// once o is neither linked nor in use.
func (acc *Accounts) settle(o *Object) {
	next := o.Classify()
	if next != o.Class {
		o.Pool.Bytes[o.Class] -= o.PageBytes
		o.Pool.Bytes[next] += o.PageBytes
		if o.Class == ClassIdle {
			acc.pin(o, 1)
		} else if next == ClassIdle {
			acc.pin(o, -1)
		}
		if next == ClassDemoting {
			o.Tenant.Leaving += o.Charge()
		} else if o.Class == ClassDemoting {
			o.Tenant.Leaving -= o.Charge()
		}
		o.Class = next
	}
	if checked {
		acc.check(o)
	}
	if next == ClassIdle && !o.Linked() {
		acc.free(o)
	}
}

// pin adds d to the pins of o. If o thereby becomes pinned or unpinned, it does the same
// to the parent, and so on: a node cannot be evicted before its descendants.
func (acc *Accounts) pin(o *Object, d int) {
	for ; o != nil; o = o.Parent {
		was := o.Pins
		o.Pins += d
		if (was == 0) == (o.Pins == 0) {
			return
		}
		d = 1
		if o.Pins == 0 {
			d = -1
		}
		if o.InHBM() {
			o.Profile.Held += d
		}
		o.Pool.Pinned += int64(d) * o.PageBytes
		o.Tenant.Pinned += int64(d) * o.Charge()
		if o.InHBM() {
			o.Tenant.PinnedAbove += int64(d) * o.Charge()
		}
		if o.Published() {
			o.Refused = false
			acc.policies.Rank(o)
		}
	}
}

// Book starts to account for the memory of an object.
func (acc *Accounts) Book(o *Object) {
	if o.Phase == described {
		o.on(evBook)
	}
	o.ID = acc.table.Add(o)
	if !o.InHBM() {
		o.Profile.Held++
	}
	o.Pool.Objects++
	o.Pool.Bytes[ClassIdle] += o.PageBytes
	o.Pool.Used += o.PageBytes
	o.Tenant.Used[o.Pool.Number] += o.Charge()
}

// Resize changes the size of an object. It adds the parameter pages to the bytes that the
// object's pages take, and to the accounts of its pool and tenant. It adds the parameter bytes
// to Object.Bytes, the bytes of its layouts.
func (acc *Accounts) Resize(o *Object, pages, bytes int64) {
	if o.Cleaning == Candidate || o.Ahead {
		panic(fmt.Sprintf("objects: %s changes its size while it is dirty or read ahead", o.Name()))
	}
	o.PageBytes += pages
	o.Bytes += bytes
	o.Pool.Used += pages
	o.Pool.Bytes[o.Class] += pages
	o.Tenant.Used[o.Pool.Number] += pages
	if o.Pins > 0 {
		o.Pool.Pinned += pages
		o.Tenant.Pinned += pages
	}
}

func (acc *Accounts) free(o *Object) {
	o.on(evFree)
	if o.InHBM() {
		o.Pool.Device.free(o)
	} else {
		for i := range o.Shares {
			acc.memory.free(o.Shares[i].Extents)
		}
	}
	if !o.InHBM() {
		o.Profile.Held--
	}
	o.Pool.Objects--
	o.Pool.Bytes[ClassIdle] -= o.PageBytes
	o.Pool.Used -= o.PageBytes
	o.Tenant.Used[o.Pool.Number] -= o.Charge()
	acc.table.Remove(o.ID)
}

// check panics if an object contradicts its phase. It runs only under the build tag invariants.
func (acc *Accounts) check(o *Object) {
	found := !o.InHBM() && acc.names.Find(o.Label(), o.Profile, o.Tenant) == o || o.InHBM() && o.Resident != nil
	for _, c := range []struct {
		holds bool
		what  string
	}{
		{o.Phase != described && o.Phase != freed, "has no memory"},
		{o.Linked() == found, "is not found as its phase says"},
		{o.Phase != filling || o.Fill != nil, "is filled by nobody"},
		{o.Phase != Whole || o.Fill == nil, "is filled although it is whole"},
		{o.Phase == Whole || o.Ranked == Absent, "may be chosen to leave although it is not whole"},
		{o.InTenant == o.Ranked || o.InTenant == Absent && (o.Tenant.evictionOf(o) == nil || o.Tenant.behind != nil), "stands in its tenant's policy as it does not in its pool's"},
		{o.Linked() || o.Children == 0 && o.Parent == nil, "hangs in a chain although no lookup finds it"},
		{o.Class == o.Classify(), "is accounted for as something else"},
		{(o.Pins > 0) == (o.Class != ClassIdle) || o.Children > 0, "is pinned for no reason, or not although it is used"},
		{o.Leases >= 0 && o.Expired >= 0 && o.Ops >= 0 && o.Pins >= 0, "is let go of by more than hold it"},
	} {
		if !c.holds {
			panic(fmt.Sprintf("objects: %s, which is %v, %s", o.Name(), o.Phase, c.what))
		}
	}
}

// free frees the memory of a copy.
func (d *Device) free(o *Object) {
	for i := range o.Shares {
		whole := slices.Clone(o.Shares[i].Extents)
		for k := range whole {
			whole[k].Len = d.PagesOf(whole[k].Len)
		}
		d.Pages.Free(whole)
	}
}
