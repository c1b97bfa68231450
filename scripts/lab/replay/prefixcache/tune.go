package prefixcache

import "github.com/spliced-kv/spliced/policy/radix"

// history records whole requests and stores their shared prefixes once.
type history struct {
	tokens *radix.Tree
	served []served
}

type served struct {
	leaf  radix.Node
	input int // symbols of the input; the others are output
}

func newHistory() history { return history{tokens: radix.New()} }

func (h *history) add(whole []uint32, input int) {
	h.served = append(h.served, served{h.tokens.Insert(whole).Leaf, input})
}

// each calls do for the remembered requests, in order.
func (h *history) each(do func(whole []uint32, input int)) {
	var whole []uint32
	for _, s := range h.served {
		whole = h.tokens.AppendPrefix(whole[:0], s.leaf)
		do(whole, s.input)
	}
}

// tune replays the recorded requests once with each alpha, and selects the alpha that saved the
// most work over the last tunedOver requests. Of equally good alphas it selects the lowest.
func (c *Marconi) tune() {
	var caches [tunedAlphas]*Marconi
	var saved [tunedAlphas]float64
	for i := range caches {
		static := c.options
		static.Alpha, static.Bootstrap = float64(i)/10, 0
		caches[i] = NewMarconi(c.Config, static)
	}
	left := len(c.log.served)
	c.log.each(func(whole []uint32, input int) {
		for i, cache := range caches {
			if hit := cache.serve(cache, whole, input); left <= tunedOver {
				saved[i] += c.Shape.FLOPs(hit.Tokens)
			}
		}
		left--
	})
	best := 0
	for i := range saved {
		if saved[i] > saved[best] {
			best = i
		}
	}
	c.options.Alpha, c.tuned, c.log = float64(best)/10, true, newHistory()
}
