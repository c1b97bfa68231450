package parallel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Serves reports whether Handler serves a path.
func Serves(path []byte) bool {
	return string(path) == offerPath || string(path) == workPath || string(path) == resultsPath
}

var errClosing = fmt.Errorf("parallel: closing: %w", tier.ErrUnavailable)

// Handler answers requests of other nodes. It waits only for results, for at most pollTime.
func (w *Work) Handler(ctx *fasthttp.RequestCtx) {
	w.counts.ReceivedBytes.Add(uint64(len(ctx.PostBody())))
	out, err := w.answer(ctx, w.cfg.Cluster.PeerOf(ctx))
	if err != nil {
		w.refuse(ctx, err)
		return
	}
	ctx.Response.Header.SetContentType("application/octet-stream")
	ctx.Response.SetBodyRaw(out)
}

func (w *Work) answer(ctx *fasthttp.RequestCtx, from string) ([]byte, error) {
	body := ctx.PostBody()
	most := map[string]int{offerPath: maxOfferBody, workPath: maxWorkBody, resultsPath: maxPollBody}[string(ctx.Path())]
	if !ctx.IsPost() || len(body) > most {
		return nil, invalid("%s of %d bytes", ctx.Method(), len(body))
	}
	switch string(ctx.Path()) {
	case offerPath:
		q, err := decodeOffer(body)
		if err != nil {
			return nil, err
		}
		o := offer{held: make([]bool, len(q.keys))}
		if s, ok := w.scopeOf(&q.scope); ok {
			o = w.offer(s, &q, 0)
		}
		return o.append(nil), nil
	case workPath:
		q, err := decodeWork(body)
		if err != nil {
			return nil, err
		}
		verdicts := make([]verdict, len(q.jobs)) // zero values: all declined
		if s, ok := w.scopeOf(&q.scope); ok {
			verdicts = w.take("peer "+from, s, &q)
		}
		return appendVerdicts(nil, verdicts), nil
	}
	q, err := decodeResults(body)
	if err != nil {
		return nil, err
	}
	if err := w.enter(from); err != nil {
		return nil, err
	}
	defer w.leavePoll(from)
	list, err := w.answerResults(w.ctx, "peer "+from, &q)
	return appendResults(nil, list), err
}

// refuse answers with the status and code of an error, as the peers' object server does.
func (w *Work) refuse(ctx *fasthttp.RequestCtx, err error) {
	status, code := fasthttp.StatusServiceUnavailable, "unavailable"
	switch {
	case errors.Is(err, tier.ErrInvalid):
		status, code = fasthttp.StatusBadRequest, "invalid"
		w.counts.Invalid.Add(1)
	case errors.Is(err, tier.ErrGone):
		status, code = fasthttp.StatusNotFound, "gone"
	case errors.Is(err, tier.ErrBusy):
		status, code = fasthttp.StatusTooManyRequests, "busy"
		w.counts.Busy.Add(1)
	}
	ctx.Response.SetStatusCode(status)
	ctx.Response.Header.SetContentType("text/plain")
	ctx.Response.SetBodyString(code + ": " + err.Error() + "\n")
}

// enter counts a request that may wait, or refuses it.
func (w *Work) enter(from string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return errClosing
	case w.polls[from] >= maxPolls:
		return busy("%d requests of this peer wait", maxPolls)
	}
	w.polls[from]++
	w.running.Add(1)
	return nil
}

func (w *Work) leavePoll(from string) {
	w.mu.Lock()
	if w.polls[from]--; w.polls[from] == 0 {
		delete(w.polls, from)
	}
	w.mu.Unlock()
	w.running.Done()
}

// scopeOf returns this node's scope for the scope of another node. The profile must be registered
// here. There must be a tenant of the same name and salt that allows token ids to leave its node.
func (w *Work) scopeOf(t *scopeTag) (Scope, bool) {
	tenant, known := w.cfg.Cluster.Names.TenantOf(t.tenant)
	id, _, ok := w.cfg.Store.FindProfile(t.fingerprint)
	return Scope{id, t.fingerprint, tenant}, ok && known && w.tenants[tenant].Parallel
}

// offer returns this node's offer, without the engine of the connection in the parameter not (0 =
// none).
func (w *Work) offer(s Scope, q *offerRequest, not uint64) (o offer) {
	o.held = w.holds(s, q.keys)
	model, err := w.cfg.Store.CostModel(s.Profile)
	if err == nil {
		o.prefill = model.Prefill()
		o.engines = w.board.engines(s, not, q.primers, w.cfg.Now())
	}
	return o
}

// take queues the jobs of a plan that are valid and for which there is room. It returns a verdict
// on each job.
func (w *Work) take(from string, s Scope, q *workRequest) []verdict {
	list := make([]verdict, len(q.jobs))
	p, ok := w.cfg.Store.Profile(s.Profile)
	model, err := w.cfg.Store.CostModel(s.Profile)
	if !ok || err != nil {
		return list
	}
	prefill := model.Prefill()
	for i := range q.jobs {
		a, err := w.accept(p, s, &q.jobs[i])
		if err != nil {
			w.counts.Invalid.Add(1)
			w.cfg.Log.Warn().Err(err).Str("peer", from).Msg("refused an invalid job")
			continue
		}
		a.millis = prefill.Millis(a.begin, len(a.IDs))
		key := originKey{from, q.plan}
		j := w.board.take(key, s, a, w.cfg.Now())
		if j == nil {
			continue
		}
		list[i] = taken
		switch {
		case w.holds(s, []profile.SegmentKey{a.Key})[0]:
			w.board.published(s, a.Key)
		case a.fetch:
			w.bringLeft(j, s, a, q.jobs[i].holder)
		}
	}
	signal(w.wake)
	return list
}

// accept validates a job and computes the keys of its segment and of its left piece.
func (w *Work) accept(p *profile.Profile, s Scope, j *jobRequest) (a *accepted, err error) {
	salt := w.tenants[s.Tenant].Salt
	a = &accepted{number: j.number, engine: j.engine, begin: j.begin, fetch: j.begin > 0}
	a.Segment = Segment{Spec: j.spec, IDs: j.ids}
	a.until = w.cfg.Now().Add(min(time.Duration(j.micros)*time.Microsecond, MaxWithin))
	if a.Key, err = key(p, salt, j.spec, j.ids); err != nil || j.begin == 0 {
		return a, err
	}
	a.left, err = key(p, salt, j.spec.Left(j.begin), j.ids[:j.begin])
	return a, err
}

// bringLeft fetches the left piece of a job, before its engine gets the job.
func (w *Work) bringLeft(j *job, s Scope, a *accepted, holder string) {
	if c := w.cfg.Cluster; c != nil && holder != "" {
		if node, ok := c.Node(holder); ok {
			want := s.want(a.left)
			c.Peers.Tell(&want, node)
		}
	}
	until := a.until
	started := w.start(func() {
		ctx, cancel := context.WithTimeout(w.ctx, until.Sub(w.cfg.Now()))
		defer cancel()
		let, _ := w.lease(ctx, s, a.left, until)
		w.board.fetched(j, let)
	})
	if !started {
		w.board.fetched(j, nil)
	}
}

// start runs f in a new goroutine; false = w is closed.
func (w *Work) start(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.running.Go(f)
	}
	return !w.closed
}

// answerResults waits for new results of a plan that has jobs on this node.
func (w *Work) answerResults(ctx context.Context, from string, q *resultsRequest) ([]result, error) {
	o := w.board.poll(originKey{from, q.plan}, q, w.cfg.Now())
	if o == nil {
		return nil, fmt.Errorf("parallel: plan %x has no jobs here: %w", q.plan, tier.ErrGone)
	}
	defer func() { w.board.polled(o, w.cfg.Now()) }()
	var list []result
	over := false
	err := await(ctx, min(time.Duration(q.waitMs)*time.Millisecond, pollTime), o.wake, w.ctx, context.Canceled, func() bool {
		list, over = w.board.heard(o, q.seen)
		return len(list) > 0 || q.end || over || q.waitMs == 0
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("parallel: %w: %w", tier.ErrUnavailable, err)
	case over && !q.end && len(list) == 0:
		return nil, fmt.Errorf("parallel: plan %x has ended here: %w", q.plan, tier.ErrGone)
	}
	return list, nil
}
