// Package spans tells an OpenTelemetry collector how prompts were served: a span for each
// request that an engine told of, as a child of the engine's own where it has a trace, with
// one for the decision and one for the wait inside it. Export is by OTLP over HTTP, behind
// a bounded queue; what a collector does not take is dropped and counted by the SDK.
package spans

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/spliced-kv/spliced/daemon/usage"
)

const (
	queueSpans   = 4096            // that wait for the collector; more are dropped
	exportAfter  = 2 * time.Second // at most
	exportWithin = 5 * time.Second // of one attempt
)

// Config says where spans go.
type Config struct {
	Endpoint string // URL of the collector, such as http://localhost:4318/v1/traces
	Node     string
	Version  string
	Log      zerolog.Logger // of failures, as the SDK has them
}

// Spans makes spans of requests.
type Spans struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New begins to export. A collector that is not there is tried for each batch.
func New(c Config) (*Spans, error) {
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(c.Endpoint), otlptracehttp.WithTimeout(exportWithin))
	if err != nil {
		return nil, fmt.Errorf("spans to %s: %w", c.Endpoint, err)
	}
	log := c.Log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Minute}) // each batch fails while nobody is there
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn().Err(err).Msg("spans are not exported now") }))
	of := resource.NewSchemaless(
		attribute.String("service.name", "spliced"), attribute.String("service.version", c.Version), attribute.String("service.instance.id", c.Node),
	)
	provider := sdk.NewTracerProvider(
		sdk.WithResource(of),
		// The engine decides, where it has a trace: its parent says whether it is sampled.
		sdk.WithSampler(sdk.ParentBased(sdk.AlwaysSample())),
		sdk.WithBatcher(exporter, sdk.WithMaxQueueSize(queueSpans), sdk.WithBatchTimeout(exportAfter)),
	)
	return &Spans{provider, provider.Tracer("github.com/spliced-kv/spliced")}, nil
}

// Close exports what waits, for as long as ctx allows, and ends.
func (s *Spans) Close(ctx context.Context) error { return s.provider.Shutdown(ctx) }

// Served makes the spans of a request. They end when it was told, right after its first
// token, and begin as long before as its engine says. way and tenant are names.
func (s *Spans) Served(r *usage.Request, way, tenant string) {
	ctx := context.Background()
	if r.Parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: r.Parent.Trace, SpanID: r.Parent.Span, TraceFlags: trace.TraceFlags(r.Parent.Flags), Remote: true,
		}))
	}
	begin := r.At.Add(-max(r.First, r.Match+r.Wait))
	ctx, span := s.tracer.Start(ctx, "spliced.request", trace.WithTimestamp(begin), trace.WithAttributes(
		attribute.String("spliced.way", way), attribute.String("spliced.tenant", tenant), attribute.String("spliced.model", r.Who.Model),
		attribute.String("spliced.client", r.Who.Client), attribute.String("spliced.request", r.Name),
		attribute.Int64("spliced.number", int64(r.Number)), //nolint:gosec // it counts up from 1
		attribute.Int("spliced.tokens.prompt", int(r.Tokens)), attribute.Int64("spliced.tokens.engine", tokens(r, usage.Engine)),
		attribute.Int64("spliced.tokens.prefix", tokens(r, usage.Checkpoint)), attribute.Int64("spliced.tokens.segment", tokens(r, usage.Segment)),
		attribute.Int64("spliced.tokens.computed", tokens(r, usage.Computed)), attribute.Float64("spliced.saved_ms", r.Saved),
	))
	s.part(ctx, "spliced.match", begin, r.Match)
	s.part(ctx, "spliced.wait", begin.Add(r.Match), r.Wait)
	span.End(trace.WithTimestamp(r.At))
}

func tokens(r *usage.Request, from usage.From) int64 { return int64(r.Sources[from]) } //nolint:gosec // at most the prompt's

// part is a span inside that of a request, if it took any time.
func (s *Spans) part(ctx context.Context, name string, begin time.Time, took time.Duration) {
	if took > 0 {
		_, span := s.tracer.Start(ctx, name, trace.WithTimestamp(begin))
		span.End(trace.WithTimestamp(begin.Add(took)))
	}
}
