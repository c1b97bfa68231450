package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// MaxWants is the maximum number of objects in one Find.
const MaxWants = 4096

// search is the state of the search for one want.
type search struct {
	want    *tier.Want
	name    name
	profile *profile.Profile
	tag     uint64
	left    []*member // members that may have it and were not asked yet, best first
	found   *copyOf
	busy    bool // a member was busy
	failed  bool // a member did not answer, or answered wrongly
	absent  bool // a member does not have it
}

// Find implements tier.Remote. It asks the best holder of each object, then the next best
// holder of each object not found, and so on. Holders are asked concurrently; each request
// to a holder has the timeout FindTime.
func (p *Peers) Find(ctx context.Context, wants []tier.Want) ([]tier.Copy, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("peer: find: %w", err)
	}
	if len(wants) > MaxWants {
		return nil, fmt.Errorf("peer: find of %d objects, at most %d: %w", len(wants), MaxWants, tier.ErrInvalid)
	}
	searches := make([]search, len(wants))
	for i := range wants {
		searches[i] = p.search(&wants[i])
	}
	for round := 0; round < p.cfg.Candidates; round++ {
		if !p.round(ctx, searches) {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("peer: find: %w", err)
		}
	}
	p.counts.finds.Add(uint64(len(wants)))
	return p.found(searches)
}

func (p *Peers) search(w *tier.Want) search {
	s := search{want: w}
	tag, ok := p.cfg.Names.Tag(w)
	if !ok {
		return s
	}
	if s.profile, ok = p.cfg.Profile(w.Fingerprint); !ok {
		return s
	}
	s.tag, s.name = tag, name{Name: w.Name, fingerprint: w.Fingerprint, tenant: p.cfg.Names.tags[w.Tenant], base: w.Base}
	s.left = p.candidates(tag, p.cfg.Now())
	return s
}

// found returns the rows of Find. It returns an error only if no object was found, no
// member has said that an object is absent, and some member failed or was busy.
func (p *Peers) found(searches []search) ([]tier.Copy, error) {
	rows := make([]tier.Copy, len(searches))
	known, busy, failed := false, false, false
	for i := range searches {
		s := &searches[i]
		busy, failed = busy || s.busy, failed || s.failed
		known = known || s.absent
		if s.found != nil {
			rows[i], known = s.found, true
			p.counts.found.Add(1)
		} else if s.absent {
			p.counts.absent.Add(1)
		}
	}
	switch {
	case known:
	case failed:
		return nil, fmt.Errorf("peer: find of %d objects: %w", len(searches), errFailed)
	case busy:
		return nil, fmt.Errorf("peer: find of %d objects: %w", len(searches), tier.ErrBusy)
	}
	return rows, nil
}

// round asks the next member for each object that was not found; false = no member is
// left.
func (p *Peers) round(ctx context.Context, searches []search) bool {
	groups := map[*member][]*search{}
	for i := range searches {
		s := &searches[i]
		if s.found != nil || len(s.left) == 0 {
			continue
		}
		groups[s.left[0]] = append(groups[s.left[0]], s)
		s.left = s.left[1:]
	}
	var asking sync.WaitGroup
	for m, group := range groups {
		asking.Go(func() {
			for len(group) > 0 { // at most MaxWants/maxNames = 16 times
				n := min(len(group), maxNames)
				p.ask(ctx, m, group[:n])
				group = group[n:]
			}
		})
	}
	asking.Wait()
	return len(groups) > 0
}

// ask asks a member for some objects and records its answers.
func (p *Peers) ask(ctx context.Context, m *member, group []*search) {
	began := p.cfg.Now()
	if !m.breaker.begin(began) {
		each(group, func(s *search) { s.failed = true })
		return
	}
	names := make([]name, len(group))
	for i, s := range group {
		names[i] = s.name
	}
	bounded, cancel := context.WithTimeout(ctx, p.cfg.FindTime)
	defer cancel()
	defer p.watch(m, cancel)()
	var rows []row
	err := m.exchange(bounded, &request{
		path: FindPath, body: appendFind(nil, names), time: p.cfg.FindTime,
		consume: func(ctx context.Context, l *link, n int) (err error) {
			m.speed.took(p.cfg.Now().Sub(began))
			rows, err = m.readAnswer(ctx, l, n, len(names))
			return err
		},
	})
	p.settle(ctx, m, finds, err)
	var busy *busyError
	switch {
	case errors.As(err, &busy):
		m.leaveAlone(p.cfg.Now(), busy.after)
		each(group, func(s *search) { s.busy = true })
	case err != nil:
		each(group, func(s *search) { s.failed = true })
	default:
		for i, s := range group {
			p.take(m, s, &rows[i])
		}
	}
}

func each(group []*search, f func(*search)) {
	for _, s := range group {
		f(s)
	}
}

// readAnswer reads an answer of n bytes.
func (m *member) readAnswer(ctx context.Context, l *link, n, names int) ([]row, error) {
	b, err := m.body(ctx, l, n, maxAnswer, m.cfg.FindTime)
	if err != nil {
		return nil, err
	}
	rows, err := decodeAnswer(b, names)
	if err != nil {
		return nil, fmt.Errorf("%w: node %d: %w", errFailed, m.Node, err)
	}
	return rows, nil
}

// take handles one row of an answer.
func (p *Peers) take(m *member, s *search, r *row) {
	switch r.status {
	case notHere:
		s.absent = true
	case later:
		s.busy = true
	case here:
		c, err := p.believe(m, s, r.description)
		if err != nil {
			s.failed = true
			p.suspect(m, s.tag, err)
			return
		}
		s.found = c
	}
}

// suspect stops asking a member for an object after a wrong answer, for SuspectTime.
func (p *Peers) suspect(m *member, tag uint64, err error) {
	now := p.cfg.Now()
	p.bad.add(m.Node, tag, now.Add(p.cfg.SuspectTime), now)
	p.counts.corrupt.Add(1)
	p.cfg.Log.Warn().Uint16("peer", uint16(m.Node)).Err(err).Msg("a peer's object is wrong")
}

// avoid stops asking a member for an object that it could not send, for BreakerMin.
func (p *Peers) avoid(m *member, tag uint64) {
	now := p.cfg.Now()
	p.bad.add(m.Node, tag, now.Add(p.cfg.BreakerMin), now)
}

// settle reports the result of a request to the member's breaker. Being busy, or not
// having the object, counts as an answer.
func (p *Peers) settle(ctx context.Context, m *member, of asked, err error) {
	o := answered
	switch {
	case ctx.Err() != nil:
		o = neither
	case errors.Is(err, errFailed), tier.ContextEnded(err):
		o = failed
		p.counts.failures.Add(1)
	}
	if m.breaker.settle(of, o, p.cfg.Now(), &p.cfg) {
		p.counts.openings.Add(1)
		p.cfg.Log.Warn().Uint16("peer", uint16(m.Node)).Str("address", m.Addr).Err(err).Msg("a peer is left alone for a while")
	}
}

// believe checks the description of an object that a member sent, and returns the copy.
func (p *Peers) believe(m *member, s *search, b []byte) (*copyOf, error) {
	var layout profile.Layout
	d, err := decodeDescription(b)
	if err == nil {
		layout, err = d.fits(s.profile, &s.want.Name)
	}
	if err == nil && d.Kind == 0 && s.profile.SegmentKey(p.cfg.Names.salts[s.want.Tenant], d.spec, d.tokens) != d.Key {
		err = errors.New("its token ids have another key")
	}
	if err != nil {
		return nil, fmt.Errorf("peer: node %d on %v: %w: %w", m.Node, s.want.Name, tier.ErrCorrupt, err)
	}
	c := &copyOf{
		peers: p, want: *s.want, name: s.name, profile: s.profile, tag: s.tag, layout: layout, from: m, pin: pinOf(d),
		content: tier.Content{Publisher: d.publisher, Tokens: d.tokens, Digests: d.digests},
		entry: tier.Entry{
			Name: d.Name, Fingerprint: s.want.Fingerprint, Tenant: s.want.Tenant, Spec: d.spec, Packed: d.packed, Begin: d.begin, End: d.end,
			Parent: d.parent, Bytes: d.rankBytes * int64(len(d.digests)),
		},
	}
	return c, nil
}

// fits checks that a description matches a name and has a shape that the profile allows.
// It returns the layout of one rank.
func (d *description) fits(p *profile.Profile, n *tier.Name) (profile.Layout, error) {
	var none profile.Layout
	if d.Name != *n {
		return none, fmt.Errorf("it is %v", d.Name)
	}
	if d.Kind == 0 {
		if err := p.CheckSpec(d.spec); err != nil {
			return none, err
		}
		begin, count := d.spec.Interior()
		if d.begin != begin || d.end != begin+count || d.parent != (tier.Name{}) || len(d.tokens) != d.spec.Tokens {
			return none, fmt.Errorf("tokens [%d, %d) of %+v with %d ids", d.begin, d.end, d.spec, len(d.tokens))
		}
	} else if d.begin >= d.end || d.end > profile.MaxTokens || (d.begin > 0) != (d.parent != tier.Name{}) || len(d.tokens) > 0 ||
		d.spec != (profile.SegmentSpec{}) || d.begin > 0 && (d.parent.Kind == 0 || !d.parent.Kind.Known(p)) {
		return none, fmt.Errorf("rows [%d, %d) behind %v with %d ids", d.begin, d.end, d.parent, len(d.tokens))
	}
	l, err := tier.LayoutOf(p, d.Kind, d.end-d.begin, d.packed)
	if err != nil {
		return none, err
	}
	if len(d.digests) != p.TPSize() || d.rankBytes != l.Bytes || len(d.digests[0]) != countChunks(&l) {
		return none, fmt.Errorf("%d ranks of %d bytes with %d digests, its profile has %d of %d with %d",
			len(d.digests), d.rankBytes, len(d.digests[0]), p.TPSize(), l.Bytes, countChunks(&l))
	}
	return l, nil
}
