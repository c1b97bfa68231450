package main

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/doctor"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// series are those of a daemon but for what no client causes, by name and labels.
func series(t *testing.T, admin string) map[string]float64 {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", admin)
	}}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://spliced/metrics")
	must(t, err)
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		text, _ := io.ReadAll(answer.Body)
		t.Fatalf("%v\n%s", err, text)
	}
	found := map[string]float64{}
	for name, family := range families {
		if !strings.HasPrefix(name, "spliced_") {
			continue
		}
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			found[name+"{"+strings.Join(labels, ",")+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return found
}

// settled are the series once they have stopped to move: a disk is written in the
// background, and the end of a connection is seen a moment later.
func settled(t *testing.T, admin string, wanted func(map[string]float64) bool) map[string]float64 {
	t.Helper()
	last := series(t, admin)
	for deadline := time.Now().Add(20 * time.Second); ; {
		next := series(t, admin)
		if maps.Equal(last, next) && wanted(next) {
			return next
		}
		if time.Now().After(deadline) {
			t.Fatal("the series do not settle")
		}
		last = next
	}
}

func TestDoctorLeavesNoTraceInProductionCounters(t *testing.T) {
	socket, _ := onDisk(t, t.TempDir())
	admin := filepath.Join(filepath.Dir(socket), "a")
	publish(t, socket)
	nobody := func(s map[string]float64) bool { return s["spliced_engine_sessions{}"] == 0 }
	written := func(s map[string]float64) bool {
		return s["spliced_tier_written_total{tier=disk}"] == 1 && s["spliced_tier_writing{tier=disk}"] == 0
	}
	before := settled(t, admin, func(s map[string]float64) bool { return nobody(s) && written(s) })
	client, err := api.NewClient("unix:"+admin, "")
	must(t, err)
	defer client.Close()
	checks := doctor.Run(t.Context(), doctor.Options{Socket: socket, Admin: client})
	for _, c := range checks {
		if c.State == doctor.Fail {
			t.Fatalf("%+v", c)
		}
	}
	after := settled(t, admin, nobody)
	for name, was := range before {
		if visit(name) {
			continue
		}
		if now, ok := after[name]; !strings.HasPrefix(name, "spliced_doctor_") && (!ok || now != was) {
			t.Errorf("%s was %v and is %v", name, was, now)
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok && !visit(name) && !strings.HasPrefix(name, "spliced_doctor_") {
			t.Errorf("%s is new", name)
		}
	}
	if after["spliced_doctor_connections_total{}"] != 2 || after["spliced_doctor_published_total{}"] != 1 || after["spliced_doctor_requests_total{code=ok}"] < 8 {
		t.Errorf("counted of the doctor: %v connections, %v published, %v answers", after["spliced_doctor_connections_total{}"],
			after["spliced_doctor_published_total{}"], after["spliced_doctor_requests_total{code=ok}"])
	}
}

// visit reports whether a series counts connections and requests, or events, of whom ever.
func visit(name string) bool {
	for _, of := range []string{"spliced_journal_", "spliced_connections_total{result=accepted", "spliced_requests_total{", "spliced_rows_total{", "spliced_request_duration_seconds{", "spliced_lookup_duration_seconds{"} {
		if strings.HasPrefix(name, of) {
			return true
		}
	}
	return false
}

// An engine that calls itself doctor is counted as any other.
func TestAClientCannotHideBehindTheDoctorsName(t *testing.T) {
	socket, _ := onDisk(t, t.TempDir())
	c, err := connector.Open(connector.Options{Socket: socket, Name: profile.TrialClient, StagingBytes: 1 << 20, SlotBytes: 1 << 20, Timeouts: patient})
	must(t, err)
	defer c.Close()
	p, err := profile.Trial()
	must(t, err)
	m, err := c.Register(p, connector.Binding{})
	must(t, err)
	must(t, m.WaitReady(t.Context()))
	var found connector.Found
	for range 200 {
		must(t, m.Match(t.Context(), &connector.MatchQuery{Keys: make([]profile.SegmentKey, 1)}, &found))
	}
	all := func(s map[string]float64) bool {
		return s["spliced_doctor_requests_total{code=ok}"] == 202
	}
	s := settled(t, filepath.Join(filepath.Dir(socket), "a"), all)
	if n := s["spliced_requests_total{code=ok,op=match}"]; n != 200 {
		t.Errorf("%v of 200 lookups are counted", n)
	}
}
