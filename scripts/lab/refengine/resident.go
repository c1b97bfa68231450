package refengine

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/pages"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
)

// InPlace is Leases whose rows can be read in place, in the cache's memory, while they are
// leased. Any number of requests may read them at the same time.
type InPlace interface {
	Leases
	// Rows returns the keys and values of the interior of segment i in an attention layer, in
	// order of position. Positions are relative to the segment, and keys are rotated to them.
	// copied is the number of bytes that are copies. The rows are valid until Release, as long
	// as Intact returns nil.
	Rows(i, layer int) (runs []enginekernel.Run, copied int64, err error)
	// Extend renews leases that will end soon. Call it before each use. After an error, the rows
	// may still be intact for some time.
	Extend() error
	// Intact returns an error if the bytes may have changed. Call it after each use.
	Intact() error
}

// Resident is a request whose rows are in pages. It keeps its leases and blocks until Release.
type Resident struct {
	Result
	pages   *Pages
	leases  InPlace // nil = no rows are read in the cache
	keys    []profile.SegmentKey
	decoder *Decoder
}

// Serve does what the function Serve does, but keeps attention rows in pages and reserves room
// for an answer; answer is its number of tokens. For a segment after other tokens, the pages'
// rules say how many tokens are recomputed at its beginning, and Seam says how many at its end.
// If the pages have no room, the error wraps pages.ErrRefused and nothing is kept. If the cache
// cannot be used, or its rows cannot be read in place, Serve computes the whole prompt without
// sharing, and Result.Cache says why.
func (p *Pages) Serve(c Cache, r Request, answer int) (*Resident, error) {
	if answer < 0 || len(r.Lead) > 0 && len(r.Prefix)+len(r.First) > 0 {
		return nil, fmt.Errorf("answer of %d tokens, %d own tokens before %d: %w", answer, len(r.Lead), len(r.Prefix)+len(r.First), ErrInvalid)
	}
	if r.From != nil && r.From.Pages != nil {
		return nil, errFromPages
	}
	segments, placed := r.place(func(tokens int) (profile.SegmentSpec, bool) {
		s := profile.SegmentSpec{Role: profile.RoleMid, Head: p.config.Seam(max(1, tokens-r.Seam)), Tail: r.Seam, Tokens: tokens}
		return s, p.m.prof.CheckSpec(s) == nil
	}, p.m.prof)
	l, err := lease(p.m, c, r, segments, placed)
	if err == nil {
		var out *Resident
		if out, err = p.splice(l, r, answer); err == nil {
			return out, nil
		}
	}
	if refused(err) {
		return nil, err
	}
	return p.plain(r, answer, err)
}

// errFromPages is the error of a request that continues a state whose rows are in pages. Only
// the owner of the pages knows whether the rows still exist.
var errFromPages = fmt.Errorf("state whose rows lie in pages; continue a Resident.Copy: %w", ErrInvalid)

// refused reports whether an error would also occur if the request were served in another way.
func refused(err error) bool {
	return errors.Is(err, ErrInvalid) || errors.Is(err, pages.ErrRefused) || errors.Is(err, pages.ErrInvalid)
}

// splice serves a request with leased segments. It releases the leases if it fails. It also
// releases them if PagesConfig.Copies is set, because nothing then reads the leased rows any
// more.
func (p *Pages) splice(l *leased, r Request, answer int) (out *Resident, err error) {
	inPlace, ok := l.leases.(InPlace)
	defer func() {
		if err != nil || p.config.Copies {
			l.leases.Release()
		}
	}()
	if !ok && !p.config.Copies {
		return nil, fmt.Errorf("rows of %T cannot be read in place", l.leases)
	}
	src, err := l.leases.Source(p.m, l.Plan, r.Prefix, r.From)
	if err != nil {
		return nil, err
	}
	table, err := p.admit(l, r, answer)
	if err != nil {
		return nil, err
	}
	out = &Resident{Result: l.Result, pages: p}
	var keys []profile.SegmentKey
	if !p.config.Copies {
		keys = p.hold(l)
		out.leases, out.keys = inPlace, keys
	}
	defer func() {
		if err != nil {
			p.pool.Abandon(table.id)
			p.unhold(keys)
			p.copied -= table.copied
		}
	}()
	if err = table.place(l, inPlace); err != nil {
		return nil, err
	}
	if out.Logits, out.State, err = p.m.spliceInto(table, l.Plan, r.Prompt(), src); err != nil {
		return nil, err
	}
	out.State.Spliced = out.State.Spliced || r.From != nil && r.From.Spliced
	return out, out.intact()
}

// plain computes a whole prompt into its own blocks. why becomes Result.Cache.
func (p *Pages) plain(r Request, answer int, why error) (*Resident, error) {
	prompt := r.Prompt()
	p.next++
	a, err := p.pool.Admit(p.next, &pages.Request{Pieces: []pages.Piece{{Kind: pages.Prompt, Tokens: len(prompt)}}, Output: answer})
	if err != nil {
		return nil, err
	}
	table := p.table(p.next, a, len(prompt)+answer, nil)
	for _, i := range p.m.prof.AttentionLayers() {
		table.runs[i] = table.own(i)
	}
	st := p.m.NewState()
	if r.From != nil {
		st = r.From.Clone()
		for _, i := range p.m.prof.AttentionLayers() {
			l := &st.Layers[i]
			table.putAll(i, 0, st.Tokens, l.K, l.V, p.m.rowSize())
			l.K, l.V = nil, nil
		}
	}
	st.Pages = table
	out := &Resident{Result: Result{Cache: why, Recomputed: len(prompt) - st.Tokens, State: st}, pages: p}
	if out.Logits, err = p.m.Prefill(st, prompt[st.Tokens:]); err != nil {
		p.pool.Abandon(table.id)
		return nil, err
	}
	return out, nil
}

// admit reserves blocks for a request.
func (p *Pages) admit(l *leased, r Request, answer int) (*Table, error) {
	pieces, origins := p.pieces(l, r)
	p.next++
	a, err := p.pool.Admit(p.next, &pages.Request{Pieces: pieces, Output: answer})
	if err != nil {
		return nil, err
	}
	t := p.table(p.next, a, l.Plan.End+answer, origins)
	t.prefix = r.From
	return t, nil
}

// pieces returns a request as pieces of package pages. origins has, for each position of the
// request, the position at which its segment starts.
func (p *Pages) pieces(l *leased, r Request) (list []pages.Piece, origins []int) {
	if p.config.Copies {
		return []pages.Piece{{Kind: pages.Prompt, Tokens: l.Plan.End}}, nil
	}
	own := func(n int) {
		if last := len(list) - 1; last >= 0 && list[last].Kind == pages.Prompt {
			list[last].Tokens += n
		} else if n > 0 {
			list = append(list, pages.Piece{Kind: pages.Prompt, Tokens: n})
		}
	}
	own(len(r.Prefix))
	at := len(r.Prefix)
	origins = make([]int, l.Plan.End)
	for i, s := range l.placed {
		spec := s.Spec
		piece := pages.Piece{Kind: pages.Chunk, Key: binary.LittleEndian.Uint64(l.keys[i][:]), Tokens: spec.Tokens - spec.Tail}
		switch {
		case !s.Held:
			own(spec.Tokens)
		case spec.Role == profile.RoleFirst:
			piece.Kind = pages.Prefix
			list = append(list, piece)
		default:
			list = append(list, piece)
			own(spec.Tail)
		}
		for j := range spec.Tokens {
			origins[at+j] = at
		}
		at += spec.Tokens
	}
	own(len(r.Query))
	return list, origins
}

// place adds the rows that a request reads in the cache to its runs.
func (t *Table) place(l *leased, rows InPlace) error {
	m := t.mem.m
	for _, layer := range m.prof.AttentionLayers() {
		own := t.own(layer)
		var runs []enginekernel.Run
		for _, s := range l.Plan.Spans {
			if s.Segment < 0 || t.mem.config.Copies {
				continue
			}
			for len(own) > 0 && own[0].Begin < s.Start {
				runs, own = append(runs, own[0]), own[1:]
			}
			there, copied, err := rows.Rows(s.Segment, layer)
			if err != nil {
				return err
			}
			t.copied, t.mem.copied = t.copied+copied, t.mem.copied+copied
			origin := s.Start - l.placed[s.Segment].Spec.Head
			for _, r := range there {
				r.Begin += origin
				r.Turn = m.shift(origin)
				runs = append(runs, r)
			}
		}
		t.runs[layer] = append(runs, own...)
	}
	return nil
}

// hold and unhold update the counts of rows that requests read in the cache.
func (p *Pages) hold(l *leased) (keys []profile.SegmentKey) {
	for _, s := range l.Plan.Spans {
		if s.Segment < 0 {
			continue
		}
		key := l.keys[s.Segment]
		if p.leased[key] == nil {
			p.leased[key] = &leasedRows{bytes: int64(s.Count) * int64(2*p.row*len(p.m.prof.AttentionLayers()))}
		}
		p.leased[key].requests++
		keys = append(keys, key)
	}
	return keys
}

func (p *Pages) unhold(keys []profile.SegmentKey) {
	for _, key := range keys {
		if l := p.leased[key]; l.requests > 1 {
			l.requests--
		} else {
			delete(p.leased, key)
		}
	}
}

// intact returns an error if leased bytes may have changed. It is called after each use.
func (r *Resident) intact() error {
	if r.leases == nil {
		return nil
	}
	return r.leases.Intact()
}

// Decode adds n tokens of the answer greedily. After an error the request can only be
// released and served again.
func (r *Resident) Decode(n int) ([]uint32, error) {
	if r.State == nil {
		return nil, fmt.Errorf("request that was released: %w", ErrInvalid)
	}
	if r.decoder == nil {
		r.decoder = NewDecoder(r.pages.m, r.State, DecoderOptions{})
	}
	out := make([]uint32, 0, n)
	for range n {
		if err := r.extend(); err != nil {
			return out, err
		}
		next := Greedy(r.Logits)
		logits, err := r.decoder.Prefill([]uint32{next})
		if err == nil {
			err = r.intact()
		}
		if err != nil {
			return out, err
		}
		r.Logits, out = logits, append(out, next)
	}
	return out, nil
}

// extend renews the leases. If the cache cannot renew them, extend copies the leased rows while
// they still exist.
func (r *Resident) extend() error {
	if r.leases == nil || r.leases.Extend() == nil {
		return nil
	}
	own, err := r.Copy()
	if err != nil {
		return err
	}
	r.Release()
	r.State, r.decoder = own, NewDecoder(r.pages.m, own, DecoderOptions{})
	return nil
}

// Copy returns the request's state with its own rows, for saving. Drafts are dropped.
func (r *Resident) Copy() (*State[float32], error) {
	if r.State == nil {
		return nil, fmt.Errorf("request that was released: %w", ErrInvalid)
	}
	if r.decoder != nil {
		r.decoder.Settle()
	}
	out := r.State.Clone()
	return out, r.intact()
}

// Release releases leases and blocks; the request and its State must not be used after
// that. Further calls do nothing.
func (r *Resident) Release() {
	if r.State == nil || r.State.Pages == nil {
		return
	}
	r.State.Pages.gone = true
	r.pages.pool.Release(r.State.Pages.id)
	r.pages.copied -= r.State.Pages.copied
	r.pages.unhold(r.keys)
	if r.leases != nil {
		r.leases.Release()
	}
	r.leases, r.keys = nil, nil
	r.State, r.decoder = nil, nil
}
