package policy

// order is an indexed heap of objects, lowest rank first, equal ranks in order
// of their last ranking. Objects live in one slice and are named by place, so
// that a policy keeps its own data in slices beside it and a pool of 10^6
// objects gives the garbage collector a map and slices without pointers: 32
// bytes an object, plus 4 in the heap and about 20 in the map.
//
// A suspended object is out of the heap and keeps its rank.
type order struct {
	at    map[ID]int32
	nodes []node
	heap  []int32
	front []int32 // scratch of first: a heap of positions in heap
	free  int32   // head of the list of unused places through pos, -1 = none
	turns uint64
}

type node struct {
	id   ID
	rank float64
	turn uint64 // of the last ranking
	pos  int32  // in heap, outside = suspended; next unused place when unused
}

const outside = -1

func newOrder() order { return order{at: map[ID]int32{}, free: -1} }

func (o *order) len() int { return len(o.at) }

// find is the place of an id.
func (o *order) find(id ID) (int32, bool) {
	i, held := o.at[id]
	return i, held
}

// add gives an id that is not held a place, with the lowest rank.
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
	o.push(i)
	return i
}

// rank moves an object behind all of the same rank.
func (o *order) rank(i int32, rank float64) {
	o.turns++
	o.nodes[i].rank, o.nodes[i].turn = rank, o.turns
	if pos := o.nodes[i].pos; pos != outside {
		o.fix(pos)
	}
}

// rerank changes a rank and keeps the turn.
func (o *order) rerank(i int32, rank float64) {
	o.nodes[i].rank = rank
	if pos := o.nodes[i].pos; pos != outside {
		o.fix(pos)
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
	last := int32(len(o.heap) - 1)
	moved := o.heap[last]
	o.heap = o.heap[:last]
	o.nodes[i].pos = outside
	if pos != last {
		o.put(pos, moved)
		o.fix(pos)
	}
}

func (o *order) resume(i int32) {
	if o.nodes[i].pos == outside {
		o.push(i)
	}
}

// listed reports places that hold an object that is not suspended.
func (o *order) listed(i int32) bool {
	pos := o.nodes[i].pos
	return pos != outside && int(pos) < len(o.heap) && o.heap[pos] == i
}

// first is the lowest object that evictable accepts. Without refusals it is
// O(1); k refusals cost O(k log k), the heap stays as it is.
func (o *order) first(evictable func(ID) bool) (ID, bool) {
	o.front = o.front[:0]
	if len(o.heap) > 0 {
		o.front = append(o.front, 0)
	}
	for len(o.front) > 0 {
		pos := o.popFront()
		if id := o.nodes[o.heap[pos]].id; evictable(id) {
			return id, true
		}
		for child := 2*pos + 1; child <= 2*pos+2 && int(child) < len(o.heap); child++ {
			o.pushFront(child)
		}
	}
	return 0, false
}

func (o *order) before(i, j int32) bool {
	a, b := &o.nodes[i], &o.nodes[j]
	return a.rank < b.rank || a.rank == b.rank && a.turn < b.turn
}

func (o *order) put(pos, i int32) {
	o.heap[pos] = i
	o.nodes[i].pos = pos
}

func (o *order) push(i int32) {
	o.heap = append(o.heap, i)
	o.put(int32(len(o.heap)-1), i)
	o.fix(o.nodes[i].pos)
}

// fix moves what stands at a position up or down to where it belongs.
func (o *order) fix(pos int32) {
	i := o.heap[pos]
	for pos > 0 {
		parent := (pos - 1) / 2
		if !o.before(i, o.heap[parent]) {
			break
		}
		o.put(pos, o.heap[parent])
		pos = parent
	}
	for {
		child := 2*pos + 1
		if int(child) >= len(o.heap) {
			break
		}
		if int(child+1) < len(o.heap) && o.before(o.heap[child+1], o.heap[child]) {
			child++
		}
		if !o.before(o.heap[child], i) {
			break
		}
		o.put(pos, o.heap[child])
		pos = child
	}
	o.put(pos, i)
}

func (o *order) pushFront(pos int32) {
	o.front = append(o.front, pos)
	for at := len(o.front) - 1; at > 0; {
		parent := (at - 1) / 2
		if !o.before(o.heap[o.front[at]], o.heap[o.front[parent]]) {
			return
		}
		o.front[at], o.front[parent] = o.front[parent], o.front[at]
		at = parent
	}
}

func (o *order) popFront() int32 {
	top, last := o.front[0], len(o.front)-1
	o.front[0] = o.front[last]
	o.front = o.front[:last]
	for at := 0; ; {
		child := 2*at + 1
		if child >= last {
			return top
		}
		if child+1 < last && o.before(o.heap[o.front[child+1]], o.heap[o.front[child]]) {
			child++
		}
		if !o.before(o.heap[o.front[child]], o.heap[o.front[at]]) {
			return top
		}
		o.front[at], o.front[child] = o.front[child], o.front[at]
		at = child
	}
}
