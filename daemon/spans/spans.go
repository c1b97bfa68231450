// Package spans reports to an OpenTelemetry collector how prompts were served. Each request that an
// engine reported becomes a span, which is a child of the engine's span if the engine has one.
// Inside it are a span for the decision and a span for the wait. Spans are sent in batches by OTLP
// over HTTP, from a bounded queue. Spans that do not fit, or that the collector does not accept,
// are dropped and counted. Served may be called concurrently and does not block.
// The encoding is implemented here, since OpenTelemetry's own exporter depends on gRPC, which
// would take a fourth of the daemon's size.
package spans

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/daemon/usage"
)

const (
	queueSpans  = 4096            // spans that wait for the collector; more are dropped
	batchSpans  = 512             // spans per request to the collector; the default of OpenTelemetry's SDKs
	exportAfter = 2 * time.Second // longest time until a span is sent
	logEvery    = time.Minute
)

// sampled is a flag of W3C Trace Context: the caller records the trace.
const sampled = 1

// Config configures Spans.
type Config struct {
	Endpoint string // URL of the collector, such as http://localhost:4318/v1/traces
	Headers  http.Header
	Node     string
	Version  string
	Log      zerolog.Logger // gets failures and drops, one line of each per minute
}

// Spans creates spans of requests and sends them.
type Spans struct {
	endpoint string
	headers  http.Header
	resource message // the fields of ResourceSpans and ScopeSpans that all batches share
	scope    message
	client   *http.Client
	log      zerolog.Logger
	failures zerolog.Logger // writes at most one line per minute

	queue   chan message // encoded spans
	dropped atomic.Uint64
	stop    chan struct{} // closed by Close
	done    chan struct{} // closed when the exporter has ended
	cancel  context.CancelFunc
}

// New creates a Spans. Start must be called for its spans to be sent.
func New(c Config) (*Spans, error) {
	if _, err := url.Parse(c.Endpoint); err != nil {
		return nil, fmt.Errorf("spans to the collector: %w", err)
	}
	s := &Spans{
		endpoint: c.Endpoint, headers: c.Headers.Clone(), resource: resourceOf(&c), scope: scope(),
		client: &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone(), Timeout: exportWithin},
		log:    c.Log, failures: c.Log.Sample(&zerolog.BurstSampler{Burst: 1, Period: logEvery}), // without a collector, each batch fails
		queue: make(chan message, queueSpans), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if s.headers == nil {
		s.headers = http.Header{}
	}
	s.headers.Set("Content-Type", contentType)
	s.headers.Set("User-Agent", "spliced/"+c.Version)
	return s, nil
}

// Start starts sending.
func (s *Spans) Start() {
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	go s.run(ctx)
}

// Close sends the queued spans, for as long as ctx allows, and stops sending. It may be called
// once, after Start. It returns an error only if ctx ends first.
func (s *Spans) Close(ctx context.Context) (err error) {
	close(s.stop)
	select {
	case <-s.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.cancel()
	<-s.done
	s.client.CloseIdleConnections()
	return err
}

// Served creates the spans of a request. The request's span ends when the engine reported the
// request, right after the first token. Its length is the time to first token that the engine
// reported, or the time for the match and the wait for bytes if that is more. The parameters way
// and tenant are names.
func (s *Spans) Served(r *usage.Request, way, tenant string) {
	// If the engine has a span, that span's flag says whether the trace is sampled.
	linked := r.Parent.IsValid()
	if linked && r.Parent.Flags&sampled == 0 {
		return
	}
	begin := r.At.Add(-max(r.First, r.Match+r.Wait))
	request := span{
		trace: r.Parent.Trace, parent: r.Parent.Span, id: newID(), remote: linked, flags: r.Parent.Flags,
		name: "spliced.request", begin: begin, end: r.At,
	}
	if !linked {
		request.trace, request.parent, request.flags = newTrace(), [8]byte{}, sampled
	}
	m := request.encode()
	m.text(spanAttributes, "spliced.way", way)
	m.text(spanAttributes, "spliced.tenant", tenant)
	m.text(spanAttributes, "spliced.model", r.Who.Model)
	m.text(spanAttributes, "spliced.client", r.Who.Client)
	m.text(spanAttributes, "spliced.request", r.Name)
	m.integer(spanAttributes, "spliced.number", r.Number)
	m.integer(spanAttributes, "spliced.tokens.prompt", uint64(r.Tokens))
	m.integer(spanAttributes, "spliced.tokens.engine", r.Sources[usage.Engine])
	m.integer(spanAttributes, "spliced.tokens.prefix", r.Sources[usage.Checkpoint])
	m.integer(spanAttributes, "spliced.tokens.segment", r.Sources[usage.Segment])
	m.integer(spanAttributes, "spliced.tokens.computed", r.Sources[usage.Computed])
	m.float(spanAttributes, "spliced.saved_ms", r.Saved)
	s.add(m)
	s.part(&request, "spliced.match", begin, r.Match)
	s.part(&request, "spliced.wait", begin.Add(r.Match), r.Wait)
}

// part creates a span inside the span of a request. It creates none if took is 0.
func (s *Spans) part(of *span, name string, begin time.Time, took time.Duration) {
	if took > 0 {
		part := span{trace: of.trace, parent: of.id, id: newID(), flags: of.flags, name: name, begin: begin, end: begin.Add(took)}
		s.add(part.encode())
	}
}

// add queues an encoded span. If the queue is full, it drops the span.
func (s *Spans) add(m message) {
	select {
	case s.queue <- m:
	default:
		s.dropped.Add(1)
	}
}

// Counters are the counters of spans.
type Counters struct {
	Dropped uint64 `count:"dropped" prom:"spans_dropped_total" help:"Request spans that were dropped, because the queue was full or the collector did not accept them."`
}

// Counters returns the counters since New.
func (s *Spans) Counters() Counters { return Counters{Dropped: s.dropped.Load()} }

// newID returns a random nonzero span id.
func newID() (id [8]byte) {
	for id == [8]byte{} {
		binary.BigEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// newTrace returns a random nonzero trace id.
func newTrace() (id [16]byte) {
	high, low := newID(), newID()
	copy(id[:8], high[:])
	copy(id[8:], low[:])
	return id
}
