package peer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/policy/coding"
	"github.com/spliced-kv/spliced/tiering/peer/index"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A node that has just started does not know which objects the other nodes have. Its
// index takes up to half a minute to learn that among 1,000 nodes. Meanwhile, the node
// asks another node which nodes have the objects that its engines request:
//
//	holders  count u16 | tags u64
//	answer   knows u8: 1 = it knows the objects of all nodes | members: count u16, each: length u8, address
//	         | rows: count u8, each: u16 index into members, or tellSelf for the sender
//
// The answer is only a hint, like those of the index. Members that the asking node does
// not know are ignored. The hint is forgotten after learntTTL.
const (
	maxTags   = 512
	maxNamed  = 4 // most members per tag
	tellSelf  = 1<<16 - 1
	maxAddr   = 255
	maxTelled = 64 << 10 // most bytes of an answer

	// learntTTL is the time that an answer is used. It is longer than the index takes to learn
	// which objects the others hold: 30 s in a simulation of 1,000 nodes.
	learntTTL = time.Minute
	// LearnTime is the timeout of a whole Learn, for which a match waits.
	LearnTime = 50 * time.Millisecond
	// toldTTL is the time that an unsolicited hint (Tell) is used; the index has the object
	// within seconds.
	toldTTL = 10 * time.Second
	// askedTTL is the time before a tag without holders is asked for again.
	askedTTL = time.Second
)

// maxLearnt is the most tags that are kept; the oldest are forgotten first.
const maxLearnt = 1 << 16

// learnt holds hints from other nodes about the holders of tags, in addition to the
// index: answers to Learn, and hints given to Tell.
type learnt struct {
	n    atomic.Int64
	mu   sync.Mutex
	of   map[uint64]told
	tags []uint64 // in the order in which they were learned
}

type told struct {
	nodes [maxNamed]Node
	n     int
	until time.Time
}

// holders appends to dst the nodes that were reported to have the object with a tag.
func (l *learnt) holders(tag uint64, dst []Node, now time.Time) []Node {
	if l.n.Load() == 0 {
		return dst
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok := l.of[tag]
	if !ok || !now.Before(t.until) {
		return dst
	}
	for _, node := range t.nodes[:t.n] {
		if len(dst) < cap(dst) && !slices.Contains(dst, node) {
			dst = append(dst, node)
		}
	}
	return dst
}

// The method asked reports whether there is a hint about a tag that has not expired, even
// one without holders.
func (l *learnt) asked(tag uint64, now time.Time) bool {
	if l.n.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok := l.of[tag]
	return ok && now.Before(t.until)
}

func (l *learnt) note(tag uint64, nodes []Node, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[uint64]told{}
	}
	if _, ok := l.of[tag]; !ok {
		if len(l.tags) >= maxLearnt {
			delete(l.of, l.tags[0])
			l.tags = l.tags[1:]
		}
		l.tags = append(l.tags, tag)
	}
	t := told{until: until}
	t.n = copy(t.nodes[:], nodes)
	l.of[tag] = t
	l.n.Store(int64(len(l.of)))
}

// Tell records that a member has an object, before the index shows it. Nodes report this
// when they get an object that this node asked them for.
func (p *Peers) Tell(w *tier.Want, node Node) {
	if tag, ok := p.cfg.Names.Tag(w); ok {
		p.learnt.note(tag, []Node{node}, p.cfg.Now().Add(toldTTL))
	}
}

var _ tier.Learner = (*Peers)(nil)

// Learning implements tier.Learner.
func (p *Peers) Learning() bool {
	return p.cfg.Learning != nil && p.cfg.Learning()
}

// Learn implements tier.Learner. It asks a random member, and a second one if the first
// fails or is learning as well. In total it takes at most LearnTime.
func (p *Peers) Learn(ctx context.Context, wants []tier.Want) {
	tags := p.unknown(wants)
	if len(tags) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, LearnTime)
	defer cancel()
	for _, m := range p.some(2) {
		answer, err := p.askHolders(ctx, m, tags)
		if err != nil {
			p.cfg.Log.Debug().Err(err).Uint16("peer", uint16(m.Node)).Msg("a peer does not tell who holds what")
			continue
		}
		p.believeHolders(m, tags, answer)
		if answer.knows {
			return
		}
	}
}

// The method unknown returns the tags without known holders that were not asked for
// recently.
func (p *Peers) unknown(wants []tier.Want) (tags []uint64) {
	now := p.cfg.Now()
	for i := range wants {
		tag, ok := p.cfg.Names.Tag(&wants[i])
		if !ok || len(tags) >= maxTags || p.learnt.asked(tag, now) {
			continue
		}
		known := false
		if p.eachHolder(tag, now, func(*member) { known = true }); !known {
			tags = append(tags, tag)
		}
	}
	return tags
}

// The method some returns up to n random members that may be asked now.
func (p *Peers) some(n int) (list []*member) {
	table := *p.table.Load()
	now := p.cfg.Now()
	for _, i := range rand.Perm(len(table)) {
		if m := table[i]; m != nil && m.open(now) {
			if list = append(list, m); len(list) == n {
				break
			}
		}
	}
	return list
}

// holdersAnswer is a member's answer about holders.
type holdersAnswer struct {
	knows   bool
	members []string // addresses
	rows    [][]uint16
}

func (p *Peers) askHolders(ctx context.Context, m *member, tags []uint64) (answer *holdersAnswer, err error) {
	began := p.cfg.Now()
	if !m.breaker.begin(began) {
		return nil, fmt.Errorf("peer: node %d is left alone: %w", m.Node, tier.ErrUnavailable)
	}
	err = m.exchange(ctx, &request{
		path: HoldersPath, body: appendTags(nil, tags), time: p.cfg.FindTime, // the context's deadline is shorter
		consume: func(ctx context.Context, l *link, n int) error {
			b, err := m.body(ctx, l, n, maxTelled, p.cfg.FindTime)
			if err != nil {
				return err
			}
			if answer, err = decodeHolders(b, len(tags)); err != nil {
				return fmt.Errorf("%w: node %d: %w", errFailed, m.Node, err)
			}
			return nil
		},
	})
	// If the short deadline of Learn has passed, that is not a failure of the member.
	if ctx.Err() == nil || err == nil {
		p.settle(ctx, m, finds, err)
	} else {
		m.breaker.settle(finds, neither, p.cfg.Now(), &p.cfg)
	}
	if busy, ok := errors.AsType[*busyError](err); ok {
		m.leaveAlone(p.cfg.Now(), busy.after)
	}
	p.counts.learns.Add(1)
	return answer, err
}

// believeHolders records a member's answer. It ignores members that are not known here.
func (p *Peers) believeHolders(m *member, tags []uint64, answer *holdersAnswer) {
	now := p.cfg.Now()
	at := map[string]Node{}
	for _, member := range *p.table.Load() {
		if member != nil {
			at[member.Addr] = member.Node
		}
	}
	for i, tag := range tags {
		var nodes []Node
		for _, k := range answer.rows[i] {
			if k == tellSelf {
				nodes = append(nodes, m.Node)
			} else if node, ok := at[answer.members[k]]; ok {
				nodes = append(nodes, node)
			}
		}
		if len(nodes) > 0 {
			p.counts.learnt.Add(1)
		} else if !answer.knows {
			continue // another member may know
		}
		until := now.Add(learntTTL)
		if len(nodes) == 0 {
			until = now.Add(askedTTL)
		}
		p.learnt.note(tag, nodes, until)
	}
}

func appendTags(b []byte, tags []uint64) []byte {
	c := coding.Writer(b)
	c.Len(len(tags), 2, 8, maxTags)
	c.U64s(tags)
	return c.Bytes()
}

func decodeTags(b []byte) (tags []uint64, err error) {
	c := coding.Reader(b)
	if coding.List(&c, &tags, 2, 8, maxTags); len(tags) == 0 {
		c.Fail("no tags")
	}
	c.U64s(tags)
	return tags, read("holders", &c)
}

func (a *holdersAnswer) fields(c *coding.Cursor) {
	c.Flag(&a.knows)
	coding.List(c, &a.members, 2, 1, len(a.rows)*maxNamed)
	for i := range a.members {
		coding.Text(c, &a.members[i], 1, maxAddr)
	}
	for i := range a.rows {
		row := &a.rows[i]
		coding.List(c, row, 1, 2, maxNamed)
		for k := range *row {
			at := &(*row)[k]
			if coding.U16(c, at); *at != tellSelf && int(*at) >= len(a.members) {
				c.Fail("member %d of %d", *at, len(a.members))
			}
		}
	}
}

func (a *holdersAnswer) append(b []byte) []byte {
	c := coding.Writer(b)
	a.fields(&c)
	return c.Bytes()
}

// decodeHolders decodes an answer that must have count rows, and checks that the rows'
// indexes are inside its list of members.
func decodeHolders(b []byte, count int) (*holdersAnswer, error) {
	c, a := coding.Reader(b), &holdersAnswer{rows: make([][]uint16, count)}
	a.fields(&c)
	return a, read("holders' answer", &c)
}

// Known is a node's knowledge about holders, which a Server tells other nodes.
type Known struct {
	Own   interface{ Has(tag uint64) bool } // this node's objects; an *index.Own
	Peers *Peers
}

var _ interface{ Has(uint64) bool } = (*index.Own)(nil)

// holders answers a request of HoldersPath: which nodes have the objects with some tags.
func (s *Server) holders(ctx *fasthttp.RequestCtx) error {
	body := ctx.PostBody()
	if !ctx.IsPost() || s.cfg.Known == nil {
		return fmt.Errorf("peer: %s: %w", ctx.Method(), errNoPath)
	}
	tags, err := decodeTags(body)
	if err != nil {
		return err
	}
	s.counts.tells.Add(1)
	ctx.Response.Header.SetContentType("application/octet-stream")
	ctx.Response.SetBodyRaw(s.cfg.Known.tell(tags).append(nil))
	return nil
}

func (k *Known) tell(tags []uint64) *holdersAnswer {
	p := k.Peers
	a := &holdersAnswer{knows: !p.Learning()}
	places := map[Node]uint16{}
	var nodes [maxNamed]Node
	for _, tag := range tags {
		var row []uint16
		if k.Own.Has(tag) {
			row = append(row, tellSelf)
		}
		for _, node := range nodes[:min(p.cfg.Index.Holders(tag, nodes[:]), maxNamed)] {
			m := p.member(node)
			if m == nil || len(row) == maxNamed || len(m.Addr) > maxAddr {
				continue
			}
			k, ok := places[node]
			if !ok {
				k = uint16(len(a.members))
				places[node] = k
				a.members = append(a.members, m.Addr)
			}
			row = append(row, k)
		}
		a.rows = append(a.rows, row)
	}
	return a
}
