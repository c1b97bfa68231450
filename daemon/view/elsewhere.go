package view

import (
	"math/bits"
	"time"

	"github.com/spliced-kv/spliced/daemon/cluster"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/peer"
	"github.com/spliced-kv/spliced/tiering/peer/index"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// rosterAge is the maximum age of the roster that prompts are compared with. Building a roster
// takes locks that gossip and the index exchange also need.
const rosterAge = 250 * time.Millisecond

// roster lists the members that may have objects. It is immutable.
type roster struct {
	at        time.Time
	self      string // this node's name in the cluster
	peer      string // address of this node's peers' port
	others    []holder
	falseHits float64 // expected false matches in the index, per name that no member has
	numbers   []int32 // index into others by number; -1 = none
}

// roster returns a roster that is at most rosterAge old, or a bit older while another is being
// built.
func (m *Members) roster() *roster {
	r := m.recent.Load()
	if now := time.Now(); r == nil || now.Sub(r.at) >= rosterAge {
		if r == nil {
			m.listing.Lock()
		} else if !m.listing.TryLock() {
			return r // another goroutine is building a new one
		}
		defer m.listing.Unlock()
		if r = m.recent.Load(); r == nil || now.Sub(r.at) >= rosterAge {
			r = m.list(now)
			m.recent.Store(r)
		}
	}
	return r
}

func (m *Members) list(now time.Time) *roster {
	r := &roster{at: now, numbers: make([]int32, index.MaxNodes), falseHits: m.Index.Stats().FalseHits()}
	for i := range r.numbers {
		r.numbers[i] = -1
	}
	speeds := map[peer.Node]*peer.MemberInfo{}
	infos := m.Peers.Members()
	for i := range infos {
		speeds[infos[i].Node] = &infos[i]
	}
	for _, of := range m.Cluster.Members() {
		switch {
		case of.Self:
			r.self, r.peer = of.Name, of.Peer.String()
		case of.Told && of.State == cluster.Alive:
			h := holder{
				name: of.Name, peer: of.Peer.String(), number: index.Node(of.Number), prefix: -1,
				complete: m.Index.Complete(index.Node(of.Number)), asOf: m.AsOf(of.Number),
			}
			if f := speeds[peer.Node(of.Number)]; f != nil {
				h.link, h.shut = linkOf(f), f.Open
			}
			r.numbers[of.Number] = int32(len(r.others))
			r.others = append(r.others, h)
		}
	}
	return r
}

// linkOf returns the measured cost of fetching from a member, including its queue; zero = not
// measured.
func linkOf(f *peer.MemberInfo) cost.Link {
	if f.BytesPerSecond <= 0 {
		return cost.Link{}
	}
	millis := f.RoundTrip.Seconds()*1e3 + float64(f.QueuedBytes)/f.BytesPerSecond*1e3
	return cost.Link{Fixed: max(millis, 1e-3), PerByte: 1e3 / f.BytesPerSecond}
}

// compare adds the objects of the prompt that other members are believed to have.
func (m *Members) compare(c *comparison) {
	r := m.roster()
	c.nodes[0].name, c.nodes[0].peer = r.self, r.peer
	c.nodes = append(c.nodes, r.others...)
	c.members = len(c.nodes)
	others := c.nodes[1:]
	w := tier.Want{Fingerprint: c.profile.Fingerprint(), Tenant: c.match.Tenant}
	var set index.NodeSet
	for i := len(c.match.Prefixes) - 1; i >= 0; i-- {
		for _, kind := range [...]tier.CheckpointKind{tier.Exact, tier.Spliced} {
			if c.match.Accept&kind == 0 {
				continue
			}
			w.Name = tier.Name{Kind: kind, Key: c.match.Prefixes[i]}
			m.eachHolder(&w, &set, r, func(at int32) { c.holdsPrefix(i, &others[at]) })
		}
	}
	c.expectedFalse = r.falseHits * float64(bits.OnesCount8(uint8(c.match.Accept))*len(c.match.Prefixes)+len(c.match.Keys))
	for i := range c.match.Keys {
		w.Name = tier.Name{Key: c.match.Keys[i]}
		m.eachHolder(&w, &set, r, func(at int32) { c.holdsSegment(i, &others[at]) })
	}
}

func (m *Members) eachHolder(w *tier.Want, set *index.NodeSet, r *roster, f func(at int32)) {
	tag, ok := m.Names.Tag(w)
	if !ok {
		return
	}
	m.Index.AllHolders(tag, set)
	for word, b := range set {
		for ; b != 0; b &= b - 1 {
			if at := r.numbers[word*64+bits.TrailingZeros64(b)]; at >= 0 {
				f(at)
			}
		}
	}
}
