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

// guard lets a request through that may be answered: on a trusted listener, or with a
// token where one is needed.
func (s *Server) guard(h *fasthttp.RequestHeader, needs access, trusted bool) *Problem {
	if trusted || needs == reads {
		return nil
	}
	may := []*[sha256.Size]byte{s.token}
	if needs == asks {
		may = append(may, s.router)
	}
	given, ok := strings.CutPrefix(string(h.Peek("Authorization")), "Bearer ")
	// Both sides are hashed so that the time of the comparison says nothing
	// about the length of the token either.
	sum := sha256.Sum256([]byte(given))
	some := false
	for _, token := range may {
		if token == nil {
			continue
		}
		if some = true; ok && subtle.ConstantTimeCompare(sum[:], token[:]) == 1 {
			return nil
		}
	}
	switch {
	case some && needs == asks:
		return newProblem(fasthttp.StatusUnauthorized, CodeUnauthorized, "over TCP this needs the bearer token of routers")
	case some:
		return newProblem(fasthttp.StatusUnauthorized, CodeUnauthorized, "a change over TCP needs the configured bearer token")
	case needs == asks:
		return newProblem(fasthttp.StatusForbidden, CodeReadOnly, "this listener does not say where prompts are held: use the admin unix socket, or configure a token for routers")
	}
	return newProblem(fasthttp.StatusForbidden, CodeReadOnly, "this listener only reads: use the admin unix socket, or configure a token")
}
