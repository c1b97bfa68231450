package prefixcache

// oldest is a heap of nodes, the least recently used first.
type oldest[N any] struct {
	nodes []N
	used  func(N) uint64
}

func (o *oldest[N]) Len() int           { return len(o.nodes) }
func (o *oldest[N]) Less(i, j int) bool { return o.used(o.nodes[i]) < o.used(o.nodes[j]) }
func (o *oldest[N]) Swap(i, j int)      { o.nodes[i], o.nodes[j] = o.nodes[j], o.nodes[i] }
func (o *oldest[N]) Push(x any)         { o.nodes = append(o.nodes, x.(N)) }
func (o *oldest[N]) Pop() any {
	n := o.nodes[len(o.nodes)-1]
	o.nodes = o.nodes[:len(o.nodes)-1]
	return n
}
