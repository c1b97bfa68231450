package api

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func getRaw(t *testing.T, c *http.Client, method, url string, headers map[string]string) *http.Response {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	must(t, err)
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	res, err := c.Do(req)
	must(t, err)
	t.Cleanup(func() { res.Body.Close() })
	return res
}

func TestDashboardIsServed(t *testing.T) {
	s := serve(t, newFake(1), nil)
	stay := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, path := range []string{"/", "/ui"} {
		res := getRaw(t, stay, "GET", s.tcp+path, nil)
		// Relative, so that it leads to the dashboard below the prefix of a proxy, too.
		if at := res.Header.Get("Location"); res.StatusCode != http.StatusFound || at != "ui/" {
			t.Errorf("%s: %d to %q", path, res.StatusCode, at)
		}
	}
	// Go's client asks for gzip itself and unpacks it.
	page := getRaw(t, http.DefaultClient, "GET", s.tcp+"/", nil)
	body, err := io.ReadAll(page.Body)
	if err != nil || page.StatusCode != 200 || !page.Uncompressed || !strings.Contains(string(body), "<title>spliced</title>") {
		t.Fatalf("%d, unpacked %v, %v: %.100s", page.StatusCode, page.Uncompressed, err, body)
	}
	if page.Header.Get("Cache-Control") != "no-cache" || page.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("headers %v", page.Header)
	}
	again := getRaw(t, http.DefaultClient, "GET", s.tcp+"/ui/", map[string]string{"If-None-Match": page.Header.Get("ETag")})
	if again.StatusCode != http.StatusNotModified {
		t.Errorf("kept, and sent again: %d", again.StatusCode)
	}
	head := getRaw(t, http.DefaultClient, "HEAD", s.tcp+"/ui/", map[string]string{"Accept-Encoding": "identity"})
	if head.StatusCode != 200 || head.ContentLength < 500 {
		t.Errorf("HEAD: %d, %d bytes", head.StatusCode, head.ContentLength)
	}
}
