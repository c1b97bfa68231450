package usage

import (
	"cmp"
	"slices"

	"github.com/spliced-kv/spliced/daemon/share"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// ringBytes is the memory in bytes for individual requests: about 10,000 with eight segments each.
const ringBytes = 8 << 20

// writer identifies a group of requests that are kept separately.
type writer struct {
	tenant     tier.TenantID
	unverified bool
}

// rings keeps the latest requests, in at most ringBytes in total. To make space, it drops the
// oldest request of the writer that uses most bytes, so that no writer displaces others.
type rings struct {
	of    map[writer]*ring
	bytes int
}

// ring has the requests of one writer.
type ring struct {
	list  []*Request // from index head on, in ascending order of numbers
	head  int
	bytes int
}

func (r *rings) add(q *Request) {
	if r.of == nil {
		r.of = map[writer]*ring{}
	}
	w := writer{q.Who.Tenant, q.Unverified}
	if r.of[w] == nil {
		r.of[w] = &ring{}
	}
	r.bytes += r.of[w].add(q)
	for r.bytes > ringBytes {
		var largest *ring
		for _, one := range r.of {
			if largest == nil || one.bytes > largest.bytes {
				largest = one
			}
		}
		r.bytes -= largest.drop()
	}
}

// newest returns the latest requests for which pass returns true, at most limit, newest first.
func (r *rings) newest(limit int, pass func(*Request) bool) []*Request {
	lists := make([][]*Request, 0, len(r.of))
	for _, one := range r.of {
		var list []*Request
		for i := len(one.list) - 1; i >= one.head && len(list) < limit; i-- {
			if q := one.list[i]; pass(q) {
				list = append(list, q)
			}
		}
		lists = append(lists, list)
	}
	all := share.Merge(lists, limit)
	slices.SortFunc(all, func(a, b *Request) int { return cmp.Compare(b.Number, a.Number) })
	return all
}

func (r *rings) find(number uint64) (*Request, bool) {
	for _, one := range r.of {
		kept := one.list[one.head:]
		if i, ok := slices.BinarySearchFunc(kept, number, func(q *Request, n uint64) int { return cmp.Compare(q.Number, n) }); ok {
			return kept[i], true
		}
	}
	return nil, false
}

// add appends a request and returns the request's size in bytes.
func (r *ring) add(q *Request) int {
	r.list = append(r.list, q)
	n := sizeOf(q)
	r.bytes += n
	return n
}

// drop removes the oldest request and returns the request's size in bytes.
func (r *ring) drop() int {
	n := sizeOf(r.list[r.head])
	r.list[r.head] = nil
	r.bytes -= n
	if r.head++; r.head > len(r.list)/2 {
		r.list, r.head = slices.Delete(r.list, 0, r.head), 0
	}
	return n
}

// sizeOf returns the approximate memory of a request in bytes.
func sizeOf(q *Request) int {
	const fixed, span = 336, 48 // bytes of a Request and a Span, measured with unsafe.Sizeof and rounded up
	return fixed + span*cap(q.Spans) + 8*cap(q.Ways) + len(q.Name) + len(q.Who.Client)
}
