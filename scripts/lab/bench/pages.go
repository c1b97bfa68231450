package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/pages"
	"github.com/spliced-kv/spliced/scripts/lab/pages/xquad"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/remote"
)

// pagesSections returns the sections of the suite pages: they compare requests of the reference
// engine that read segments in place, in a daemon's memory, with requests that have their own
// copies.
func pagesSections() []section {
	return []section{{"held", heldRows}, {"alike", alikeRows}, {"decode", pagesDecodeRows}}
}

const pagesBlock = 16

// pagesWays are the memory layouts of a request.
var pagesWays = []struct {
	name      string
	copies    bool
	ownSystem bool // each request has its own system prompt, because the paper does not say that requests share it
	rules     pages.Rules
	simulated map[int]float64 // ratio of copies to pages, by number of requests: docs/policies.md
}{
	{"copies", true, true, pages.Rules{}, nil},
	{"paper", false, true, pages.Rules{}, map[int]float64{75: 2.65, 300: 5.24}},
	{"window of 8, packed", false, false, pages.Rules{Window: 8, Pack: true}, map[int]float64{75: 3.15, 300: 7.84}},
	{"and left shared", false, false, pages.Rules{Window: 8, Pack: true, ShareLeft: true}, map[int]float64{75: 3.16, 300: 7.99}},
}

// pagesBed is a daemon with an engine.
type pagesBed struct {
	daemon *child.Daemon
	client *connector.Client
	store  *remote.Store
	model  *refengine.Model[float32]
}

func startPages(ctx context.Context, s *session) (b *pagesBed, err error) {
	// The model has no short convolution, so that the first block of a chunk may consist of one
	// token, as in the paper's models.
	c := modelfile.Small("bench-pages")
	c.Linear.Family, c.Linear.Kernel, c.Linear.KeyHeads = profile.Lightning, 0, c.Linear.ValueHeads
	w, err := modelfile.Seeded(c, 1)
	if err != nil {
		return nil, err
	}
	b = &pagesBed{}
	if b.model, err = refengine.New[float32](w); err != nil {
		return nil, err
	}
	if b.daemon, err = child.Start(ctx, child.Options{Binary: s.options.Daemon, Args: []string{"-arena", "1GiB", "-private", "16MiB"}}); err != nil {
		return nil, err
	}
	b.client, err = connector.Open(connector.Options{Socket: b.daemon.Socket, Name: "splicectl bench", Timeouts: patient})
	if err != nil {
		return nil, errors.Join(err, b.daemon.Stop())
	}
	r, err := b.client.Register(b.model.Profile(), connector.Binding{Connector: "splicectl bench"})
	if err == nil {
		err = r.WaitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, b.stop())
	}
	b.store = remote.New(ctx, b.client, r)
	b.store.InPlace = 5 * time.Minute
	return b, nil
}

func (b *pagesBed) stop() error { return errors.Join(b.client.Close(), b.daemon.Stop()) }

// pages returns engine memory with room for the given number of copied tokens.
func (b *pagesBed) pages(rules pages.Rules, tokens int, copies bool) (*refengine.Pages, error) {
	rules.BlockTokens = pagesBlock
	return refengine.NewPages(b.model, refengine.PagesConfig{
		Config: pages.Config{Rules: rules, Blocks: tokens/pagesBlock + 64}, Copies: copies,
	})
}

// passages returns one request per element of list. The tokens of each passage and question are
// random, and there are as many as in the real texts.
func passages(list []xquad.Asked, ownSystem bool) []refengine.Request {
	lengths, _ := xquad.Passages()
	text := func(id, n int) []uint32 {
		out := tokensOf(id, n)
		for i := range out {
			out[i] %= 256
		}
		return out
	}
	out := make([]refengine.Request, len(list))
	for i, a := range list {
		r := refengine.Request{Query: text(10_000+i, a.Question)}
		if system := text(9_999, xquad.SystemTokens); ownSystem {
			r.Lead = system
		} else {
			r.First = system
		}
		for _, p := range a.Passages {
			r.Mid = append(r.Mid, text(p+1, lengths[p]))
		}
		out[i] = r
	}
	return out
}

// heldPeak serves requests one after another and keeps the most recent ones in memory; resident
// is their number. It returns the peak of the bytes of keys and values that these requests held.
// It calls look, if not nil, with each request.
func (b *pagesBed) heldPeak(p *refengine.Pages, requests []refengine.Request, resident int, look func(i int, r *refengine.Resident) error) (peak int64, err error) {
	var live []*refengine.Resident
	defer func() {
		for _, r := range live {
			r.Release()
		}
	}()
	for i, q := range requests {
		if len(live) == resident {
			live[0].Release()
			live = live[1:]
		}
		r, err := p.Serve(b.store, q, xquad.OutputTokens)
		if err == nil {
			live = append(live, r)
			err = r.Cache
		}
		if err == nil && look != nil {
			err = look(i, r)
		}
		if err != nil {
			return 0, fmt.Errorf("request %d of %d: %w", i, len(requests), err)
		}
		peak = max(peak, p.Held().Total())
	}
	return peak, nil
}

// heldRows measures the memory held by requests of the XQuAD list.
func heldRows(ctx context.Context, s *session) (err error) {
	b, err := startPages(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	list, residents := xquad.Uniform(), []int{25, 75, 150, 300}
	if s.effort == 0 {
		list, residents = list[:30], []int{25}
	}
	copies := map[int]int64{}
	for _, way := range pagesWays {
		requests := passages(list, way.ownSystem)
		answers, err := b.copied(way.rules, requests[:min(len(requests), 40)])
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		for _, n := range residents {
			p, err := b.pages(way.rules, n*3_000, way.copies)
			if err != nil {
				return err
			}
			worst := 0.0
			peak, err := b.heldPeak(p, requests, n, func(i int, r *refengine.Resident) error {
				if i < len(answers) && n == residents[0] {
					worst = max(worst, apart(r.Logits, answers[i]))
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("%s, %d requests: %w", way.name, n, err)
			}
			if n == residents[0] {
				s.add(row("pages/"+way.name+": logits beside copies, of their spread", "", worst, 0, bar{atMost: 0.1}))
			}
			s.add(row(fmt.Sprintf("pages/%s, %d requests", way.name, n), "MiB", float64(peak)/(1<<20), 0, bar{}))
			if way.copies {
				copies[n] = peak
				continue
			}
			saved, want := float64(copies[n])/float64(peak), bar{}
			if way.simulated[n] > 0 {
				want = bar{ratioAtLeast: 0.97, ratioAtMost: 1.03, all: true}
			}
			s.add(row(fmt.Sprintf("pages/%s, %d requests: copies over it", way.name, n), "x", saved, way.simulated[n], want))
			s.progress("%s, %d requests: %.2f", way.name, n, saved)
		}
	}
	return nil
}

// copied serves the requests with copied keys and values and the same seams, and returns their
// logits.
func (b *pagesBed) copied(rules pages.Rules, requests []refengine.Request) (logits [][]float32, err error) {
	p, err := b.pages(rules, 3_000, true)
	if err != nil {
		return nil, err
	}
	_, err = b.heldPeak(p, requests, 1, func(_ int, r *refengine.Resident) error {
		logits = append(logits, slices.Clone(r.Logits))
		return nil
	})
	return logits, err
}

// apart returns the largest difference between logits a and b, in standard deviations of b.
func apart(a, b []float32) float64 {
	worst, sum, squares := 0.0, 0.0, 0.0
	for i, x := range b {
		worst = max(worst, math.Abs(float64(a[i]-x)))
		sum, squares = sum+float64(x), squares+float64(x)*float64(x)
	}
	n := float64(len(b))
	return worst / math.Sqrt(squares/n-sum/n*sum/n)
}

// alikeRows keeps requests of equal shape resident and compares the ratio R of copies to pages
// with its closed form, R = N(n b + p)/(N(n + p) + D(b - 1)). The letters are as in
// pages.Alike: N requests of n chunks, b blocks per chunk, p blocks of prompt, and D distinct
// chunks.
func alikeRows(ctx context.Context, s *session) (err error) {
	b, err := startPages(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	form := pages.Alike{Requests: 24, Chunks: 5, ChunkBlocks: 8, PromptBlocks: 4, Distinct: 12}
	if s.effort == 0 {
		form.Requests, form.Distinct = 6, 6
	}
	requests := make([]refengine.Request, form.Requests)
	text := func(id, blocks int) []uint32 {
		out := tokensOf(id, blocks*pagesBlock)
		for i := range out {
			out[i] %= 256
		}
		return out
	}
	for i := range requests {
		for c := range form.Chunks {
			requests[i].Mid = append(requests[i].Mid, text(20_000+(i*form.Chunks+c)%form.Distinct, form.ChunkBlocks))
		}
		requests[i].Query = text(30_000+i, form.PromptBlocks)[xquad.OutputTokens:]
	}
	var held [2]int64
	for i, copies := range []bool{true, false} {
		p, err := b.pages(pages.Rules{}, form.Copied()*pagesBlock, copies)
		if err != nil {
			return err
		}
		if held[i], err = b.heldPeak(p, requests, form.Requests, nil); err != nil {
			return err
		}
	}
	s.add(row("pages/requests alike: copies over the paper's layout", "x", float64(held[0])/float64(held[1]), form.Ratio(), bar{ratioAtLeast: 0.9999, ratioAtMost: 1.0001, all: true}))
	return nil
}

// pagesDecodeRows compares decoding with keys and values in place, with copies in pages, and
// with contiguous copies in F32.
func pagesDecodeRows(ctx context.Context, s *session) (err error) {
	b, err := startPages(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	const tokens = 8
	rounds := s.rounds(60)
	request := passages(xquad.Uniform()[:1], false)[0]
	var sides []func() error
	for _, copies := range []bool{true, false} {
		p, err := b.pages(pagesWays[2].rules, 4_000+2*rounds*tokens, copies)
		if err != nil {
			return err
		}
		r, err := p.Serve(b.store, request, (rounds+1)*tokens)
		if err != nil || r.Cache != nil {
			return errors.Join(err, r.Cache)
		}
		defer r.Release()
		sides = append(sides, func() error { _, err := r.Decode(tokens); return err })
	}
	request.Seam = pagesWays[2].rules.Window
	flat, err := refengine.Serve(b.model, b.store, request)
	if err != nil || flat.Cache != nil {
		return errors.Join(err, flat.Cache)
	}
	decoder, logits := refengine.NewDecoder(b.model, flat.State, refengine.DecoderOptions{}), flat.Logits
	sides = append(sides, func() error {
		for range tokens {
			if logits, err = decoder.Prefill([]uint32{refengine.Greedy(logits)}); err != nil {
				return err
			}
		}
		return nil
	})
	times := make([][]float64, len(sides))
	for round := range rounds + 1 {
		for i := range sides {
			side := (i + round) % len(sides)
			begin := time.Now()
			if err := sides[side](); err != nil {
				return err
			}
			if round > 0 { // the first round is a warm-up
				times[side] = append(times[side], float64(time.Since(begin).Microseconds())/tokens)
			}
		}
	}
	inPlace, end := median(times[1]), flat.Plan.End
	s.add(row(fmt.Sprintf("pages/a token behind %d in place, of copies in pages", end), "us", inPlace, median(times[0]), bar{ratioAtMost: 1 / 0.95}),
		row(fmt.Sprintf("pages/a token behind %d in place, of copies in F32", end), "us", inPlace, median(times[2]), bar{ratioAtMost: 1 / 0.95}))
	return nil
}
