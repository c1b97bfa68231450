package daemon

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// ask is a request over the admin socket.
func (r *running) ask(t testing.TB, method, path, body string, head map[string]string) (int, http.Header, string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", api.SocketBeside(r.Socket()))
	}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	must(t, err)
	for name, v := range head {
		req.Header.Set(name, v)
	}
	answer, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer.StatusCode, answer.Header, string(text)
}

// documented loads the document that a daemon serves, as generators read it.
func (r *running) documented(t testing.TB) *openapi3.T {
	t.Helper()
	status, _, text := r.get(t, "/openapi.json")
	if status != http.StatusOK {
		t.Fatalf("the document: %d", status)
	}
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData([]byte(text))
	must(t, err)
	if err := doc.Validate(loader.Context); err != nil {
		t.Fatalf("the document is none: %v", err)
	}
	return doc
}

// Validate, on which documented relies, finds references that lead nowhere.
func TestABrokenDocumentIsRefused(t *testing.T) {
	text := `{"openapi":"3.1.0","info":{"title":"x","version":"1"},"paths":{"/x":{"get":{"responses":{"200":{"description":"ok",
	"content":{"application/json":{"schema":{"$ref":"#/components/schemas/Absent"}}}}}}}}}`
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData([]byte(text))
	if err == nil {
		err = doc.Validate(loader.Context)
	}
	if err == nil || !strings.Contains(err.Error(), "Absent") {
		t.Errorf("%v", err)
	}
}

// known ids of tokens: nothing else in an answer looks like them.
func knownTokens(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = 3_141_592_653 + 7919*uint32(i)
	}
	return ids
}

// withKnownTokens is a daemon with something of everything, computed from known tokens.
func withKnownTokens(t *testing.T) (r *running, keys map[string]string) {
	t.Helper()
	config := withDisk(t)
	config.WriteBehind = true
	r = startDaemon(t, config, nil)
	p := testProfile(1)
	c := attach(t, r.Socket(), wire.TenantName{})
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	d.tokens = knownTokens(64)
	d.key = p.SegmentKey(nil, d.spec, d.tokens)
	c.publish(d)
	c.lease(d)
	c.match(d.key, [32]byte{1})
	hash := p.PrefixHashes(nil, 16, d.tokens, []int{32})[0]
	c.keep(p, hash, 32, wire.AcceptExact)
	c.stageIDs(0, d.tokens)
	m := splicedRequest()
	m.Keys[0] = d.key
	number := c.served(m)
	c.call(wire.OpReport, &wire.ReportRequest{Profile: c.profile, Compared: 9, Worst: 0.5, Bound: 1}, &wire.ReportReply{})
	var ids []string
	for _, id := range d.tokens {
		ids = append(ids, strconv.FormatUint(uint64(id), 10))
	}
	status, _, body := r.ask(t, http.MethodPost, "/api/v1/locate", `{"profile": "`+p.Identity().Model+`", "token_ids": [`+strings.Join(ids, ",")+`]}`, nil)
	if status != http.StatusOK {
		t.Fatalf("locate: %d %s", status, body)
	}
	if _, err := r.adminClient(t).Pin(context.Background(), api.PinQuery{Key: api.Digest(d.key), TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	return r, map[string]string{
		"segments": hex.EncodeToString(d.key[:]), "checkpoints": hex.EncodeToString(hash[:]), "pins": hex.EncodeToString(d.key[:]),
		"canaries": api.Digest(p.Fingerprint()).String(), "model": p.Identity().Model, "requests": strconv.FormatUint(number, 10),
	}
}

// good is a request of each operation that needs more than its path, and changes nothing.
func good(id string, keys map[string]string) (query, body string, head map[string]string) {
	switch id {
	case "removeSegments", "removeCheckpoints":
		return "all=true&dry_run=true", "", nil
	case "pin":
		return "ttl=10m&dry_run=true", "", nil
	case "locate":
		return "", `{"profile": "` + keys["model"] + `", "tokens": 4}`, nil
	case "changeConfig":
		return "dry_run=true", `{"log_level": "info"}`, map[string]string{"Content-Type": "application/merge-patch+json", "If-Match": "*"}
	}
	return "", "", nil
}

// target is the path and query of an operation.
func target(t testing.TB, path string, op *openapi3.Operation, keys map[string]string) (string, string, map[string]string) {
	t.Helper()
	query, body, head := good(op.OperationID, keys)
	if strings.Contains(path, "{") {
		kind := strings.Split(strings.TrimPrefix(path, "/api/v1/"), "/")[0]
		if keys[kind] == "" {
			t.Fatalf("%s: this test knows no key of %s", op.OperationID, kind)
		}
		path = path[:strings.IndexByte(path, '{')] + keys[kind] + path[strings.IndexByte(path, '}')+1:]
	}
	has := func(name string) bool { return op.Parameters.GetByInAndName("query", name) != nil }
	if has("dry_run") && !strings.Contains(query, "dry_run") {
		query = strings.TrimPrefix(query+"&dry_run=true", "&")
	}
	if has("poll") { // a stream has no end
		query = strings.TrimPrefix(query+"&poll=1", "&")
	}
	if query != "" {
		path += "?" + query
	}
	return path, body, head
}

// Every operation of the document is answered by a daemon as it says, good requests and bad.
func TestEveryOperationKeepsTheContract(t *testing.T) {
	r, keys := withKnownTokens(t)
	doc := r.documented(t)
	asked := 0
	for _, path := range slices.Sorted(maps.Keys(doc.Paths.Map())) {
		for method, op := range doc.Paths.Find(path).Operations() {
			at, body, head := target(t, path, op, keys)
			status, header, text := r.ask(t, method, at, body, head)
			want := http.StatusOK
			if op.OperationID == "removeSegment" || op.OperationID == "switchOn" {
				want = status // pinned, or not switched off: a problem, as documented
			}
			if status != want {
				t.Errorf("%s: %d %s", op.OperationID, status, text)
			}
			if err := conforms(op, status, header, text); err != nil {
				t.Errorf("%s: %v\n%s", op.OperationID, err, text)
			}
			asked++
			joint := "?"
			if strings.Contains(at, "?") {
				joint = "&"
			}
			if path == "/metrics" || path == "/openapi.json" {
				continue // take any
			}
			status, header, text = r.ask(t, method, at+joint+"no_such_parameter=1", body, head)
			if status != http.StatusBadRequest {
				t.Errorf("%s with a bad parameter: %d %s", op.OperationID, status, text)
			}
			if err := conforms(op, status, header, text); err != nil {
				t.Errorf("%s with a bad parameter: %v\n%s", op.OperationID, err, text)
			}
		}
	}
	if asked < 30 {
		t.Errorf("%d operations", asked)
	}
}

// conforms holds an answer to what its operation documents.
func conforms(op *openapi3.Operation, status int, head http.Header, text string) error {
	answer := op.Responses.Status(status)
	if answer == nil {
		return fmt.Errorf("status %d is not documented", status)
	}
	media, _, err := mime.ParseMediaType(head.Get("Content-Type"))
	if err != nil {
		return err
	}
	content := answer.Value.Content.Get(media)
	if content == nil {
		return fmt.Errorf("%s is not documented for %d", media, status)
	}
	for name := range answer.Value.Headers {
		if head.Get(name) == "" {
			return fmt.Errorf("the header %s is missing", name)
		}
	}
	if !strings.HasSuffix(media, "json") {
		return nil
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	return content.Schema.Value.VisitJSON(v, openapi3.MultiErrors(), openapi3.EnableFormatValidation())
}

// Whatever is asked of a daemon, no answer has the ids of the tokens that it has served.
func TestNoAnswerTellsTokens(t *testing.T) {
	r, keys := withKnownTokens(t)
	doc := r.documented(t)
	var forms []string
	for _, id := range knownTokens(64) {
		forms = append(forms, strconv.FormatUint(uint64(id), 10), fmt.Sprintf("%08x", id), hex.EncodeToString(binary.LittleEndian.AppendUint32(nil, id)))
	}
	asked := 0
	for path, item := range doc.Paths.Map() {
		if item.Get == nil {
			continue
		}
		at, _, _ := target(t, path, item.Get, keys)
		status, _, text := r.get(t, at)
		if status != http.StatusOK {
			t.Errorf("%s: %d %s", at, status, text)
		}
		asked++
		lower := strings.ToLower(text)
		for _, form := range forms {
			if strings.Contains(lower, form) {
				t.Fatalf("%s tells a token: %s", at, form)
			}
		}
	}
	if asked < 20 {
		t.Errorf("%d operations were looked at", asked)
	}
	// That there was something to tell: the segment has its tokens.
	key, err := hex.DecodeString(keys["segments"])
	must(t, err)
	if d, ok := r.store.Segment(profile.SegmentKey(key)); !ok || !slices.Equal(d.Tokens, knownTokens(64)) {
		t.Error("the segment does not have the known tokens")
	}
}

// Nothing that a daemon has none of yet is null.
func TestAnUnusedDaemonKeepsTheContract(t *testing.T) {
	config := testConfig(t)
	config.AdminSocket = ""
	r := startDaemon(t, config, nil)
	for path, item := range r.documented(t).Paths.Map() {
		if item.Get == nil || strings.Contains(path, "{") {
			continue
		}
		at, _, _ := target(t, path, item.Get, nil)
		status, header, text := r.get(t, at)
		if status != http.StatusOK {
			t.Errorf("%s: %d %s", at, status, text)
		}
		if err := conforms(item.Get, status, header, text); err != nil {
			t.Errorf("%s: %v\n%s", at, err, text)
		}
	}
}
