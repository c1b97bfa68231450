package connector

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// AdviseQuery asks what to use and what to store for a prompt. An engine asks twice. When a
// prompt arrives, it passes the result of Match. When the answer is complete, it appends the
// answer to Tokens and sets Output. Advise keeps no reference to the query.
type AdviseQuery struct {
	Tokens []uint32 // the whole prompt
	Output int      // number of generated tokens at the end of Tokens
	Record bool     // the prompt is being served: the daemon remembers it
	// Every advised position is a multiple of BlockTokens; 0 = the binding's block size.
	BlockTokens    int
	MaxCheckpoints int // 0 = the daemon's default

	Found        *Found // result of Match for this prompt; nil = nothing is cached
	BufferTokens int    // end of a buffer over this prompt; 0 = none
	SeamTokens   int    // tokens of all seams together, which are recomputed if the segments are used

	Cuts     []int         // boundaries named by the application, ascending
	Segments []SegmentSpan // segments of the prompt, in the order of Found.Segments
	Samples  []Sample      // prefills measured since the last Advise; only the last 1024 are sent
}

// SegmentSpan is the range of a segment in its prompt.
type SegmentSpan struct{ Begin, Tokens int }

// Sample is the measured time to compute tokens [Begin, End) after the tokens before Begin.
type Sample struct {
	Begin, End int
	Took       time.Duration
}

// Advice answers an AdviseQuery. Without a daemon it is the zero value, which advises to use
// nothing and to store nothing.
type Advice struct {
	SeenTokens int   // longest prefix of the prompt that was seen before, stored or not
	Way        uint8 // wire.Way…: the fastest way to serve the prompt; 0 = no advice
	// Predicted[w-1] is the predicted time to serve the prompt in way w; negative = the way is
	// impossible.
	Predicted   []time.Duration
	Checkpoints []CheckpointAdvice // ascending
	Segments    []SegmentAdvice    // one per segment of the query, or none
}

// CheckpointAdvice is a candidate position for a checkpoint.
type CheckpointAdvice struct {
	Tokens int
	Save   bool
	Why    uint8   // wire.Why…: what makes the position a candidate
	Reason uint8   // wire.Advice…: why to save it, or not
	Value  float64 // expected milliseconds saved per MiB
}

// SegmentAdvice reports whether a missing segment is worth publishing.
type SegmentAdvice struct {
	Publish bool
	Reason  uint8 // wire.Advice…
}

// Advise asks for advice. It waits at most Timeouts.Lookup. With an error it returns the zero
// Advice, so callers may continue with it without checking the error.
func (m *Model) Advise(ctx context.Context, q *AdviseQuery) (Advice, error) {
	request, err := m.adviseRequest(q)
	if err != nil {
		return Advice{}, fmt.Errorf("advise: %w", err)
	}
	n := &m.client.counters
	advice, err := m.advise(ctx, q.Tokens, request)
	if err != nil {
		n.unadvised.Add(1)
		return Advice{}, err
	}
	n.advised.Add(1)
	return advice, nil
}

func (m *Model) advise(ctx context.Context, tokens []uint32, request *wire.AdviseRequest) (Advice, error) {
	r, k, err := m.begin(ctx, wire.OpAdvise, m.client.opt.Timeouts.Lookup)
	if err != nil {
		return Advice{}, err
	}
	defer r.end(k)
	a := r.a
	request.Profile = r.profile
	if request.TokenOff, err = stageTokens(ctx, a, k, tokens); err != nil {
		return Advice{}, fmt.Errorf("advise: %w", err)
	}
	var reply wire.AdviseReply
	if err := r.ask(ctx, k, request, &reply); err != nil {
		return Advice{}, err
	}
	return adviceOf(a, &reply, len(tokens), len(request.SegmentBegin))
}

// stageTokens writes token ids into staging that belongs to the call.
func stageTokens(ctx context.Context, a *link.Attachment, k *link.Call, tokens []uint32) (off uint64, err error) {
	mem, off, err := a.Stage(ctx, k, int64(4*len(tokens)))
	if err != nil {
		return 0, fmt.Errorf("token ids: %w", err)
	}
	for i, id := range tokens {
		binary.LittleEndian.PutUint32(mem[4*i:], id)
	}
	return off, nil
}

// adviseRequest validates a query and turns it into a request.
func (m *Model) adviseRequest(q *AdviseQuery) (*wire.AdviseRequest, error) {
	n := len(q.Tokens)
	switch {
	case n < 1 || n > profile.MaxTokens:
		return nil, invalid("%d tokens, want 1 to %d", n, profile.MaxTokens)
	case q.Output < 0 || q.Output > n, q.BufferTokens < 0 || q.BufferTokens > n, q.SeamTokens < 0 || q.SeamTokens > n:
		return nil, invalid("output %d, buffer %d, seams %d of %d tokens", q.Output, q.BufferTokens, q.SeamTokens, n)
	case q.BlockTokens < 0 || q.BlockTokens > profile.MaxTokens || q.MaxCheckpoints < 0 || q.MaxCheckpoints > wire.MaxPositions:
		return nil, invalid("blocks of %d tokens, %d checkpoints, at most %d", q.BlockTokens, q.MaxCheckpoints, wire.MaxPositions)
	case len(q.Cuts) > wire.MaxKeys || len(q.Segments) > wire.MaxKeys:
		return nil, invalid("%d cuts and %d segments, at most %d", len(q.Cuts), len(q.Segments), wire.MaxKeys)
	}
	request := &wire.AdviseRequest{
		Record: flag(q.Record), BlockTokens: uint32(q.BlockTokens), MaxCheckpoints: uint32(q.MaxCheckpoints),
		Tokens: uint32(n), Output: uint32(q.Output), BufferTokens: uint32(q.BufferTokens), SeamTokens: uint32(q.SeamTokens),
	}
	if q.BlockTokens == 0 {
		request.BlockTokens = uint32(m.binding.BlockTokens)
	}
	for _, cut := range q.Cuts {
		if cut < 0 || cut > n {
			return nil, invalid("cut at %d of %d tokens", cut, n)
		}
		request.Cuts = append(request.Cuts, uint32(cut))
	}
	addSamples(request, q.Samples)
	return request, addFound(request, q)
}

// addFound adds the result of Match.
func addFound(request *wire.AdviseRequest, q *AdviseQuery) error {
	if q.Found != nil {
		if p := q.Found.PrefixTokens; p < 0 || p > len(q.Tokens) {
			return invalid("prefix of %d of %d tokens", p, len(q.Tokens))
		}
		request.PrefixTokens, request.PrefixTier = uint32(q.Found.PrefixTokens), q.Found.PrefixTier
		if q.Found.PrefixKind == Rows { // the request can continue from the states before the rows, or by a replay
			request.PrefixTokens = uint32(q.Found.PrefixStates)
			request.BufferTokens = max(request.BufferTokens, uint32(q.Found.PrefixTokens))
		}
		if len(q.Found.Segments) > 0 && len(q.Segments) != len(q.Found.Segments) {
			return invalid("%d segments, %d were matched", len(q.Segments), len(q.Found.Segments))
		}
	}
	for i, s := range q.Segments {
		if s.Begin < 0 || s.Tokens < 1 || s.Begin > len(q.Tokens)-s.Tokens {
			return invalid("segment [%d, +%d) of %d tokens", s.Begin, s.Tokens, len(q.Tokens))
		}
		var found SegmentFound
		if q.Found != nil && len(q.Found.Segments) > 0 {
			found = q.Found.Segments[i]
		}
		request.SegmentBegin = append(request.SegmentBegin, uint32(s.Begin))
		request.SegmentTokens = append(request.SegmentTokens, uint32(s.Tokens))
		request.SegmentStatus = append(request.SegmentStatus, found.Status)
		request.SegmentTier = append(request.SegmentTier, found.Tier)
	}
	return nil
}

// addSamples adds the newest wire.MaxSamples samples and leaves out invalid ones.
func addSamples(request *wire.AdviseRequest, samples []Sample) {
	for _, s := range samples[max(0, len(samples)-wire.MaxSamples):] {
		micros := s.Took.Microseconds()
		if s.Begin < 0 || s.Begin >= s.End || s.End > profile.MaxTokens || micros < 1 || micros > math.MaxUint32 {
			continue
		}
		request.SampleBegin = append(request.SampleBegin, uint32(s.Begin))
		request.SampleEnd = append(request.SampleEnd, uint32(s.End))
		request.SampleMicros = append(request.SampleMicros, uint32(micros))
	}
}

// adviceOf turns a reply into an Advice. A position outside the prompt or out of order is a
// protocol error, because an engine would save a wrong state there.
func adviceOf(a *link.Attachment, reply *wire.AdviseReply, tokens, segments int) (Advice, error) {
	advice := Advice{SeenTokens: int(reply.SeenTokens), Way: reply.Way}
	if int64(reply.SeenTokens) > int64(tokens) || reply.Way < 1 || int(reply.Way) > len(reply.WayMicros) {
		return Advice{}, a.Malformed("advise: %d of %d tokens seen, way %d of %d", reply.SeenTokens, tokens, reply.Way, len(reply.WayMicros))
	}
	if len(reply.SegmentAdmit) != segments {
		return Advice{}, a.Malformed("advise: %d rows for %d segments", len(reply.SegmentAdmit), segments)
	}
	for _, micros := range reply.WayMicros {
		took := time.Duration(-1)
		if limit := float64(math.MaxInt64 / 2000); micros >= 0 && micros < limit {
			took = time.Duration(micros * 1e3)
		}
		advice.Predicted = append(advice.Predicted, took)
	}
	last := uint32(0)
	for i, at := range reply.Positions {
		if at <= last || int64(at) > int64(tokens) {
			return Advice{}, a.Malformed("advise: position %d after %d of %d tokens", at, last, tokens)
		}
		last = at
		advice.Checkpoints = append(advice.Checkpoints, CheckpointAdvice{
			Tokens: int(at), Save: reply.Admit[i] == 1, Why: reply.Why[i], Reason: reply.Reason[i], Value: reply.Value[i],
		})
	}
	for i := range reply.SegmentAdmit {
		advice.Segments = append(advice.Segments, SegmentAdvice{Publish: reply.SegmentAdmit[i] == 1, Reason: reply.SegmentReason[i]})
	}
	return advice, nil
}
