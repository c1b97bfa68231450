package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

const (
	changesToken = "0123456789abcdef"
	routersToken = "fedcba9876543210"
)

func TestLocateAndChangesNeedTheSocketOrAToken(t *testing.T) {
	f := newFake(1)
	none := serve(t, f, nil)
	both := serve(t, f, func(o *Options) { o.Token, o.RouterToken = changesToken, routersToken })
	admin := serve(t, f, func(o *Options) { o.Token = changesToken })
	router := serve(t, f, func(o *Options) { o.RouterToken = routersToken })
	codes := map[int]string{401: CodeUnauthorized, 403: CodeReadOnly}
	remove := "/api/v1/segments/" + f.segments[0].Key.String()
	for _, r := range []struct {
		name         string
		s            *served
		auth         string
		locate, drop int
	}{
		{"no tokens", none, "Bearer " + changesToken, 403, 403},
		{"no tokens, none given", none, "", 403, 403},
		{"both, none given", both, "", 401, 401},
		{"both, routers'", both, "Bearer " + routersToken, 200, 401},
		{"both, changes'", both, "Bearer " + changesToken, 200, 200},
		{"both, a prefix", both, "Bearer " + routersToken[:15], 401, 401},
		{"both, without scheme", both, routersToken, 401, 401},
		{"changes only", admin, "Bearer " + changesToken, 200, 200},
		{"changes only, a longer one", admin, "Bearer " + changesToken + "0", 401, 401},
		{"changes only, other scheme", admin, "Basic " + changesToken, 401, 401},
		{"changes only, routers'", admin, "Bearer " + routersToken, 401, 401},
		{"routers only", router, "Bearer " + routersToken, 200, 403},
		{"empty bearer", router, "Bearer ", 401, 403},
	} {
		status, _, body := send(t, http.DefaultClient, "POST", r.s.tcp+locatePath, goodQuery, "Authorization", r.auth)
		if status != r.locate || status != 200 && problemIn(t, body).Code != codes[status] {
			t.Errorf("%s: locate %d, want %d: %s", r.name, status, r.locate, body)
		}
		status, _, body = send(t, http.DefaultClient, "DELETE", r.s.tcp+remove, "", "Authorization", r.auth)
		if status != r.drop || status != 200 && problemIn(t, body).Code != codes[status] {
			t.Errorf("%s: remove %d, want %d: %s", r.name, status, r.drop, body)
		}
	}
	if n := len(f.removed); n != 2 {
		t.Errorf("%d removals, want those with the token for changes", n)
	}
	if status, _, body := send(t, unixHTTP(t, none.unix), "POST", "http://localhost"+locatePath, goodQuery); status != 200 {
		t.Errorf("admin socket: %d: %s", status, body)
	}
}

// A body is held only for who may ask: that of others is refused by its length.
func TestLongBodiesAreReadOfRoutersOnly(t *testing.T) {
	s := serve(t, newFake(1), func(o *Options) { o.RouterToken = routersToken })
	for _, r := range []struct {
		path, auth string
		length     int
		status     int
	}{
		{locatePath, "", maxBodyBytes, 401},
		{locatePath, "", maxBodyBytes + 1, 401},
		{locatePath, "wrong", maxBodyBytes + 1, 401},
		{locatePath, routersToken, maxLocateBytes + 1, 413},
		{locatePath, routersToken, maxLocateBytes, 400}, // nothing but blanks
		{locatePath + "?x=1", routersToken, maxBodyBytes + 1, 413},
		{"/api/v1/status", routersToken, maxBodyBytes + 1, 413},
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.tcp, "http://"))
		must(t, err)
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", r.path, r.auth, r.length)
		if r.status != 413 && r.length <= maxLocateBytes && r.auth == routersToken || r.length <= maxBodyBytes {
			if _, err := io.WriteString(c, strings.Repeat(" ", r.length)); err != nil {
				t.Fatal(err)
			}
		}
		must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		res.Body.Close()
		c.Close()
		if res.StatusCode != r.status {
			t.Errorf("%s, %d bytes, token %q: %d, want %d", r.path, r.length, r.auth, res.StatusCode, r.status)
		}
	}
}

// What is answered to a question that makes no sense names its mistakes, and nothing of
// the tokens in it.
func TestBadQuestionsAreToldWithoutTheirTokens(t *testing.T) {
	s := serve(t, newFake(1), nil)
	key := Digest{7}.String()
	many := func(n int, item string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]"
	}
	for name, row := range map[string]struct{ body, says string }{
		"nothing":            {``, "incomplete"},
		"no JSON":            {`{"profile": "m", "token_ids": [987654321, x]}`, "byte"},
		"two documents":      {`{"profile": "m", "token_ids": [987654321]} {}`, "more than one"},
		"unknown field":      {`{"profile": "m", "token_ids": [987654321], "tokenids": 1}`, "unknown"},
		"a token too large":  {`{"profile": "m", "token_ids": [9876543210]}`, "token_ids"},
		"a negative token":   {`{"profile": "m", "token_ids": [-987654321]}`, "token_ids"},
		"a token as text":    {`{"profile": "m", "token_ids": ["987654321"]}`, "token_ids"},
		"no profile":         {`{"token_ids": [987654321]}`, "profile"},
		"no prompt":          {`{"profile": "m"}`, "tokens"},
		"long prompt":        {`{"profile": "m", "tokens": 987654321}`, "tokens"},
		"two lengths":        {`{"profile": "m", "tokens": 3, "token_ids": [987654321]}`, "tokens"},
		"many tokens":        {`{"profile": "m", "token_ids": ` + many(MaxLocateTokens+1, "1") + `}`, "token_ids"},
		"odd accept":         {`{"profile": "m", "tokens": 3, "accept": "987654321"}`, "accept"},
		"many nodes":         {`{"profile": "m", "tokens": 3, "limit": 1025}`, "limit"},
		"tokens and hashes":  {`{"profile": "m", "token_ids": [987654321], "prefixes": [{"hash": "` + key + `", "tokens": 1}]}`, "prefixes"},
		"no block":           {`{"profile": "m", "token_ids": [987654321, 1], "positions": [1]}`, "positions"},
		"position backward":  {`{"profile": "m", "token_ids": [987654321, 1], "block_tokens": 1, "positions": [2, 1]}`, "positions"},
		"position beyond":    {`{"profile": "m", "token_ids": [987654321, 1], "block_tokens": 1, "positions": [3]}`, "positions"},
		"primed too late":    {`{"profile": "m", "token_ids": [987654321], "primer": "` + key + `", "primed_from": 2}`, "primed_from"},
		"without a primer":   {`{"profile": "m", "token_ids": [987654321, 1], "primed_from": 1}`, "primed_from"},
		"primer and keys":    {`{"profile": "m", "tokens": 3, "primer": "` + key + `"}`, "token_ids"},
		"prefix backward":    {`{"profile": "m", "tokens": 3, "prefixes": [{"hash": "` + key + `", "tokens": 2}, {"hash": "` + key + `", "tokens": 2}]}`, "prefixes"},
		"prefix beyond":      {`{"profile": "m", "tokens": 3, "prefixes": [{"hash": "` + key + `", "tokens": 4}]}`, "prefixes"},
		"many prefixes":      {`{"profile": "m", "tokens": 3, "prefixes": ` + many(MaxLocatePrefixes+1, `{"hash":"`+key+`","tokens":1}`) + `}`, "prefixes"},
		"half a hash":        {`{"profile": "m", "tokens": 3, "prefixes": [{"hash": "98765432", "tokens": 1}]}`, "hex"},
		"no key":             {`{"profile": "m", "tokens": 3, "segments": [{"begin": 0, "tokens": 1}]}`, "segments"},
		"a key with tokens":  {`{"profile": "m", "token_ids": [987654321], "segments": [{"begin": 0, "tokens": 1, "key": "` + key + `"}]}`, "segments"},
		"segments overlap":   {`{"profile": "m", "token_ids": [987654321, 1, 1], "segments": [{"begin": 0, "tokens": 2}, {"begin": 1, "tokens": 2}]}`, "segments"},
		"segment beyond":     {`{"profile": "m", "token_ids": [987654321, 1, 1], "segments": [{"begin": 1, "tokens": 3}]}`, "segments"},
		"segment overflows":  {`{"profile": "m", "token_ids": [987654321, 1, 1], "segments": [{"begin": 1, "tokens": 9223372036854775807}]}`, "segments"},
		"segment of nothing": {`{"profile": "m", "token_ids": [987654321, 1, 1], "segments": [{"begin": 1, "tokens": 0}]}`, "segments"},
		"all excluded":       {`{"profile": "m", "tokens": 3, "segments": [{"begin": 0, "tokens": 1, "key": "` + key + `", "excluded_tokens": 1}]}`, "segments"},
	} {
		status, _, body := send(t, unixHTTP(t, s.unix), "POST", "http://localhost"+locatePath, row.body)
		if status != 400 || !strings.Contains(string(body), row.says) {
			t.Errorf("%s: %d %s, want 400 and a word about %q", name, status, body, row.says)
		}
		if text := string(body); name != "long prompt" && (strings.Contains(text, "98765432") || strings.Contains(text, key)) {
			t.Errorf("%s: the answer tells of the prompt: %s", name, text)
		}
	}
}

func TestClientLocates(t *testing.T) {
	f := newFake(1)
	f.located = make(chan LocateQuery, 1)
	s := serve(t, f, func(o *Options) { o.RouterToken = routersToken })
	q := LocateQuery{Profile: "m", TokenIDs: []uint32{1, 2, 1<<32 - 1}, BlockTokens: 1, Positions: []int{2}, SeamTokens: 8, Segments: []LocateSegment{{Begin: 0, Tokens: 3}}}
	got, err := s.client(t, s.tcp, routersToken).Locate(t.Context(), &q)
	must(t, err)
	want := q
	want.Tokens, want.Limit = 3, DefaultNodes
	if asked := <-f.located; !reflect.DeepEqual(asked, want) {
		t.Errorf("asked for %+v, want %+v", asked, want)
	}
	if got.Best != "node-2" || len(got.Nodes) != 2 || got.Nodes[0].SavedWithPeersMillis != 31 || *got.Nodes[1].DiskTokens != 128 || got.Nodes[0].MemoryTokens != nil {
		t.Errorf("%+v", got)
	}
	if _, err := s.client(t, s.tcp, changesToken).Locate(t.Context(), &q); err == nil {
		t.Error("answered without the token")
	}
	q.Profile = "unknown"
	if _, err := s.client(t, "unix:"+s.unix, "").Locate(t.Context(), &q); !errors.Is(err, ErrNotFound) {
		t.Errorf("a profile that is not known: %v", err)
	}
}

// Questions beyond those that are answered at once wait for a moment, and are then told
// to come again; they never take the places of probes.
func TestTooManyQuestionsAreToldToComeAgain(t *testing.T) {
	f := newFake(1)
	f.located = make(chan LocateQuery) // nobody reads: they hang
	s := serve(t, f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	httpc := unixHTTP(t, s.unix)
	answered := make(chan int, maxLocating)
	for range maxLocating {
		go func() {
			req, err := http.NewRequestWithContext(ctx, "POST", "http://localhost"+locatePath, strings.NewReader(goodQuery))
			if err != nil {
				answered <- 0
				return
			}
			res, err := httpc.Do(req)
			if err != nil {
				answered <- 0
				return
			}
			res.Body.Close()
			answered <- res.StatusCode
		}()
	}
	for deadline := time.Now().Add(time.Minute); len(s.server.locating) < maxLocating; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d questions are answered", len(s.server.locating))
		}
	}
	status, _, body := send(t, httpc, "POST", "http://localhost"+locatePath, goodQuery)
	var p Problem
	if err := json.Unmarshal(body, &p); err != nil || status != 503 || p.Code != CodeUnavailable {
		t.Errorf("%d: %s", status, body)
	}
	if status, _, _ := send(t, httpc, "GET", "http://localhost/livez", ""); status != 200 {
		t.Errorf("livez %d", status)
	}
	for range maxLocating {
		<-f.located
	}
	for range maxLocating {
		if status := <-answered; status != 200 {
			t.Errorf("one that waited: %d", status)
		}
	}
}

func FuzzLocateQuery(f *testing.F) {
	f.Add([]byte(goodQuery))
	for _, c := range bodiesOf("") {
		f.Add([]byte(c.body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var q LocateQuery
		if err := decodeBody(body, &q); err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if q.Validate() != nil {
			return
		}
		end := 0
		for _, s := range q.Segments {
			if s.Begin < end || s.Tokens < 1 || s.Begin+s.Tokens > q.Tokens {
				t.Fatalf("segment %+v of %d tokens", s, q.Tokens)
			}
			end = s.Begin + s.Tokens
		}
		if q.Tokens < 1 || q.Limit < 1 || len(q.TokenIDs) > 0 && len(q.TokenIDs) != q.Tokens {
			t.Fatalf("%+v", q)
		}
	})
}
