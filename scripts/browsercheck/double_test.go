package browsercheck

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api/ui"
)

//go:embed testdata
var testdata embed.FS

// double answers in the place of a node: the dashboard's files as the node serves them, and
// the admin REST out of testdata. Tests change what it answers with set.
type double struct {
	t      *testing.T
	site   *ui.Site
	addr   string
	prefix string // of all paths, as behind a proxy

	mu struct {
		sync.Mutex
		answers  map[string]any // by path below /api/v1/, as decoded JSON
		absent   map[string]bool
		token    string
		refusal  string // of everything, to who has no token
		segments int    // made up, instead of those in testdata
		streams  bool   // events are streamed; false = only asked for
		events   []map[string]any
		waiting  map[chan map[string]any]bool
		served   map[string]int // requests by path
		bearers  map[string]bool
		server   *http.Server
	}
}

// standIn starts a double with all of testdata.
func standIn(t *testing.T) *double {
	t.Helper()
	site, err := ui.New()
	if err != nil {
		t.Fatal(err)
	}
	d := &double{t: t, site: site}
	d.mu.answers, d.mu.absent, d.mu.waiting = map[string]any{}, map[string]bool{}, map[chan map[string]any]bool{}
	d.mu.served, d.mu.bearers = map[string]int{}, map[string]bool{}
	d.mu.streams = true
	entries, err := testdata.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		d.mu.answers[name] = fixture(t, name)
	}
	for _, e := range d.mu.answers["events"].(map[string]any)["items"].([]any) {
		d.mu.events = append(d.mu.events, e.(map[string]any))
	}
	d.addr = "127.0.0.1:0"
	d.revive()
	t.Cleanup(d.die)
	return d
}

// ago is a time in testdata, told from now on: @-30s.
var ago = regexp.MustCompile(`"@([-+]\d+s)"`)

func fixture(t *testing.T, name string) any {
	t.Helper()
	text, err := testdata.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC()
	text = ago.ReplaceAllFunc(text, func(m []byte) []byte {
		span, err := time.ParseDuration(strings.Trim(string(m), `"@`))
		if err != nil {
			t.Fatal(err)
		}
		return []byte(strconv.Quote(now.Add(span).Format(time.RFC3339Nano)))
	})
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

func (d *double) url(hash string) string { return "http://" + d.addr + d.prefix + "/ui/" + hash }

// set changes what is answered, under the lock.
func (d *double) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// field changes one field of an answer, of each of its items where it is a listing.
func (d *double) field(name, field string, to any) {
	d.set(func() {
		answer := d.mu.answers[name].(map[string]any)
		items, listing := answer["items"].([]any)
		if !listing {
			answer[field] = to
			return
		}
		for _, item := range items {
			item.(map[string]any)[field] = to
		}
	})
}

// empty is a node that nobody has used.
func (d *double) empty() {
	d.set(func() {
		for name, answer := range d.mu.answers {
			if v, ok := answer.(map[string]any); ok && v["items"] != nil && name != "pools" && name != "stats" {
				v["items"] = []any{}
			}
		}
		for _, p := range d.mu.answers["pools"].(map[string]any)["items"].([]any) {
			pool := p.(map[string]any)
			pool["used_bytes"], pool["leased_bytes"], pool["pending_bytes"], pool["quarantined_bytes"], pool["objects"], pool["tenants"] = 0, 0, 0, 0, 0, []any{}
		}
		for _, c := range d.mu.answers["stats"].(map[string]any)["items"].([]any) {
			c.(map[string]any)["value"] = 0
		}
		overview := d.mu.answers["overview"].(map[string]any)
		for k, v := range overview["usage"].(map[string]any) {
			if _, number := v.(float64); number {
				overview["usage"].(map[string]any)[k] = 0
			}
		}
		overview["usage"].(map[string]any)["missed"] = map[string]any{}
		for _, k := range []string{"connections", "leases", "segments", "checkpoints", "shared_bytes_saved"} {
			overview[k] = 0
		}
		status := d.mu.answers["status"].(map[string]any)
		status["gpus"], status["checks"] = nil, []any{}
		d.mu.answers["cluster"] = map[string]any{"enabled": false, "members": []any{}}
		d.mu.events = nil
	})
}

// die closes the port and every connection, as a process that is killed.
func (d *double) die() {
	d.mu.Lock()
	server := d.mu.server
	d.mu.server = nil
	for c := range d.mu.waiting {
		close(c)
	}
	clear(d.mu.waiting)
	d.mu.Unlock()
	if server != nil {
		server.Close()
	}
}

// revive listens again where it did.
func (d *double) revive() {
	d.t.Helper()
	ln, err := net.Listen("tcp", d.addr)
	if err != nil {
		d.t.Fatal(err)
	}
	d.addr = ln.Addr().String()
	server := &http.Server{Handler: d}
	d.mu.Lock()
	d.mu.server = server
	d.mu.Unlock()
	go server.Serve(ln)
}

// publish tells an event.
func (d *double) publish(e map[string]any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := 0
	if n := len(d.mu.events); n > 0 {
		last = int(number(d.mu.events[n-1]["id"]))
	}
	e["id"], e["at"] = last+1, time.Now().UTC().Format(time.RFC3339Nano)
	d.mu.events = append(d.mu.events, e)
	for c := range d.mu.waiting {
		c <- e
	}
}

func number(v any) float64 {
	switch n := v.(type) {
	case int:
		return float64(n)
	case float64:
		return n
	}
	return 0
}

// metrics are those series that the dashboard reads: of 4,180 reads of the disk half took
// less than 10 ms.
const metrics = `spliced_disk_stalled_seconds{operation="read"} 0
spliced_disk_stalled_seconds{operation="write"} 0
spliced_disk_operation_duration_seconds_bucket{operation="read",le="0.005"} 1200
spliced_disk_operation_duration_seconds_bucket{operation="read",le="0.01"} 2100
spliced_disk_operation_duration_seconds_bucket{operation="read",le="0.05"} 4150
spliced_disk_operation_duration_seconds_bucket{operation="read",le="+Inf"} 4180
spliced_shared_saved_bytes{tier="dram"} 1.073741824e+09
spliced_shared_saved_bytes{tier="hbm"} 1.073741824e+09
`

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, d.prefix)
	if !ok {
		problem(w, 404, "not_found", "no such path: "+r.URL.Path)
		return
	}
	if below, ok := strings.CutPrefix(path, "/ui/"); ok {
		d.file(w, r, below)
		return
	}
	if path == "/metrics" {
		fmt.Fprint(w, metrics)
		return
	}
	name, ok := strings.CutPrefix(path, "/api/v1/")
	if !ok {
		problem(w, 404, "not_found", "no such path: "+path)
		return
	}
	d.mu.Lock()
	d.mu.served[name]++
	given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	d.mu.bearers[given] = true
	wanted, refusal, absent := d.mu.token, d.mu.refusal, d.mu.absent[strings.Split(name, "/")[0]] || d.mu.absent[name]
	d.mu.Unlock()
	switch {
	case refusal != "":
		problem(w, 403, "read_only", refusal)
	case absent:
		problem(w, 404, "not_found", "no such path: "+path)
	case wanted != "" && given != wanted:
		problem(w, 401, "unauthorized", "over TCP this needs a bearer token")
	case name == "events" && r.URL.Query().Get("poll") == "":
		d.stream(w, r)
	default:
		d.answer(w, r, name)
	}
}

func (d *double) file(w http.ResponseWriter, r *http.Request, below string) {
	answer, ok := d.site.Serve(below, r.Header.Get("Accept-Encoding"), r.Header.Get("If-None-Match"))
	if !ok {
		problem(w, 404, "not_found", "no such path: "+r.URL.Path)
		return
	}
	for _, line := range answer.Header {
		w.Header().Set(line[0], line[1])
	}
	w.WriteHeader(answer.Status)
	w.Write(answer.Body)
}

func problem(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "code": code, "detail": detail})
}

// stream is the events as they come.
func (d *double) stream(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	if !d.mu.streams {
		d.mu.Unlock()
		w.Header().Set("Content-Type", "text/html") // as a proxy that does not pass streams
		fmt.Fprint(w, "<p>no streams here")
		return
	}
	after, _ := strconv.Atoi(r.URL.Query().Get("after"))
	c := make(chan map[string]any, 100)
	for _, e := range d.mu.events {
		if int(number(e["id"])) > after {
			c <- e
		}
	}
	d.mu.waiting[c] = true
	d.mu.Unlock()
	defer d.set(func() { delete(d.mu.waiting, c) })
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, ": hello\n\n")
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-c:
			if !ok {
				return
			}
			body, _ := json.Marshal(e)
			fmt.Fprintf(w, "id: %v\nevent: %s\ndata: %s\n\n", e["id"], e["kind"], body)
			w.(http.Flusher).Flush()
		}
	}
}

func (d *double) answer(w http.ResponseWriter, r *http.Request, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := r.URL.Query()
	send := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(v)
	}
	kind, key, one := strings.Cut(name, "/")
	switch {
	case name == "events":
		after, _ := strconv.Atoi(q.Get("after"))
		list := []any{}
		for _, e := range d.mu.events {
			if int(number(e["id"])) > after {
				list = append(list, e)
			}
		}
		send(map[string]any{"items": list})
	case name == "overview":
		overview := map[string]any{"status": d.mu.answers["status"], "pools": d.mu.answers["pools"].(map[string]any)["items"]}
		for k, v := range d.mu.answers["overview"].(map[string]any) {
			overview[k] = v
		}
		overview["history"] = history(q.Get("history"), overview["usage"].(map[string]any)["requests"] != 0)
		send(overview)
	case kind == "requests" && one:
		found := d.find("requests", "id", key)
		if found == nil {
			problem(w, 404, "not_found", "no such request")
			return
		}
		send(found)
	case name == "segments":
		send(d.listSegments(q.Get("cursor"), q.Get("limit"), q.Get("key_prefix"), q.Get("tenant")))
	case kind == "segments" && one:
		s := d.segmentOf(key)
		if s == nil {
			problem(w, 404, "not_found", "segment "+key+" is not held")
			return
		}
		send(s)
	case kind == "checkpoints" && one:
		found := d.find("checkpoints", "hash", key)
		if found == nil {
			problem(w, 404, "not_found", "checkpoint "+key+" is not held")
			return
		}
		send(found)
	case name == "decisions", name == "requests", name == "leases":
		send(map[string]any{"items": d.filtered(name, q)})
	default:
		v, ok := d.mu.answers[name]
		if !ok {
			problem(w, 404, "not_found", "no such path: "+r.URL.Path)
			return
		}
		send(v)
	}
}

func (d *double) items(name string) []any {
	return d.mu.answers[name].(map[string]any)["items"].([]any)
}

func (d *double) find(name, field, value string) any {
	for _, item := range d.items(name) {
		if fmt.Sprint(item.(map[string]any)[field]) == value {
			return item
		}
	}
	return nil
}

// filtered is a listing without the items that a query leaves out.
func (d *double) filtered(name string, q map[string][]string) []any {
	list := []any{}
	for _, item := range d.items(name) {
		v := item.(map[string]any)
		pass := true
		for field, want := range q {
			switch field {
			case "limit", "cursor":
			case "key_prefix":
				key, _ := v["key"].(string)
				pass = pass && strings.HasPrefix(key, want[0])
			default:
				pass = pass && fmt.Sprint(v[field]) == want[0]
			}
		}
		if pass {
			list = append(list, item)
		}
	}
	return list
}

// segmentKey is the key of the i-th of many segments; keys ascend with i.
func segmentKey(i int) string {
	sum := sha256.Sum256(fmt.Append(nil, i))
	return fmt.Sprintf("%08x", i*40000) + hex.EncodeToString(sum[:])[8:]
}

func keyOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

func madeSegment(i int, key string) map[string]any {
	now := time.Now().UTC()
	return map[string]any{
		"key": key, "profile": 1, "model": "Qwen3-Next-80B-A3B", "tenant": []string{"acme", "beta"}[i%2], "state": "published",
		"tiers": [][]string{{"dram", "disk"}, {"disk"}, {"hbm", "dram"}}[i%3], "level": "synced", "role": "mid", "tokens": 512, "interior_tokens": 496,
		"bytes": 80<<20 + i*4096, "disk_bytes": 81 << 20, "leases": i % 3 / 2, "hits": i * 7919 % 1009, "publisher": "vllm worker 0",
		"created": now.Add(-time.Hour).Format(time.RFC3339), "last_used": now.Add(-time.Duration(i%3600) * time.Second).Format(time.RFC3339),
	}
}

// allKeys are the keys of all segments, ascending.
func (d *double) allKeys() []string {
	var keys []string
	if d.mu.segments > 0 {
		for i := range d.mu.segments {
			keys = append(keys, segmentKey(i))
		}
		return keys
	}
	if number(d.mu.answers["overview"].(map[string]any)["segments"]) == 0 {
		return nil
	}
	for i := range 7 {
		keys = append(keys, keyOf(fmt.Sprintf("seg%d", i)))
	}
	slices.Sort(keys)
	return keys
}

func (d *double) listSegments(cursor, limit, prefix, tenant string) map[string]any {
	n, err := strconv.Atoi(limit)
	if err != nil {
		n = 100
	}
	page := map[string]any{}
	items := []any{}
	keys := d.allKeys()
	from, _ := slices.BinarySearch(keys, cursor+"\x00")
	for i := from; i < len(keys); i++ {
		s := madeSegment(i, keys[i])
		if !strings.HasPrefix(keys[i], prefix) || tenant != "" && s["tenant"] != tenant {
			continue
		}
		if len(items) == n {
			page["next"] = items[n-1].(map[string]any)["key"]
			break
		}
		items = append(items, s)
	}
	page["items"] = items
	return page
}

func (d *double) segmentOf(key string) map[string]any {
	i := slices.Index(d.allKeys(), key)
	if i < 0 {
		return nil
	}
	s := madeSegment(i, key)
	s["head_excluded_tokens"], s["tail_excluded_tokens"], s["extents"], s["disk_extents"], s["codec"], s["other_nodes"], s["object_store"] = 8, 8, 2, 1, "kv", 1, false
	s["parts"] = []any{map[string]any{"rank": 0, "layer": 3, "kind": "s", "dtype": "f32", "shape": []int{16, 128, 128}, "bytes": 1 << 20}}
	return s
}

// history is a steady load, in steps of 10 s over an hour at most, or of 5 min over 7 days.
func history(which string, busy bool) map[string]any {
	step, n := 10, 360
	switch which {
	case "15m":
		n = 90
	case "7d":
		step, n = 300, 2016
	}
	names := []string{"prompt_tokens", "engine_tokens", "prefix_tokens", "reused_tokens", "computed_tokens", "requests", "saved_ms", "evictions", "used_bytes_dram", "used_bytes_disk", "used_bytes_hbm",
		"missed_unknown", "missed_evicted", "missed_seam", "missed_new", "ttft_ms", "ttft_requests"}
	series := map[string][]float64{}
	at := make([]int64, n)
	now := time.Now().Unix()
	for i := range n {
		at[i] = now - int64((n-1-i)*step)
		wave := float64(1 + i*i%7)
		values := []float64{4000 * wave, 400 * wave, 1000 * wave, 1200 * wave, 1400 * wave, wave, 120 * wave, float64(i % 3), 61 * (1 << 30), float64(345+i%5) * (1 << 30), 3 * (1 << 30),
			300 * wave, 900 * wave, 100 * wave, 100 * wave, 80 * wave, wave}
		for k, name := range names {
			v := values[k]
			if !busy {
				v = 0
			}
			series[name] = append(series[name], v)
		}
	}
	return map[string]any{"step_seconds": step, "at": at, "series": series}
}
