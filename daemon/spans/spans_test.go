package spans

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/spliced-kv/spliced/daemon/usage"
)

// collector answers requests in place of a network, and keeps what it accepts.
type collector struct {
	mu       sync.Mutex
	answer   func(w *httptest.ResponseRecorder) // nil = 200
	hangs    bool                               // until the request is canceled
	requests int
	headers  http.Header // of the last
	batches  []*otlp.TracesData
}

func (c *collector) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	c.headers = r.Header
	if c.hangs { // the exporter makes one request at a time
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	w := httptest.NewRecorder()
	if c.answer != nil {
		c.answer(w)
	}
	if w.Code/100 == 2 {
		// The same on the wire as ExportTraceServiceRequest.
		m := new(otlp.TracesData)
		if err := proto.Unmarshal(body, m); err != nil {
			return nil, err
		}
		c.batches = append(c.batches, m)
	}
	return w.Result(), nil
}

// spans returns those of all batches, and how many requests there were.
func (c *collector) spans() (all []*otlp.Span, requests int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.batches {
		all = append(all, b.ResourceSpans[0].ScopeSpans[0].Spans...)
	}
	return all, c.requests
}

func start(t *testing.T, c *collector) *Spans {
	t.Helper()
	return startWith(t, c, zerolog.NewTestWriter(t))
}

func startWith(t *testing.T, c *collector, log io.Writer) *Spans {
	t.Helper()
	s, err := New(Config{
		Endpoint: "http://collector:4318/v1/traces", Headers: http.Header{"Api-Key": {"k"}},
		Node: "n1", Version: "v9", Log: zerolog.New(log),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.client.Transport = c
	s.Start()
	return s
}

func closed(t *testing.T, s *Spans) {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func served() *usage.Request {
	r := &usage.Request{
		Number: 7, At: time.Unix(1_700_000_000, 5), Name: "cmpl-\xff1", Tokens: 100, Sources: [usage.Froms]uint64{10, 20, 32, 38},
		Match: time.Millisecond, Wait: 2 * time.Millisecond, First: 40 * time.Millisecond, Saved: 12.5,
	}
	r.Who.Model, r.Who.Client = "m", "vllm"
	r.Parent = usage.Parent{Trace: [16]byte{1, 15: 2}, Span: [8]byte{3, 7: 4}, Flags: 3}
	return r
}

func TestSpansAreWhatOTLPSaysTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c collector
		s := start(t, &c)
		r := served()
		s.Served(r, "splice", "")
		closed(t, s)

		if c.headers.Get("Content-Type") != "application/x-protobuf" || c.headers.Get("User-Agent") != "spliced/v9" || c.headers.Get("Api-Key") != "k" {
			t.Errorf("headers %v", c.headers)
		}
		resource := c.batches[0].ResourceSpans[0]
		said := map[string]string{}
		for _, a := range resource.Resource.Attributes {
			said[a.Key] = a.Value.GetStringValue()
		}
		if want := map[string]string{"service.name": "spliced", "service.version": "v9", "service.instance.id": "n1"}; !maps.Equal(said, want) {
			t.Errorf("resource %v", said)
		}
		if name := resource.ScopeSpans[0].Scope.Name; name != "github.com/spliced-kv/spliced" {
			t.Errorf("scope %q", name)
		}
		all, _ := c.spans()
		if len(all) != 3 {
			t.Fatalf("%d spans", len(all))
		}
		for i, want := range []struct {
			name       string
			parent     []byte
			begin, end time.Duration // before the report
			flags      otlp.SpanFlags
		}{
			{"spliced.request", r.Parent.Span[:], 40 * time.Millisecond, 0, 3 | 0x100 | 0x200},
			{"spliced.match", all[0].SpanId, 40 * time.Millisecond, 39 * time.Millisecond, 3 | 0x100},
			{"spliced.wait", all[0].SpanId, 39 * time.Millisecond, 37 * time.Millisecond, 3 | 0x100},
		} {
			got := all[i]
			at := r.At.UnixNano()
			if got.Name != want.name || !bytes.Equal(got.TraceId, r.Parent.Trace[:]) || !bytes.Equal(got.ParentSpanId, want.parent) || len(got.SpanId) != 8 ||
				got.StartTimeUnixNano != uint64(at-int64(want.begin)) || got.EndTimeUnixNano != uint64(at-int64(want.end)) ||
				got.Flags != uint32(want.flags) || got.Kind != otlp.Span_SPAN_KIND_INTERNAL || len(got.ProtoReflect().GetUnknown()) != 0 {
				t.Errorf("span %d: %v", i, got)
			}
		}
		if bytes.Equal(all[1].SpanId, all[0].SpanId) || bytes.Equal(all[1].SpanId, all[2].SpanId) {
			t.Error("spans share an id")
		}
		values := map[string]any{}
		for _, a := range all[0].Attributes {
			value := a.Value.ProtoReflect()
			values[a.Key] = value.Get(value.WhichOneof(value.Descriptor().Oneofs().ByName("value"))).Interface()
		}
		want := map[string]any{
			"spliced.way": "splice", "spliced.tenant": "", "spliced.model": "m", "spliced.client": "vllm", "spliced.request": "cmpl-\uFFFD1",
			"spliced.number": int64(7), "spliced.tokens.prompt": int64(100), "spliced.tokens.engine": int64(10), "spliced.tokens.prefix": int64(20),
			"spliced.tokens.segment": int64(32), "spliced.tokens.computed": int64(38), "spliced.saved_ms": 12.5,
		}
		if !maps.Equal(values, want) {
			t.Errorf("attributes %v", values)
		}
	})
}

func TestAnEngineDecidesWhatIsSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c collector
		s := start(t, &c)
		not, alone := served(), served()
		not.Parent.Flags = 2
		alone.Parent, alone.Match, alone.Wait = usage.Parent{}, 0, 0
		for _, r := range []*usage.Request{not, alone, alone} {
			s.Served(r, "splice", "default")
		}
		closed(t, s)
		all, _ := c.spans()
		if len(all) != 2 {
			t.Fatalf("%d spans of two requests without an engine's trace", len(all))
		}
		for _, got := range all {
			if len(got.TraceId) != 16 || len(got.ParentSpanId) != 0 || got.Flags != 0x101 {
				t.Errorf("%v", got)
			}
		}
		if bytes.Equal(all[0].TraceId, all[1].TraceId) {
			t.Error("two requests share a trace")
		}
	})
}

// few is a request of one span.
func few() *usage.Request {
	r := served()
	r.Match, r.Wait = 0, 0
	return r
}

func TestABatchIsSentWhenItIsFullOrOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c collector
		s := start(t, &c)
		for range batchSpans + 1 {
			s.Served(few(), "splice", "default")
		}
		synctest.Wait()
		if all, n := c.spans(); n != 1 || len(all) != batchSpans {
			t.Errorf("%d requests, %d spans", n, len(all))
		}
		time.Sleep(exportAfter + 1)
		synctest.Wait()
		if all, n := c.spans(); n != 2 || len(all) != batchSpans+1 {
			t.Errorf("%d requests, %d spans", n, len(all))
		}
		closed(t, s)
		if _, n := c.spans(); n != 2 {
			t.Errorf("%d requests, some of them empty", n)
		}
	})
}

func TestACollectorIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c collector
		c.answer = func(w *httptest.ResponseRecorder) {
			if c.requests < 3 {
				w.Header().Set("Retry-After", "11")
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
		s := start(t, &c)
		s.Served(few(), "splice", "default")
		time.Sleep(exportAfter + batchWithin)
		synctest.Wait()
		if all, n := c.spans(); n != 3 || len(all) != 1 || s.dropped.Load() != 0 {
			t.Errorf("%d requests, %d spans, %d dropped", n, len(all), s.dropped.Load())
		}
		closed(t, s)
	})
}

func TestSpansThatNobodyAcceptsAreDropped(t *testing.T) {
	rejects := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	rejects = protowire.AppendString(protowire.AppendTag(rejects, 2, protowire.BytesType), "too old")
	rejects = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), rejects)
	for name, test := range map[string]struct {
		answer   func(w *httptest.ResponseRecorder)
		attempts int
		dropped  uint64
	}{
		"refused": {func(w *httptest.ResponseRecorder) { w.WriteHeader(http.StatusBadRequest) }, 1, 2},
		"too late": {func(w *httptest.ResponseRecorder) {
			w.Header().Set("Retry-After", "31")
			w.WriteHeader(http.StatusTooManyRequests)
		}, 1, 2},
		"one rejected": {func(w *httptest.ResponseRecorder) {
			w.Header().Set("Content-Type", "application/x-protobuf")
			w.Body.Write(rejects)
		}, 1, 1},
		"an answer of something else": {func(w *httptest.ResponseRecorder) { w.Body.Write(rejects) }, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := collector{answer: test.answer}
				s := start(t, &c)
				s.Served(few(), "splice", "default")
				s.Served(few(), "splice", "default")
				time.Sleep(exportAfter + time.Minute)
				synctest.Wait()
				if _, n := c.spans(); n != test.attempts || s.dropped.Load() != test.dropped {
					t.Errorf("%d requests, %d dropped", n, s.dropped.Load())
				}
				closed(t, s)
			})
		})
	}
}

// Lines of failures do not keep those of drops from being logged.
func TestDropsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := collector{answer: func(w *httptest.ResponseRecorder) { w.WriteHeader(http.StatusBadRequest) }}
		var log bytes.Buffer
		s := startWith(t, &c, &log)
		for i, step := range []struct {
			after  time.Duration
			logged string // of the last such line
		}{{2 * exportAfter, `"dropped":1,`}, {2 * exportAfter, `"dropped":1,`}, {logEvery, `"dropped":3,`}} {
			s.Served(few(), "splice", "default")
			time.Sleep(step.after)
			synctest.Wait()
			if text := log.String(); !strings.HasPrefix(text[max(0, strings.LastIndex(text, `"dropped"`)):], step.logged) {
				t.Errorf("step %d: %s, want %s last", i, text, step.logged)
			}
		}
		s.Served(few(), "splice", "default")
		closed(t, s)
		if !strings.Contains(log.String(), `"dropped":4,`) || s.Counters().Dropped != 4 {
			t.Errorf("%s and %+v after closing, want 4", log.String(), s.Counters())
		}
	})
}

func TestACollectorThatHangsKeepsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := collector{hangs: true}
		s := start(t, &c)
		const many = queueSpans + 2*batchSpans
		for range many {
			s.Served(few(), "splice", "default") // without waiting
		}
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("closed with %v", err)
		}
		if took := time.Since(begin); took != 7*time.Second || s.dropped.Load() != many {
			t.Errorf("after %v: %d of %d dropped", took, s.dropped.Load(), many)
		}
	})
}

func TestHeadersAreThoseOfTheEnvironment(t *testing.T) {
	t.Parallel()
	got, err := ParseHeaders(" api-key=a%2Cb%20c== , x-scope = 1,")
	if want := (http.Header{"Api-Key": {"a,b c=="}, "X-Scope": {"1"}}); err != nil || !maps.EqualFunc(got, want, func(a, b []string) bool { return a[0] == b[0] }) {
		t.Errorf("%v %v", got, err)
	}
	if got, err := ParseHeaders(""); err != nil || len(got) != 0 {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"secret", "=secret", "a b=secret", "a=%zzsecret", "a=secret%0d%0ab"} {
		if _, err := ParseHeaders("ok=1," + bad); err == nil || !strings.Contains(err.Error(), "entry 2") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzAnswersOfACollector(f *testing.F) {
	f.Add([]byte{10, 2, 8, 1})
	f.Add([]byte{10, 200})
	f.Add([]byte{8, 1, 10, 1, 8})
	f.Fuzz(func(t *testing.T, answer []byte) {
		if n, why := rejected(answer); n > batchSpans || len(why) > len(answer) {
			t.Errorf("%d %q", n, why)
		}
	})
}
