// Package deadline has a heap of deadlines, earliest first. It has no lock, clock or
// timer: its owner guards the heap and polls it.
package deadline

import "time"

// Deadline is the time at which something ends. A value that can expire has a Deadline as
// a field. The zero Deadline is in no heap.
type Deadline[T any] struct {
	At    time.Time
	Order uint64 // tie-breaker between equal times, so that a run can be replayed
	Of    T      // what ends

	slot int // index in the heap plus 1; 0 = not in a heap
}

// Set reports whether d is in a heap.
func (d *Deadline[T]) Set() bool { return d.slot > 0 }

func (d *Deadline[T]) before(o *Deadline[T]) bool {
	if d.At.Equal(o.At) {
		return d.Order < o.Order
	}
	return d.At.Before(o.At)
}

// Heap is a heap of deadlines. Adding a deadline that is later than all others, the common
// case, takes O(1); other changes take O(log n). The zero Heap is empty.
type Heap[T any] struct{ heap []*Deadline[T] }

// Len returns the number of deadlines.
func (h *Heap[T]) Len() int { return len(h.heap) }

// First returns the earliest deadline; nil if there is none.
func (h *Heap[T]) First() *Deadline[T] {
	if len(h.heap) == 0 {
		return nil
	}
	return h.heap[0]
}

// Add adds d, which must be in no heap. d must not change until it is removed.
func (h *Heap[T]) Add(d *Deadline[T]) {
	h.heap = append(h.heap, d)
	h.up(len(h.heap) - 1)
}

// Remove removes d, if it is in the heap.
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
