package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
)

// nodeOfTests answers the admin REST with documents, and keeps what it was asked. What a
// real node does is tested with one; here it is what a command makes of any answer.
type nodeOfTests struct {
	url string

	mu    sync.Mutex
	docs  map[string]any // by method and path
	asked []string       // method and URI, without the questions that every command asks, and the body
}

func newNode(t *testing.T) *nodeOfTests {
	t.Helper()
	key, other := api.Digest{0xab, 0xcd}, api.Digest{0xab, 0xff}
	at := time.Now().Add(-time.Minute)
	n := &nodeOfTests{docs: map[string]any{}}
	set := func(path string, items any) { n.docs["GET /api/v1/"+path] = map[string]any{"items": items} }
	status := api.Status{Ready: true, Node: "node-1", Version: "v9", BootEpoch: 7, Started: time.Now().Add(-36 * time.Hour), Device: "host",
		Checks: []api.Check{{Name: "disk", State: api.CheckDegraded, Detail: "slow\x1b[2J"}, {Name: "socket", State: api.CheckOK}}}
	pools := []api.Pool{
		{Name: "public", Tier: "dram", CapacityBytes: 1 << 30, UsedBytes: 1 << 29, Objects: 3, Tenants: []api.TenantPool{{Tenant: "a", UsedBytes: 1 << 29, QuotaBytes: 1 << 30}, {Tenant: "b"}}},
		{Name: "public", Tier: "disk", CapacityBytes: 1 << 32, UsedBytes: 1 << 20, Tenants: []api.TenantPool{{Tenant: "a", UsedBytes: 1 << 20, QuotaBytes: 1 << 30}}},
	}
	use := api.Usage{Tenant: "a", Model: "m", Profile: "010203040506", Requests: 10, Prompt: 12000, Engine: 2000, Prefix: 4000, Reused: 2010,
		Computed: 3990, Seam: 100, Saved: 90_000, Missed: map[string]uint64{"unknown": 3000, "evicted": 990}}
	n.docs["GET /api/v1/status"] = status
	n.docs["GET /readyz"] = api.Health{Status: "degraded", Degraded: []string{"disk"}, Checks: status.Checks}
	n.docs["GET /api/v1/overview"] = api.Overview{Status: status, Usage: use, Pools: pools, Connections: 2, Leases: 3, Segments: 1234, Checkpoints: 5,
		History: api.History{StepSeconds: 10, At: []int64{10, 20}, Series: map[string][]float64{"requests": {1, 3}, "prompt_tokens": {100, 300}, "engine_tokens": {0, 0},
			"prefix_tokens": {50, 50}, "reused_tokens": {0, 100}, "saved_ms": {5, 5}}}}
	set("pools", pools)
	set("usage", []api.Usage{use, {Tenant: "b", Model: "m"}})
	set("connections", []api.Connection{{ID: 1, Client: "vllm", Tenants: []string{"a", "c"}}})
	set("profiles", []api.Profile{{ID: 3, Fingerprint: api.Digest{1, 2}, Model: "m"}})
	set("stats", []api.Counter{{Name: "published", Value: 720}, {Name: "published_bytes", Value: 1 << 30}, {Name: "hit_tokens", Value: 2010}})
	set("segments", []api.Segment{{Key: key, Profile: 3, Model: "m", Tenant: "a", State: "published", Tiers: []string{"dram"}, Bytes: 100, Tokens: 9, LastUsed: at},
		{Key: other, Profile: 3, Model: "m", Tenant: "a", State: "pending", Bytes: 1 << 20, Tokens: 5, LastUsed: time.Now()}})
	set("checkpoints", []api.Checkpoint{{Hash: api.Digest{0xee}, Tenant: "a", Kind: "exact", LastUsed: at}})
	set("canaries", []api.Canary{})
	set("leases", []api.Lease{{Lease: 1, Object: "segment", Key: key, Tenant: "a", Client: "vllm", Connection: 1, Since: at, Expires: time.Now().Add(36 * time.Hour), Bytes: 100, Device: "GPU-1"}})
	set("pins", []api.Pin{{Key: key, Object: "segment", Tenant: "a", Bytes: 100, Expires: time.Now().Add(36 * time.Hour), By: "uid 0"}})
	request := api.Request{ID: 12, Name: "chatcmpl-7", At: at, Tenant: "a", Profile: 3, Model: "m", Client: "vllm", Way: api.WaySplice, Trace: strings.Repeat("ab", 16),
		Prompt: 1000, Engine: 0, Prefix: 400, Reused: 500, Computed: 100, Seam: 16, PrefixTier: "disk", Bytes: 1 << 20,
		MatchMillis: 0.5, WaitMillis: 2, TTFTMillis: 55, SavedMillis: 300, SavedBy: api.SavedByPrefill, Ways: []api.WayCost{{Way: api.WayRecompute, Millis: 355}, {Way: api.WaySplice, Millis: 55}}}
	set("requests", []api.Request{request})
	request.Spans = []api.Span{{Begin: 0, End: 400, From: api.FromPrefix, Tier: "disk"}, {Begin: 400, End: 900, From: api.FromSegment, Tier: "dram", Key: &key},
		{Begin: 900, End: 1000, From: api.FromComputed, Reason: "unknown\x1b]0;x"}}
	n.docs["GET /api/v1/requests/12"] = request
	set("events", []api.Event{{ID: 1, At: at, Kind: "evicted", Object: "segment", Key: &key, Tenant: "a", Bytes: 100, Policy: "default", Why: "for room", Text: "x\x1b[2J"}})
	n.docs["DELETE /api/v1/segments"] = api.Removed{Matched: 3, Removed: 2, Busy: 1, Bytes: 2048}
	n.docs["DELETE /api/v1/checkpoints"] = api.Removed{DryRun: true, Matched: 1, Removed: 1}
	n.docs["GET /api/v1/segments/"+key.String()] = api.SegmentDetail{Segment: api.Segment{Key: key}}
	n.docs["DELETE /api/v1/segments/"+key.String()] = api.Removal{}
	n.docs["DELETE /api/v1/checkpoints/"+api.Digest{0xee}.String()] = struct{}{}
	n.docs["PUT /api/v1/pins/"+key.String()] = api.Pinned{Pins: []api.Pin{{Key: key, Tenant: "a", Bytes: 100}}}
	n.docs["DELETE /api/v1/pins/"+key.String()] = struct{}{}
	n.docs["GET /api/v1/config"] = api.Config{LogLevel: "info", PublicBytes: 1<<53 + 1, Quotas: map[string]api.Quota{"a.b": {QuotaBytes: 2048}}, Settings: map[string]string{"arena": "1GiB"}}
	n.docs["PATCH /api/v1/config"] = api.Config{LogLevel: "debug"}
	n.docs["POST /api/v1/drain"] = api.Drained{Draining: true, Connections: 2, Leases: 3}
	n.docs["DELETE /api/v1/drain"] = api.Drained{DryRun: true}
	n.docs["POST /api/v1/reload"] = api.Reloaded{Read: []string{"admin-token-file", "cluster-keyring"}, Changed: []string{"cluster-keyring"}}
	n.docs["GET /api/v1/cluster"] = api.Cluster{}
	s := httptest.NewServer(n)
	t.Cleanup(s.Close)
	n.url = s.URL
	t.Setenv("SPLICED_ADMIN_SOCKET", "")
	t.Setenv("SPLICECTL_CONTEXTS", t.TempDir()+"/contexts.yaml")
	return n
}

func (n *nodeOfTests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	if r.Method != http.MethodGet || len(r.URL.Query()) > 0 {
		n.asked = append(n.asked, r.Method+" "+strings.TrimPrefix(r.URL.RequestURI(), "/api/v1/")+" "+string(body))
	}
	doc, ok := n.docs[r.Method+" "+r.URL.Path]
	w.Header().Set("ETag", `"5"`)
	if !ok {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		doc = api.Problem{Status: 404, Code: api.CodeNotFound, Detail: "no such path: " + r.URL.Path}
	} else if p, ok := doc.(api.Problem); ok {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(p.Status)
	} else {
		w.Header().Set("Content-Type", "application/json")
	}
	if page, ok := doc.(map[string]any); ok && r.URL.Path == "/api/v1/segments" {
		doc = map[string]any{"items": slices.DeleteFunc(slices.Clone(page["items"].([]api.Segment)), func(s api.Segment) bool {
			tenant := r.URL.Query().Get("tenant")
			return !strings.HasPrefix(s.Key.String(), r.URL.Query().Get("key_prefix")) || tenant != "" && tenant != s.Tenant
		})}
	}
	if err := json.NewEncoder(w).Encode(doc); err != nil {
		panic(fmt.Sprint(r.URL, err))
	}
}

// questions are what was asked since the last time.
func (n *nodeOfTests) questions() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	asked := n.asked
	n.asked = nil
	for i := range asked {
		asked[i] = strings.TrimSpace(asked[i])
	}
	return asked
}

// without takes an answer away: the node is older.
func (n *nodeOfTests) without(paths ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, path := range paths {
		delete(n.docs, "GET /api/v1/"+path)
	}
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
