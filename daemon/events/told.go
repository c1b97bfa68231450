package events

import (
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// told records what is published: a tree of blocks with their token ids, and the last block of each
// object. One goroutine uses it.
//
// Invariant: a block exists exactly while an object ends with it or with one of its descendants.
type told struct {
	block   int // tokens per block
	most    int64
	bytes   int64
	blocks  map[hash]*block
	objects map[tier.Want]object
}

// hash names a block within a profile and tenant (the scope). Only the value is sent.
type hash struct {
	scope uint32
	value uint64
}

// object is a published object: a chain of blocks that ends with last, or a segment at any
// position.
type object struct {
	last *block
	mid  *segment
}

type block struct {
	value    uint64
	scope    *scope
	parent   *block // nil = it begins a prompt
	tokens   []uint32
	children int // number of blocks whose parent is this block
	ends     int // number of objects that end with this block
}

// segment is a segment in the middle of prompts.
type segment struct {
	value      uint64
	scope      *scope
	tokens     []uint32
	head, tail int
	primer     profile.PrimerID
}

// scope is a profile and a tenant.
type scope struct {
	number  uint32
	topic   string
	profile *profile.Profile
	salt    []byte
	groups  []string // kinds of the groups: of the rows, then of the states
}

const (
	// blockBytes is the estimated memory of a block and its map entry, without the token ids.
	// objectBytes is the estimated memory of an object.
	blockBytes  = 160
	objectBytes = 120
)

func newTold(blockTokens int, most int64) *told {
	return &told{block: blockTokens, most: most, blocks: map[hash]*block{}, objects: map[tier.Want]object{}}
}

// groupsOf returns the kinds of a model's block groups. vLLM numbers and names them so.
func groupsOf(p *profile.Profile) (kinds []string) {
	var full, mla, window bool
	for _, i := range p.AttentionLayers() {
		switch p.Layer(i).Kind {
		case profile.KindFull:
			full = true
		case profile.KindMLA:
			mla = true
		case profile.KindWindow:
			window = true
		}
	}
	switch {
	case full:
		kinds = append(kinds, fullAttention)
	case mla:
		kinds = append(kinds, mlaAttention)
	case window:
		kinds = append(kinds, slidingWindow)
	}
	if len(p.LinearLayers()) > 0 {
		kinds = append(kinds, mamba)
	}
	return kinds
}

// chain returns the hashes of a prompt's whole blocks. A hash is the lower half of the prefix's
// name, in which the tenant's salt and the profile are hashed too.
func (t *told) chain(s *scope, tokens []uint32) []uint64 {
	ends := make([]int, len(tokens)/t.block)
	for i := range ends {
		ends[i] = (i + 1) * t.block
	}
	values := make([]uint64, len(ends))
	for i, h := range s.profile.PrefixHashes(s.salt, t.block, tokens, ends) {
		values[i] = wireHash((*[32]byte)(&h))
	}
	return values
}

// wireHash returns the hash that is sent. It is not 0, since some routers take 0 for no hash.
func wireHash(name *[32]byte) uint64 { return max(1, binary.BigEndian.Uint64(name[24:])) }

// add publishes a chain. The events refer to the slice tokens, so they are valid only while that
// slice is. The result full means that nothing was published, because the memory limit is reached.
func (t *told) add(w tier.Want, s *scope, tokens []uint32) (events []event, full bool) {
	if _, ok := t.objects[w]; ok {
		return nil, false
	}
	values := t.chain(s, tokens)
	if len(values) == 0 {
		return nil, false // routers cannot refer to less than a block
	}
	known := 0
	for known < len(values) && t.blocks[hash{s.number, values[known]}] != nil {
		known++
	}
	need := int64(objectBytes + (len(values)-known)*(blockBytes+4*t.block))
	if t.bytes+need > t.most {
		return nil, true
	}
	t.bytes += need
	var last *block
	if known > 0 {
		last = t.blocks[hash{s.number, values[known-1]}]
	}
	for i := known; i < len(values); i++ {
		// Each block has its own copy of its ids. A shared copy would live as long as any of the blocks.
		b := &block{value: values[i], scope: s, parent: last, tokens: slices.Clone(tokens[i*t.block : (i+1)*t.block])}
		if last != nil {
			last.children++
		}
		t.blocks[hash{s.number, b.value}] = b
		last = b
	}
	last.ends++
	t.objects[w] = object{last: last}
	if known < len(values) {
		events = s.rows(events, values[known:], parentOf(last, len(values)-known), tokens[known*t.block:len(values)*t.block], t.block)
	}
	if last.ends == 1 {
		events = append(events, s.state(last, t.block)...)
	}
	return events, false
}

// parentOf returns the hash of the n-th ancestor of b; 0 = there is none.
func parentOf(b *block, n int) uint64 {
	for range n {
		if b = b.parent; b == nil {
			return 0
		}
	}
	return b.value
}

// mostBlocks is the largest number of blocks in one event.
const mostBlocks = 512

// rows appends the events for the rows of a run of blocks. A model without rows has no such events.
func (s *scope) rows(events []event, values []uint64, parent uint64, tokens []uint32, blockTokens int) []event {
	if !s.hasRows() {
		return events
	}
	for len(values) > 0 {
		n := min(len(values), mostBlocks)
		events = append(events, event{tag: stored, hashes: values[:n], parent: parent, tokens: tokens[:n*blockTokens], block: blockTokens, kind: s.groups[0]})
		parent, values, tokens = values[n-1], values[n:], tokens[n*blockTokens:]
	}
	return events
}

func (s *scope) hasRows() bool { return len(s.groups) > 0 && s.groups[0] != mamba }

// stateGroup returns the number of the group of states; false = the model has no states.
func (s *scope) stateGroup() (int, bool) {
	i := slices.Index(s.groups, mamba)
	return i, i >= 0
}

// state returns the event for the state after a block.
func (s *scope) state(b *block, blockTokens int) []event {
	group, ok := s.stateGroup()
	if !ok {
		return nil
	}
	parent := uint64(0)
	if b.parent != nil {
		parent = b.parent.value
	}
	return []event{{tag: stored, hashes: []uint64{b.value}, parent: parent, tokens: b.tokens, block: blockTokens, group: group, kind: mamba}}
}

// addMid publishes a segment at any position as a single block. The block's extra keys have a
// marker, so that no router takes it for the beginning of a prompt.
func (t *told) addMid(w tier.Want, s *scope, spec profile.SegmentSpec, tokens []uint32) (events []event, full bool) {
	if _, ok := t.objects[w]; ok {
		return nil, false
	}
	need := int64(objectBytes + 4*len(tokens))
	if t.bytes+need > t.most {
		return nil, true
	}
	t.bytes += need
	m := &segment{wireHash(&w.Key), s, slices.Clone(tokens), spec.Head, spec.Tail, spec.Primer}
	t.objects[w] = object{mid: m}
	return []event{m.event()}, false
}

// midMarker is the first extra key of a segment at any position. The extra keys that follow are the
// numbers of tokens recomputed at the segment's head and tail, and its primer if it has one.
const midMarker = "spliced:segment"

func (m *segment) event() event {
	extra := []any{midMarker, m.head, m.tail}
	if m.primer != (profile.PrimerID{}) {
		extra = append(extra, hex.EncodeToString(m.primer[:]))
	}
	return event{
		tag: stored, hashes: []uint64{m.value}, tokens: m.tokens, block: len(m.tokens), group: len(m.scope.groups), kind: unknownKind,
		extra: extra,
	}
}

// remove returns the events for a removed object. The scope is nil if it was not published.
func (t *told) remove(w tier.Want) (events []event, s *scope) {
	o, ok := t.objects[w]
	if !ok {
		return nil, nil
	}
	delete(t.objects, w)
	t.bytes -= objectBytes
	if m := o.mid; m != nil {
		t.bytes -= int64(4 * len(m.tokens))
		return []event{{tag: removed, hashes: []uint64{m.value}, group: len(m.scope.groups)}}, m.scope
	}
	s = o.last.scope
	o.last.ends--
	if group, ok := s.stateGroup(); ok && o.last.ends == 0 {
		events = append(events, event{tag: removed, hashes: []uint64{o.last.value}, group: group})
	}
	var gone []uint64
	for b := o.last; b != nil && b.ends == 0 && b.children == 0; b = b.parent {
		gone = append(gone, b.value)
		delete(t.blocks, hash{s.number, b.value})
		t.bytes -= int64(blockBytes + 4*t.block)
		if b.parent != nil {
			b.parent.children--
		}
	}
	if s.hasRows() {
		for part := range slices.Chunk(gone, mostBlocks) {
			events = append(events, event{tag: removed, hashes: part})
		}
	}
	return events, s
}

// run is a part of what is published: at most mostBlocks blocks in prompt order, or a segment at
// any position. Its events stay the same when objects are removed.
type run struct {
	scope  *scope
	blocks []*block
	states []*block // blocks after which there is a state
	mid    *segment
}

// runs returns everything published, in as few runs as possible, parents before children.
func (t *told) runs() (list []run) {
	children := make(map[*block][]*block, len(t.blocks))
	for _, b := range t.blocks {
		children[b.parent] = append(children[b.parent], b)
	}
	stack := slices.Clone(children[nil])
	for len(stack) > 0 {
		b := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		r := run{scope: b.scope}
		for {
			r.blocks = append(r.blocks, b)
			if b.ends > 0 {
				r.states = append(r.states, b)
			}
			if len(children[b]) != 1 || len(r.blocks) == mostBlocks {
				break
			}
			b = children[b][0]
		}
		stack = append(stack, children[b]...)
		list = append(list, r)
	}
	for _, o := range t.objects {
		if o.mid != nil {
			list = append(list, run{scope: o.mid.scope, mid: o.mid})
		}
	}
	return list
}

// events returns the events of a run.
func (r *run) events(blockTokens int) (events []event) {
	if r.mid != nil {
		return []event{r.mid.event()}
	}
	values := make([]uint64, len(r.blocks))
	tokens := make([]uint32, 0, len(r.blocks)*blockTokens)
	for i, b := range r.blocks {
		values[i], tokens = b.value, append(tokens, b.tokens...)
	}
	events = r.scope.rows(nil, values, parentOf(r.blocks[0], 1), tokens, blockTokens)
	for _, b := range r.states {
		events = append(events, r.scope.state(b, blockTokens)...)
	}
	return events
}
