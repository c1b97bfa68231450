package daemon

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// outside is an address of this machine that is not loopback.
func outside(t *testing.T) net.IP {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && !ip.IP.IsLinkLocalUnicast() && ip.IP.To4() != nil {
			return ip.IP
		}
	}
	t.Skip("this machine has no address but loopback's")
	return nil
}

// Over TCP health is open, and the rest needs a token, whatever address it is asked from.
func TestReadingNeedsATokenFromEverywhere(t *testing.T) {
	ip, dir := outside(t), t.TempDir()
	config := testConfig(t)
	config.HTTP, config.AdminSocket = "0.0.0.0:0", ""
	config.AdminReadTokenFile, config.TokenFile = filepath.Join(dir, "read"), filepath.Join(dir, "changes")
	const reader, changes = "a token that reads", "a token that changes"
	write(t, config.AdminReadTokenFile, reader)
	write(t, config.TokenFile, changes)
	r := startDaemon(t, config, nil)
	_, port, err := net.SplitHostPort(r.AdminAddr().String())
	must(t, err)
	ask := func(host, method, path, token string) (int, string) {
		req, err := http.NewRequest(method, "http://"+net.JoinHostPort(host, port)+path, nil)
		must(t, err)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		must(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		must(t, err)
		return answer.StatusCode, string(text)
	}
	doc := r.documented(t)
	for path, item := range doc.Paths.Map() {
		if item.Get == nil || strings.Contains(path, "{") {
			continue
		}
		query := ""
		if item.Get.Parameters.GetByInAndName("query", "poll") != nil {
			query = "?poll=1"
		}
		open := !strings.HasPrefix(path, "/api/") && path != "/metrics"
		for token, want := range map[string]int{"": 401, "wrong": 401, reader: 200, changes: 200} {
			if open {
				want = 200
			}
			for _, host := range []string{ip.String(), "127.0.0.1", "127.0.0.6"} {
				if status, text := ask(host, http.MethodGet, path+query, token); status != want {
					t.Errorf("%s at %s with token %q: %d %s", path, host, token, status, text)
				}
			}
		}
	}
	for token, want := range map[string]int{"": 401, reader: 401, changes: 200} {
		if status, text := ask(ip.String(), http.MethodPost, "/api/v1/drain?dry_run=true", token); status != want {
			t.Errorf("a change with token %q: %d %s", token, status, text)
		}
	}
}
