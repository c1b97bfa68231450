package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/valyala/fasthttp"
)

// guardHost refuses requests that a page of another site made a browser send.
//
// DNS rebinding makes a foreign name resolve to our address, so what must be
// checked is the name in Host. An address literal cannot be rebound; still, a
// loopback connection has no reason to carry one that is not loopback.
func (s *Server) guardHost(ctx *fasthttp.RequestCtx) *Problem {
	host := hostname(string(ctx.Host()))
	if !s.hostAllowed(host, ctx.LocalAddr()) {
		return newProblem(fasthttp.StatusForbidden, CodeForbiddenHost, "this Host is not served; see the setting for allowed hosts")
	}
	origin := string(ctx.Request.Header.Peek("Origin"))
	if origin == "" {
		return nil
	}
	u, err := url.Parse(origin)
	if err != nil || !strings.EqualFold(u.Host, string(ctx.Host())) {
		return newProblem(fasthttp.StatusForbidden, CodeForbiddenHost, "requests from another origin are not served")
	}
	return nil
}

func (s *Server) hostAllowed(host string, local net.Addr) bool {
	if host == "localhost" || s.hosts[host] {
		return true
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	at, ok := local.(*net.TCPAddr)
	return addr.IsLoopback() || ok && !at.IP.IsLoopback()
}

// hostname strips port, brackets and the root dot of a Host value.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// guardWrite lets a change through on a trusted listener, or with the token.
func (s *Server) guardWrite(ctx *fasthttp.RequestCtx, trusted bool) *Problem {
	if trusted {
		return nil
	}
	if s.token == nil {
		return newProblem(fasthttp.StatusForbidden, CodeReadOnly,
			"this listener only reads: use the admin unix socket, or configure a token")
	}
	given, ok := strings.CutPrefix(string(ctx.Request.Header.Peek("Authorization")), "Bearer ")
	// Both sides are hashed so that the time of the comparison says nothing
	// about the length of the token either.
	sum := sha256.Sum256([]byte(given))
	if !ok || subtle.ConstantTimeCompare(sum[:], s.token[:]) != 1 {
		ctx.Response.Header.Set("WWW-Authenticate", `Bearer realm="spliced"`)
		return newProblem(fasthttp.StatusUnauthorized, CodeUnauthorized, "a change over TCP needs the configured bearer token")
	}
	return nil
}
