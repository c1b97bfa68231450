package tiering

import "time"

// deadline is when a lease expires or a fill is given up. It is a field of what
// it ends.
type deadline struct {
	at    time.Time
	order uint64 // between equal times, so that a run can be replayed
	place int    // in deadlines, counted from 1; 0 = not there

	// One of these.
	lease     *lease
	object    *object
	promotion *promotion
}

// deadlines is a heap with the next one first. Adding one that is later than all
// others, the common case, is O(1), the rest O(log n). Guarded by the store's
// lock.
type deadlines struct{ heap []*deadline }

// first is nil when there is none.
func (h *deadlines) first() *deadline {
	if len(h.heap) == 0 {
		return nil
	}
	return h.heap[0]
}

func (h *deadlines) add(d *deadline) {
	h.heap = append(h.heap, d)
	h.up(len(h.heap) - 1)
}

// remove takes out d, if it is there.
func (h *deadlines) remove(d *deadline) {
	if d.place == 0 {
		return
	}
	i, last := d.place-1, len(h.heap)-1
	d.place = 0
	moved := h.heap[last]
	h.heap[last] = nil
	h.heap = h.heap[:last]
	if i == last {
		return
	}
	h.heap[i] = moved
	h.down(i)
	h.up(moved.place - 1)
}

func (d *deadline) before(o *deadline) bool {
	if d.at.Equal(o.at) {
		return d.order < o.order
	}
	return d.at.Before(o.at)
}

func (h *deadlines) up(i int) {
	d := h.heap[i]
	for i > 0 && d.before(h.heap[(i-1)/2]) {
		h.set(i, h.heap[(i-1)/2])
		i = (i - 1) / 2
	}
	h.set(i, d)
}

func (h *deadlines) down(i int) {
	d := h.heap[i]
	for {
		child := 2*i + 1
		if child >= len(h.heap) {
			break
		}
		if child+1 < len(h.heap) && h.heap[child+1].before(h.heap[child]) {
			child++
		}
		if !h.heap[child].before(d) {
			break
		}
		h.set(i, h.heap[child])
		i = child
	}
	h.set(i, d)
}

func (h *deadlines) set(i int, d *deadline) {
	h.heap[i] = d
	d.place = i + 1
}
