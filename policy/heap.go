package policy

// ordering compares the elements of a heap. The method before must be a strict order. The
// heap calls the method moved with the new position of an element.
type ordering[T any] interface {
	before(a, b T) bool
	moved(x T, pos int32)
}

// push adds an element to a heap.
func push[T any, O ordering[T]](by O, heap []T, x T) []T {
	heap = append(heap, x)
	fix(by, heap, int32(len(heap)-1))
	return heap
}

// take removes the element at pos. It does not call moved for that element.
func take[T any, O ordering[T]](by O, heap []T, pos int32) []T {
	last := int32(len(heap) - 1)
	x := heap[last]
	heap = heap[:last]
	if pos != last {
		heap[pos] = x
		fix(by, heap, pos)
	}
	return heap
}

// fix moves the element at pos up or down to its position.
func fix[T any, O ordering[T]](by O, heap []T, pos int32) {
	x := heap[pos]
	for pos > 0 && by.before(x, heap[(pos-1)/2]) {
		parent := (pos - 1) / 2
		heap[pos] = heap[parent]
		by.moved(heap[pos], pos)
		pos = parent
	}
	for child := 2*pos + 1; int(child) < len(heap); child = 2*pos + 1 {
		if int(child+1) < len(heap) && by.before(heap[child+1], heap[child]) {
			child++
		}
		if !by.before(heap[child], x) {
			break
		}
		heap[pos] = heap[child]
		by.moved(heap[pos], pos)
		pos = child
	}
	heap[pos] = x
	by.moved(x, pos)
}
