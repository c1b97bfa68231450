package view

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/errkind"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/peer/index"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// prompt is a parsed LocateQuery.
type prompt struct {
	tokens  int
	exact   bool
	profile *profile.Profile
	match   tiering.MatchQuery
	pieces  []piece // one per key of match
	model   *cost.Model
}

// piece is a segment of a prompt: the position of its first token, its number of tokens, and how
// many of these tokens are not cached.
type piece struct{ begin, tokens, excluded int }

func (p *piece) interior() int { return p.tokens - p.excluded }

// Locate implements api.Catalogue. It reads memory only. Its time is about 50 ns for each pair of a
// key and a member that has the object of that key.
func (v *listing) Locate(q *api.LocateQuery) (*api.Located, error) {
	p, err := v.prompt(q)
	if err != nil {
		return nil, err
	}
	learned, err := v.o.Store.Learned(p.match.Profile)
	if err != nil {
		return nil, errkind.With(err, api.ErrNotFound) // the profile was forgotten meanwhile
	}
	p.model = learned.For(p.match.Tenant)
	var own tiering.Located
	if err := v.o.Store.Locate(&p.match, &own); err != nil {
		return nil, errkind.With(err, api.ErrInvalid)
	}
	c := newComparison(p, v.o.Config.Node, &own)
	if v.o.Members != nil {
		v.o.Members.compare(c)
	}
	out := c.answer(q.Limit)
	out.Measured = learned.Snapshot().Samples > 0
	return out, nil
}

// prompt resolves the names in a query and computes its keys.
func (v *listing) prompt(q *api.LocateQuery) (*prompt, error) {
	tenant, err := v.tenantOf(q.Tenant)
	if err != nil {
		return nil, err
	}
	p := &prompt{tokens: q.Tokens, exact: q.Accept == "exact"}
	p.match = tiering.MatchQuery{Tenant: tenant.ID, Accept: tier.Exact | tier.Spliced}
	if p.exact {
		p.match.Accept = tier.Exact
	}
	if p.match.Profile, p.profile, err = v.profileOf(q.Profile); err != nil {
		return nil, err
	}
	if len(q.TokenIDs) > 0 {
		return p, p.fromTokens(q, tenant.Salt)
	}
	for i := range q.Prefixes {
		p.match.Positions = append(p.match.Positions, uint32(q.Prefixes[i].Tokens))
		p.match.Prefixes = append(p.match.Prefixes, q.Prefixes[i].Hash)
	}
	for i := range q.Segments {
		s := &q.Segments[i]
		if !p.exact {
			p.match.Keys = append(p.match.Keys, *s.Key)
			p.pieces = append(p.pieces, piece{s.Begin, s.Tokens, s.Excluded})
		}
	}
	return p, nil
}

// fromTokens computes keys as engines do. The first segment of a prompt is cached whole, and other
// segments without their seams. A segment that is too short to have an interior is not cached.
func (p *prompt) fromTokens(q *api.LocateQuery, salt []byte) error {
	if q.BlockTokens > 0 {
		positions := q.Positions
		if len(positions) == 0 {
			positions = blockEnds(len(q.TokenIDs), q.BlockTokens)
		}
		for i, hash := range p.profile.PrefixHashes(salt, q.BlockTokens, q.TokenIDs, positions) {
			p.match.Positions = append(p.match.Positions, uint32(positions[i]))
			p.match.Prefixes = append(p.match.Prefixes, hash)
		}
	}
	if p.exact {
		return nil
	}
	for i := range q.Segments {
		s := &q.Segments[i]
		spec, ok := profile.FirstSpec(s.Tokens), true
		if s.Begin > 0 {
			spec, ok = p.profile.MidSpec(s.Tokens, q.SeamTokens)
			if q.Primer != nil && s.Begin >= q.PrimedFrom {
				spec.Primer = profile.PrimerID(*q.Primer)
			}
		}
		if !ok || p.profile.CheckSpec(spec) != nil {
			continue
		}
		_, interior := spec.Interior()
		p.match.Keys = append(p.match.Keys, p.profile.SegmentKey(salt, spec, q.TokenIDs[s.Begin:s.Begin+s.Tokens]))
		p.pieces = append(p.pieces, piece{s.Begin, s.Tokens, s.Tokens - interior})
	}
	return nil
}

// blockEnds returns where a prompt's blocks end. If there are more than MaxLocatePrefixes blocks,
// half of the positions are the last blocks, and the other half are spread over the earlier blocks.
func blockEnds(tokens, block int) []int {
	n := tokens / block
	if n <= api.MaxLocatePrefixes {
		ends := make([]int, n)
		for i := range ends {
			ends[i] = (i + 1) * block
		}
		return ends
	}
	const half = api.MaxLocatePrefixes / 2
	ends := make([]int, 0, api.MaxLocatePrefixes)
	for i := range half {
		ends = append(ends, (i+1)*(n-half)/half*block)
	}
	for i := n - half; i < n; i++ {
		ends = append(ends, (i+1)*block)
	}
	return slices.Compact(ends)
}

func (v *base) tenantOf(name string) (*tiering.Tenant, error) {
	name = cmp.Or(name, settings.DefaultTenant)
	if t := v.o.Tenants.ByName(name); t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("tenant %q is not configured: %w", name, api.ErrNotFound)
}

// profileOf returns a registered profile by its fingerprint or by the name of its model.
func (v *base) profileOf(name string) (tier.ProfileID, *profile.Profile, error) {
	var fingerprint api.Digest
	if fingerprint.UnmarshalText([]byte(name)) == nil {
		if id, p, ok := v.o.Store.FindProfile(profile.Fingerprint(fingerprint)); ok {
			return id, p, nil
		}
	}
	var found *tiering.ProfileInfo
	list := v.o.Store.Profiles()
	for i := range list {
		if list[i].Profile.Identity().Model != name {
			continue
		}
		if found != nil {
			return 0, nil, fmt.Errorf("model %q has several profiles: select one by its fingerprint: %w", name, api.ErrInvalid)
		}
		found = &list[i]
	}
	if found == nil {
		return 0, nil, fmt.Errorf("no engine has registered a profile %q with this node: %w", name, api.ErrNotFound)
	}
	return found.ID, found.Profile, nil
}

// holder is a node, with the parts of the prompt that it has.
type holder struct {
	name, peer string
	number     index.Node // number among the members
	complete   bool
	asOf       time.Time
	link       cost.Link // cost of fetching from it; zero = the cost of an average peer
	shut       bool      // nothing is fetched from it for now, after failures

	prefix      int          // index of the longest prefix that it has; -1 = none
	prefixPlace tier.Place   // PlacePeer = memory or disk of another node, unknown which
	segments    []tier.Place // by key; PlaceNone = not cached there; nil = none of them is
}

// comparison compares which parts of a prompt the nodes have. The first node is this one.
type comparison struct {
	*prompt
	nodes []holder
	// prefixFrom and segmentFrom are the fastest sources of the longest prefix and of each segment, for
	// nodes that do not have them.
	prefixFrom   source
	prefixLength int // index of the longest prefix that any node has; -1 = none
	segmentFrom  []source
	members      int
	// expectedFalse is as in api.Located.
	expectedFalse float64

	local, with []cost.Segment // scratch for the node being judged
	fetched     []int
}

// source is another node from which a part can be fetched, at the cost link. ok is false if there
// is none.
type source struct {
	ok   bool
	link cost.Link
}

func newComparison(p *prompt, node string, own *tiering.Located) *comparison {
	self := holder{name: node, complete: true, prefix: own.Prefix, prefixPlace: own.PrefixPlace, segments: make([]tier.Place, len(own.Segments))}
	c := &comparison{prompt: p, members: 1, prefixLength: own.Prefix, segmentFrom: make([]source, len(own.Segments))}
	for i := range own.Segments {
		self.segments[i] = own.Segments[i].Place
		c.segmentFrom[i] = c.better(source{}, &self, own.Segments[i].Place != tier.PlaceNone, 0)
	}
	c.prefixFrom = c.better(source{}, &self, own.Prefix >= 0, 0)
	c.nodes = []holder{self}
	return c
}

// better returns the faster source of a part: the known source in the parameter than, or the node
// h. The node h is considered only if the parameter has is true, which means that it has the part,
// and if this node can fetch from it.
func (c *comparison) better(than source, h *holder, has bool, bytes int64) source {
	if !has || h.shut {
		return than
	}
	link := h.link
	if link == (cost.Link{}) {
		link = c.model.Link(cost.JobLoadPeer)
	}
	if than.ok && than.link.Millis(bytes) <= link.Millis(bytes) {
		return than
	}
	return source{true, link}
}

// holdsPrefix records that a node has a prefix. It must be called for longer prefixes first.
func (c *comparison) holdsPrefix(at int, h *holder) {
	if h.prefix < 0 {
		h.prefix, h.prefixPlace = at, tier.PlacePeer
	}
	bytes := c.model.Shape.PrefixBytes(int(c.match.Positions[at]), 1)
	switch {
	case h.shut:
	case at > c.prefixLength:
		c.prefixLength, c.prefixFrom = at, c.better(source{}, h, true, bytes)
	case at == c.prefixLength:
		c.prefixFrom = c.better(c.prefixFrom, h, true, bytes)
	}
}

func (c *comparison) holdsSegment(at int, h *holder) {
	if h.segments == nil {
		h.segments = make([]tier.Place, len(c.pieces))
	}
	h.segments[at] = tier.PlacePeer
	c.segmentFrom[at] = c.better(c.segmentFrom[at], h, true, c.model.Shape.SegmentTotalBytes(c.pieces[at].interior()))
}

// answer judges all nodes. It returns the best ones, at most limit, and always this node.
func (c *comparison) answer(limit int) *api.Located {
	out := &api.Located{Tokens: c.tokens, Members: c.members, ExpectedFalse: c.expectedFalse, RecomputeMillis: c.model.Prefill().Millis(0, c.tokens)}
	var nothing *api.LocatedNode // result for a node that has nothing cached; computed once
	for i := range c.nodes {
		h := &c.nodes[i]
		var n api.LocatedNode
		if h.prefix < 0 && h.segments == nil && nothing != nil {
			n = *nothing
		} else {
			n = c.judge(h, i == 0, out.RecomputeMillis)
			if h.prefix < 0 && h.segments == nil {
				nothing = new(n)
			}
		}
		n.Node, n.Peer, n.Self, n.Complete, n.AsOf = h.name, h.peer, i == 0, h.complete, timeOf(h.asOf)
		out.Nodes = append(out.Nodes, n)
	}
	slices.SortFunc(out.Nodes, func(a, b api.LocatedNode) int {
		return cmp.Or(
			cmp.Compare(b.SavedWithPeersMillis, a.SavedWithPeersMillis), cmp.Compare(b.SavedMillis, a.SavedMillis), cmp.Compare(b.Tokens, a.Tokens),
			cmp.Compare(before(a.Self), before(b.Self)), cmp.Compare(a.Node, b.Node))
	})
	if out.Nodes[0].SavedWithPeersMillis > 0 {
		out.Best = out.Nodes[0].Node
	}
	if len(out.Nodes) > limit {
		self := slices.IndexFunc(out.Nodes, func(n api.LocatedNode) bool { return n.Self })
		if self >= limit {
			out.Nodes[limit-1] = out.Nodes[self]
		}
		out.Nodes = out.Nodes[:limit]
	}
	return out
}

func before(self bool) int {
	if self {
		return 0
	}
	return 1
}

// judge returns which parts a node has, and what they save: alone, and with parts fetched from
// peers.
func (c *comparison) judge(h *holder, self bool, recompute float64) api.LocatedNode {
	local := cost.Request{Tokens: c.tokens, ExactOnly: c.exact, Segments: c.local[:0]}
	var n api.LocatedNode
	memory, disk := 0, 0
	count := func(tokens int, place tier.Place) {
		if place == tier.PlaceDisk {
			disk += tokens
		} else {
			memory += tokens
		}
	}
	if h.prefix >= 0 {
		n.PrefixTokens = int(c.match.Positions[h.prefix])
		count(n.PrefixTokens, h.prefixPlace)
		local.Prefix = c.prefix(h.prefix, source{}, h.prefixPlace)
	}
	for i, place := range h.segments {
		if place == tier.PlaceNone {
			continue
		}
		s := &c.pieces[i]
		local.Segments = append(local.Segments, c.segment(i, source{}, place))
		if s.begin+s.excluded/2 >= n.PrefixTokens {
			n.SegmentTokens += s.interior()
			count(s.interior(), place)
		}
	}
	c.local = local.Segments
	n.Tokens = n.PrefixTokens + n.SegmentTokens
	n.Share = float64(n.Tokens) / float64(c.tokens)
	if self {
		n.MemoryTokens, n.DiskTokens = &memory, &disk
	}
	n.SavedMillis = max(0, recompute-c.fastest(local))
	n.SavedWithPeersMillis = n.SavedMillis
	c.withPeers(h, &n, local, recompute)
	return n
}

// withPeers adds the parts that are worth fetching. It first takes segments one by one, as a node
// does when it acquires them. Then it takes the longest prefix on any node, if that saves more.
func (c *comparison) withPeers(h *holder, n *api.LocatedNode, local cost.Request, recompute float64) {
	with := local
	with.Segments = c.with[:0]
	fetched := c.fetched[:0]
	prefill := c.model.Prefill()
	for i := range c.pieces {
		if h.segments != nil && h.segments[i] != tier.PlaceNone {
			with.Segments = append(with.Segments, c.segment(i, source{}, h.segments[i]))
			continue
		}
		s := &c.pieces[i]
		from := c.segmentFrom[i]
		if from.ok && from.link.Millis(c.model.Shape.SegmentTotalBytes(s.interior())) < prefill.Marginal(0, s.interior()) {
			with.Segments = append(with.Segments, c.segment(i, from, tier.PlacePeer))
			fetched = append(fetched, i)
		}
	}
	c.with, c.fetched = with.Segments, fetched
	take := func(r cost.Request, prefixTokens int) {
		saved := recompute - c.fastest(r)
		if saved <= n.SavedWithPeersMillis {
			return
		}
		n.SavedWithPeersMillis, n.PeerTokens = saved, max(0, prefixTokens-n.PrefixTokens)
		for _, i := range fetched {
			if s := &c.pieces[i]; s.begin+s.excluded/2 >= prefixTokens {
				n.PeerTokens += s.interior()
			}
		}
	}
	take(with, n.PrefixTokens)
	if c.prefixLength > h.prefix && c.prefixFrom.ok {
		with.Prefix = c.prefix(c.prefixLength, c.prefixFrom, tier.PlacePeer)
		take(with, with.Prefix.Tokens)
	}
}

func (c *comparison) fastest(r cost.Request) float64 {
	choice := c.model.Choose(r)
	return choice.Of(choice.Best)
}

func (c *comparison) prefix(at int, from source, place tier.Place) cost.Prefix {
	tokens := int(c.match.Positions[at])
	return cost.Prefix{Tokens: tokens, Bytes: c.model.Shape.PrefixBytes(tokens, 1), Tier: tierAt(place, from), From: from.link}
}

func (c *comparison) segment(at int, from source, place tier.Place) cost.Segment {
	s, shape := &c.pieces[at], &c.model.Shape
	return cost.Segment{
		Begin: s.begin, Tokens: s.tokens, SeamTokens: s.excluded, StateBytes: shape.SegmentBytes, RowBytes: shape.RowBytes(s.interior()),
		Tier: tierAt(place, from), From: from.link,
	}
}

// tierAt returns the tier from which a node reads a part that it has, or fetches from another node.
// If it is unknown whether the part is in memory or on disk, memory is assumed.
func tierAt(place tier.Place, from source) cost.Tier {
	switch {
	case from.ok:
		return cost.TierPeer
	case place == tier.PlaceDisk:
		return cost.TierDisk
	}
	return cost.TierDRAM
}
