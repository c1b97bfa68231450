// Package deadline keeps deadlines with the next one first. It has no lock, no
// clock and no timer; its owner guards it and asks.
package deadline

import "time"

// Deadline is when something ends. It is a field of that; the zero Deadline is in
// no heap.
type Deadline[T any] struct {
	At    time.Time
	Order uint64 // between equal times, so that a run can be replayed
	Of    T      // what ends

	slot int // in the heap, counted from 1; 0 = not there
}

// Set reports whether a heap holds d.
func (d *Deadline[T]) Set() bool { return d.slot > 0 }

func (d *Deadline[T]) before(o *Deadline[T]) bool {
	if d.At.Equal(o.At) {
		return d.Order < o.Order
	}
	return d.At.Before(o.At)
}

// Heap holds deadlines. Adding one that is later than all others, the common case,
// is O(1), the rest O(log n). The zero Heap is empty.
type Heap[T any] struct{ heap []*Deadline[T] }

// Len is how many deadlines are held.
func (h *Heap[T]) Len() int { return len(h.heap) }

// First is the next deadline; nil when there is none.
func (h *Heap[T]) First() *Deadline[T] {
	if len(h.heap) == 0 {
		return nil
	}
	return h.heap[0]
}

// Add takes in d, which no heap holds and which does not change while it is held.
func (h *Heap[T]) Add(d *Deadline[T]) {
	h.heap = append(h.heap, d)
	h.up(len(h.heap) - 1)
}

// Remove takes out d, if it is there.
func (h *Heap[T]) Remove(d *Deadline[T]) {
	if d.slot == 0 {
		return
	}
	i, last := d.slot-1, len(h.heap)-1
	d.slot = 0
	moved := h.heap[last]
	h.heap[last] = nil
	h.heap = h.heap[:last]
	if i == last {
		return
	}
	h.heap[i] = moved
	h.down(i)
	h.up(moved.slot - 1)
}

func (h *Heap[T]) up(i int) {
	d := h.heap[i]
	for i > 0 && d.before(h.heap[(i-1)/2]) {
		h.set(i, h.heap[(i-1)/2])
		i = (i - 1) / 2
	}
	h.set(i, d)
}

func (h *Heap[T]) down(i int) {
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

func (h *Heap[T]) set(i int, d *Deadline[T]) {
	h.heap[i] = d
	d.slot = i + 1
}
