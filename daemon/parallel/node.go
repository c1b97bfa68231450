package parallel

import (
	"context"
	"time"

	"github.com/spliced-kv/spliced/tiering/peer"
)

// node is a node, another one or this one, whose engines may compute for a plan.
type node interface {
	offer(ctx context.Context, q *offerRequest) (offer, error)
	work(ctx context.Context, q *workRequest) ([]verdict, error)
	// results waits for results that were not seen yet. It returns tier.ErrGone if the node does not
	// know the plan, or no longer knows it.
	results(ctx context.Context, q *resultsRequest) ([]result, error)
}

// member is another node.
type member struct {
	of     *Work
	number peer.Node
}

func (m member) call(ctx context.Context, path string, body []byte, within time.Duration, most int) ([]byte, error) {
	m.of.counts.SentBytes.Add(uint64(len(body)))
	return m.of.cfg.Cluster.Peers.Call(ctx, m.number, &peer.Call{Path: path, Body: body, Within: within, Most: most})
}

func (m member) offer(ctx context.Context, q *offerRequest) (offer, error) {
	b, err := m.call(ctx, offerPath, q.append(nil), connectTime, maxOffer)
	if err != nil {
		return offer{}, err
	}
	return decodeOfferAnswer(b, len(q.keys))
}

func (m member) work(ctx context.Context, q *workRequest) ([]verdict, error) {
	b, err := m.call(ctx, workPath, q.append(nil), pollTime, maxVerdicts)
	if err != nil {
		return nil, err
	}
	return decodeVerdicts(b, len(q.jobs))
}

func (m member) results(ctx context.Context, q *resultsRequest) ([]result, error) {
	wait := time.Duration(q.waitMs) * time.Millisecond
	b, err := m.call(ctx, resultsPath, q.append(nil), wait+2*time.Second, maxResults)
	if err != nil {
		return nil, err
	}
	return decodeResultsAnswer(b)
}

// here is this node itself, for the plan of one of its connections.
type here struct {
	of    *Work
	conn  uint64
	scope Scope
}

func (h here) offer(_ context.Context, q *offerRequest) (offer, error) {
	return h.of.offer(h.scope, q, h.conn), nil
}

func (h here) work(_ context.Context, q *workRequest) ([]verdict, error) {
	return h.of.take("", h.scope, q), nil
}

func (h here) results(ctx context.Context, q *resultsRequest) ([]result, error) {
	return h.of.answerResults(ctx, "", q)
}
