package checkpoint

import (
	"maps"
	"slices"
)

// maxCells bounds a histogram. At γ = 0.99 a cell that was hit once weighs less than a
// millionth of the newest hit after 1,400 more hits, so dropping old cells loses no weight
// that matters.
const maxCells = 4096

// Histogram counts values with exponential weights: the weight of each hit is γ times the
// weight of the next hit (Theorem 4 of the Sparse Prefix Caching paper). Add takes constant
// amortized time.
type Histogram struct {
	gamma float64
	unit  float64 // weight of the newest hit; grows so that cells need not shrink
	cells map[int]float64
}

// NewHistogram returns an empty histogram; 0 < gamma <= 1.
func NewHistogram(gamma float64) *Histogram {
	return &Histogram{gamma: gamma, unit: 1, cells: map[int]float64{}}
}

// Add counts a value as the newest hit.
func (h *Histogram) Add(value int) {
	h.unit /= h.gamma
	h.cells[value] += h.unit
	if h.unit > 1e100 || len(h.cells) > maxCells {
		h.rescale()
	}
}

// rescale sets the weight of the newest hit to one. In a large histogram it also drops the
// cells with the least weight.
func (h *Histogram) rescale() {
	for value, w := range h.cells {
		h.cells[value] = w / h.unit
	}
	h.unit = 1
	for least := 1e-6; len(h.cells) > maxCells/2; least *= 2 {
		maps.DeleteFunc(h.cells, func(_ int, w float64) bool { return w < least })
	}
}

// Empty reports whether nothing was counted.
func (h *Histogram) Empty() bool { return len(h.cells) == 0 }

// Law returns each value above zero with its weight, where the newest hit
// weighs one.
func (h *Histogram) Law() Law { return lawOf(h.cells, 1/h.unit) }

func (h *Histogram) clone() *Histogram {
	return &Histogram{gamma: h.gamma, unit: h.unit, cells: maps.Clone(h.cells)}
}

func lawOf(cells map[int]float64, scale float64) Law {
	var l Law
	for _, value := range slices.Sorted(maps.Keys(cells)) {
		if value > 0 {
			l.Depth = append(l.Depth, value)
			l.Weight = append(l.Weight, cells[value]*scale)
		}
	}
	return l
}
