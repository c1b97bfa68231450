package daemon

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector keeps the spans that it is sent.
type collector struct {
	mu    sync.Mutex
	spans []*otlp.Span
	key   string // of the last request
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var m otlp.TracesData // the same on the wire as ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &m) != nil {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key = r.Header.Get("Api-Key")
	for _, of := range m.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
}

func (c *collector) named(name string) (found []*otlp.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

func TestRequestsAreSpansOfTheEnginesTrace(t *testing.T) {
	leakCheck(t)
	var c collector
	server := httptest.NewServer(&c)
	t.Cleanup(server.Close)
	config := testConfig(t)
	config.OTLPEndpoint = server.URL + "/v1/traces"
	config.AdminSocket, config.HTTP = "", "127.0.0.1:0"
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20key")
	d := startDaemon(t, config, nil)
	client := attach(t, d.Socket())
	client.register(testProfile(1))
	client.served(client.lookedUp())
	client.close()
	if text := d.metricsText(t); !strings.Contains(text, "\nspliced_spans_dropped_total 0\n") {
		t.Error("no metric of dropped spans")
	}
	d.stop() // exports what waits

	requests := c.named("spliced.request")
	if len(requests) != 1 {
		t.Fatalf("%d spans of requests", len(requests))
	}
	if c.key != "a key" {
		t.Errorf("the collector was shown the key %q", c.key)
	}
	first := requests[0]
	if hex.EncodeToString(first.TraceId) != "4bf92f3577b34da6a3ce929d0e0e4736" || hex.EncodeToString(first.ParentSpanId) != "00f067aa0ba902b7" {
		t.Errorf("trace %x, parent %x", first.TraceId, first.ParentSpanId)
	}
	said := map[string]string{}
	for _, a := range first.Attributes {
		said[a.Key] = a.Value.String()
	}
	if said["spliced.tokens.segment"] != "int_value:32" || said["spliced.way"] != `string_value:"splice"` || said["spliced.tenant"] != `string_value:"default"` {
		t.Errorf("%v", said)
	}
}

func TestACollectorThatIsNotThereCostsNothing(t *testing.T) {
	config := testConfig(t)
	config.OTLPEndpoint, config.DrainTimeout = "http://127.0.0.1:1/v1/traces", 2*time.Second
	d := startDaemon(t, config, nil)
	client := attach(t, d.Socket())
	client.register(testProfile(1))
	for range 100 {
		client.served(splicedRequest())
	}
	client.close()
	d.stop()
}
