package deadline

import (
	"slices"
	"testing"
	"time"
)

func TestDeadlinesComeInOrder(t *testing.T) {
	start := time.Unix(1000, 0)
	var h Heap[int]
	var all []*Deadline[int]
	for i := range 500 {
		d := &Deadline[int]{At: start.Add(time.Duration(i * 7919 % 50)), Order: uint64(i), Of: i} // many at the same time
		all = append(all, d)
		h.Add(d)
	}
	for i := 0; i < len(all); i += 3 {
		h.Remove(all[i])
		h.Remove(all[i]) // once more changes nothing
	}
	var want []*Deadline[int]
	for i, d := range all {
		if d.Set() != (i%3 != 0) {
			t.Fatalf("deadline %d: held is %v", i, d.Set())
		}
		if d.Set() {
			want = append(want, d)
		}
	}
	if h.Len() != len(want) {
		t.Fatalf("%d deadlines held, want %d", h.Len(), len(want))
	}
	slices.SortFunc(want, func(a, b *Deadline[int]) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	for i, d := range want {
		if got := h.First(); got != d || d.slot != 1 {
			t.Fatalf("number %d: got that of %d, want %d", i, got.Of, d.Of)
		}
		h.Remove(d)
	}
	if h.First() != nil {
		t.Fatal("something is left")
	}
}
