package hostile

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
)

// Names that clients choose end up in metrics, logs and on terminals.
func TestHostileNamesDoNotBlindMetrics(t *testing.T) {
	v := start(t, bounds{})
	families := func() int {
		_, body := v.get("/metrics")
		return strings.Count(body, "\n# TYPE spliced_")
	}
	before := families()
	names := []string{"not\xffutf8", "nul\x00", "\x1b]0;title\a", "line\nbreak", "\x9b31m", "ok \xc3\xa9 \xe4\xb8\xad"}
	var taken []string
	for _, name := range names {
		const place = "PLACEHOLDERPLACE"
		padded := (name + strings.Repeat("x", len(place)))[:len(place)]
		p := modelNamed(place)
		canonical := bytes.Replace(p.Canonical(), []byte(place), []byte(padded), 1)
		f, code := v.frames(&wire.HelloRequest{Client: name})
		if code != wire.OK {
			t.Fatalf("hello: %v", code)
		}
		body, code := f.ask(wire.OpProfile, &wire.ProfileRequest{
			Identity: canonical, Connector: "raw", Engine: name, ProbeTokens: 1,
			SegmentBytes: uint64(p.SegmentLayout(1).Bytes), CheckpointBytes: uint64(p.CheckpointLayout(1).Bytes),
		})
		switch {
		case code == wire.OK:
			taken = append(taken, name)
		case code != wire.Invalid || !strings.Contains(wire.ErrorText(body), "model"):
			t.Errorf("a profile named %q: %v, %s", name, code, wire.ErrorText(body))
		}
	}
	if len(taken) != 1 || taken[0] != names[len(names)-1] {
		t.Errorf("taken were %q", taken)
	}
	after := families()
	if after < before || before < 20 {
		t.Errorf("%d families of metrics before, %d after", before, after)
	}
	if n, ok := v.metric(`promhttp_metric_handler_errors_total{cause="gathering"}`); !ok || n != 0 {
		t.Errorf("%v errors of gathering, counted: %v", n, ok)
	}
	if status, _ := v.get("/metrics"); status != http.StatusOK {
		t.Errorf("/metrics answers %d", status)
	}
	for _, line := range strings.Split(v.log.String(), "\n") {
		if strings.ContainsAny(line, "\x00\x1b\a") || strings.Contains(line, "\x9b") {
			t.Errorf("a line of the log has control characters: %q", line)
		}
	}
	report(t, fmt.Sprintf("models, clients and engines named %q", names[:len(names)-1]), fmt.Sprintf("%d of %d profiles refused as invalid", len(names)-len(taken), len(names)),
		fmt.Sprintf("nothing: %d families of metrics before, %d after", before, after))
}
