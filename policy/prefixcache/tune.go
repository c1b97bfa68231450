package prefixcache

import "github.com/spliced-kv/spliced/policy/radix"

// history remembers requests whole, what they share but once.
type history struct {
	tokens *radix.Tree
	served []served
}

type served struct {
	leaf  radix.Node
	input int // symbols, the rest is output
}

func newHistory() history { return history{tokens: radix.New()} }

func (h *history) add(whole []uint32, input int) {
	h.served = append(h.served, served{h.tokens.Insert(whole).Leaf, input})
}

// replay serves what was remembered to a cache.
func (h *history) replay(to Cache, each func(Hit)) {
	var whole []uint32
	for _, s := range h.served {
		whole = h.tokens.AppendPrefix(whole[:0], s.leaf)
		each(to.Serve(Request{Input: whole[:s.input], Output: whole[s.input:]}))
	}
}

// tune replays the bootstrap window for each alpha, once and never again. Of
// equal ones the lowest alpha is taken.
func (c *Marconi) tune() {
	most := -1.0
	for i := range tunedAlphas {
		alpha := float64(i) / 10
		if saved := c.savedWith(alpha); saved > most {
			most, c.options.Alpha = saved, alpha
		}
	}
	c.tuned = true
	c.log = newHistory()
}

// savedWith is the work that the last requests of the window would have been
// spared with a static alpha.
func (c *Marconi) savedWith(alpha float64) float64 {
	cache := NewMarconi(c.Config, MarconiOptions{Alpha: alpha, Quirks: c.options.Quirks})
	saved, left := 0.0, len(c.log.served)
	c.log.replay(cache, func(h Hit) {
		if left <= tunedOver {
			saved += c.Shape.FLOPs(h.Tokens)
		}
		left--
	})
	return saved
}
