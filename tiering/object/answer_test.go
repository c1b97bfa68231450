package object

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// An answer that is longer than any has to be is not read to its end.
func TestAnswersAreBounded(t *testing.T) {
	s := open(t)
	n := s.run(nil)
	s.Set(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		_, _ = io.WriteString(w, `<?xml version="1.0"?>`+strings.Repeat(" ", maxAnswerBytes+1))
	})
	if err := n.List(context.Background()); err == nil || !strings.Contains(err.Error(), "the answer has more than") {
		t.Errorf("a listing above the bound: %v", err)
	}
	s.Set(nil)
	if err := n.List(context.Background()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// The bound is on what has no length of the caller's: listings and errors, also those that
// answer a read of an object. Their bytes count as progress.
func TestBoundOfAnswers(t *testing.T) {
	var status, length int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write(make([]byte, length))
	}))
	defer server.Close()
	c := http.Client{Transport: &transport{base: &http.Transport{}, now: time.Now}}
	defer c.CloseIdleConnections()
	for name, test := range map[string]struct {
		status int
		ranged bool
		more   int // than the bound
		fails  bool
	}{
		"a listing at the bound":                    {status: http.StatusOK},
		"a listing above it":                        {status: http.StatusOK, more: 1, fails: true},
		"an error at the bound":                     {status: http.StatusNotFound, ranged: true},
		"an error above it":                         {status: http.StatusNotFound, ranged: true, more: 1, fails: true},
		"a part of an object":                       {status: http.StatusPartialContent, ranged: true, more: 1},
		"an object of a server that ignores ranges": {status: http.StatusOK, ranged: true, more: 1},
	} {
		status, length = test.status, maxAnswerBytes+test.more
		moves := 0
		ctx := context.WithValue(t.Context(), movedKey{}, func() { moves++ })
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		must(t, err)
		if test.ranged {
			q.Header.Set("Range", "bytes=0-9")
		}
		r, err := c.Do(q)
		must(t, err)
		n, err := io.Copy(io.Discard, r.Body)
		if (err != nil) != test.fails || n > maxAnswerBytes+1 {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		// Progress of a read of an object is reported by who reads it.
		bounded := !test.ranged || status >= http.StatusMultipleChoices
		if least := maxAnswerBytes / pieceBytes / 2; bounded && moves < least || !bounded && moves > 0 {
			t.Errorf("%s: progress was reported %d times", name, moves)
		}
		_ = r.Body.Close()
	}
}
