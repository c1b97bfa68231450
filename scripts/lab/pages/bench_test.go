package pages

import "testing"

// A request of 11 chunks comes and one goes, in a pool that is short of room.
func BenchmarkAdmit(b *testing.B) {
	c := readCorpus(b)
	requests := c.requests(lists[0].read(), false)
	const resident = 75
	for _, v := range variants {
		if v.own {
			continue
		}
		b.Run("rules="+v.name, func(b *testing.B) {
			v.rules.BlockTokens = listBlock
			p := newPool(b, 4000, v.rules)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if i >= resident {
					p.Release(RequestID(i - resident))
				}
				q := requests[i%len(requests)]
				if v.order {
					q = p.Order(q)
				}
				if _, err := p.Admit(RequestID(i), q); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}
