package policy

// order is an indexed heap of objects, lowest rank first. Objects of equal rank are in the
// order in which they were last ranked. Each object has a place in one slice, so that a
// policy keeps its own data in parallel slices. An object takes 32 bytes, plus 4 in the
// heap and about 20 in the map. The map and the slices have no pointers, so that the
// garbage collector does not scan large pools.
//
// A suspended object is not in the heap and keeps its rank.
type order struct {
	at    map[ID]int32
	nodes []node
	heap  []int32
	front []int32 // scratch of the method first: a heap of positions in heap
	free  int32   // first unused place, -1 = none; pos of an unused place is the next one
	turns uint64
}

type node struct {
	id   ID
	rank float64
	turn uint64 // value of turns at the last ranking
	pos  int32  // index in heap, outside = suspended; for an unused place, the next unused place
}

const outside = -1

func newOrder() order { return order{at: map[ID]int32{}, free: -1} }

func (o *order) len() int { return len(o.at) }

// find returns the place of an id.
func (o *order) find(id ID) (int32, bool) {
	i, held := o.at[id]
	return i, held
}

// add gives a new id a place and the lowest rank.
func (o *order) add(id ID) int32 {
	i := o.free
	if i >= 0 {
		o.free = o.nodes[i].pos
	} else {
		i = int32(len(o.nodes))
		o.nodes = append(o.nodes, node{})
	}
	o.turns++
	o.nodes[i] = node{id: id, turn: o.turns}
	o.at[id] = i
	o.heap = push(o, o.heap, i)
	return i
}

// rank sets the rank of an object and puts it after all objects of the same rank.
func (o *order) rank(i int32, rank float64) {
	o.turns++
	o.nodes[i].rank, o.nodes[i].turn = rank, o.turns
	if pos := o.nodes[i].pos; pos != outside {
		fix(o, o.heap, pos)
	}
}

// rerank changes the rank of an object. Its order among equal ranks stays.
func (o *order) rerank(i int32, rank float64) {
	o.nodes[i].rank = rank
	if pos := o.nodes[i].pos; pos != outside {
		fix(o, o.heap, pos)
	}
}

func (o *order) remove(id ID) {
	i, held := o.at[id]
	if !held {
		return
	}
	o.suspend(i)
	delete(o.at, id)
	o.nodes[i] = node{pos: o.free}
	o.free = i
}

func (o *order) suspend(i int32) {
	pos := o.nodes[i].pos
	if pos == outside {
		return
	}
	o.heap = take(o, o.heap, pos)
	o.nodes[i].pos = outside
}

func (o *order) resume(i int32) {
	if o.nodes[i].pos == outside {
		o.heap = push(o, o.heap, i)
	}
}

// listed reports whether a place has an object that is not suspended.
func (o *order) listed(i int32) bool {
	pos := o.nodes[i].pos
	return pos != outside && int(pos) < len(o.heap) && o.heap[pos] == i
}

// first returns the object of lowest rank that evictable accepts. It takes O(1) without
// refusals, and O(k log k) after k refusals. The heap is unchanged.
func (o *order) first(evictable func(ID) bool) (ID, bool) {
	o.front = o.front[:0]
	if len(o.heap) > 0 {
		o.front = append(o.front, 0)
	}
	for len(o.front) > 0 {
		pos := o.front[0]
		o.front = take(front{o}, o.front, 0)
		if id := o.nodes[o.heap[pos]].id; evictable(id) {
			return id, true
		}
		for child := 2*pos + 1; child <= 2*pos+2 && int(child) < len(o.heap); child++ {
			o.front = push(front{o}, o.front, child)
		}
	}
	return 0, false
}

func (o *order) before(i, j int32) bool {
	a, b := &o.nodes[i], &o.nodes[j]
	return a.rank < b.rank || a.rank == b.rank && a.turn < b.turn
}

func (o *order) moved(i, pos int32) { o.nodes[i].pos = pos }

// front orders positions in the heap of an order.
type front struct{ *order }

func (f front) before(p, q int32) bool { return f.order.before(f.heap[p], f.heap[q]) }

func (front) moved(int32, int32) {}
