package policy

import "testing"

func TestTableNeverGivesAnIDTwice(t *testing.T) {
	var table Table[int]
	given := map[ID]bool{}
	held := map[ID]*int{}
	for i := range 100 {
		v := new(int)
		id := table.Add(v)
		if given[id] {
			t.Fatalf("id %#x is given a second time", uint64(id))
		}
		given[id], held[id] = true, v
		if i%3 == 0 {
			table.Remove(id)
			delete(held, id)
		}
	}
	for id, v := range held {
		if table.Get(id) != v {
			t.Errorf("id %#x finds something else", uint64(id))
		}
	}
	n := 0
	for _, v := range table.Places() {
		if v != nil {
			n++
		}
	}
	if n != len(held) {
		t.Errorf("%d in the table, want %d", n, len(held))
	}
}
