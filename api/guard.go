package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/valyala/fasthttp"
)

// guardHost refuses requests that a page of another site made a browser send.
//
// DNS rebinding makes a name of another site resolve to our address, so guardHost checks the name
// in Host. An address literal cannot be rebound. Over loopback, only a loopback address is
// accepted, since an honest client uses no other.
//
// Probes and metrics are answered for any Host, so that a scraper may use the name of a Kubernetes
// Service. They change nothing. A page that uses rebinding learns only what any client of the port
// can read. Unless reading needs a token, these are counts and the names of models and tenants.
func (s *Server) guardHost(ctx *fasthttp.RequestCtx) *Problem {
	host := hostname(string(ctx.Host()))
	if !anyHost[string(ctx.Path())] && !s.hostAllowed(host, ctx.LocalAddr()) {
		return newProblem(fasthttp.StatusForbidden, CodeForbiddenHost,
			fmt.Sprintf("Host %.100q is not allowed: add it to -http-hosts (SPLICED_HTTP_HOSTS), or use an address", host))
	}
	origin := string(ctx.Request.Header.Peek("Origin"))
	if origin == "" {
		return nil
	}
	u, err := url.Parse(origin)
	if err != nil || !strings.EqualFold(u.Host, string(ctx.Host())) {
		return newProblem(fasthttp.StatusForbidden, CodeForbiddenHost, "requests from another origin are not allowed: use a name of this node that is in -http-hosts")
	}
	return nil
}

// anyHost lists the paths that are answered for any Host.
var anyHost = map[string]bool{"/livez": true, "/readyz": true, "/healthz": true, "/metrics": true}

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

// hostname strips the port, brackets and the root dot of a Host value.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// origin is the origin of a request, which determines what it may do without a token.
type origin uint8

const (
	stranger origin = iota // TCP from another machine, or unknown
	local                  // TCP over loopback: this machine, or a proxy on it
	owner                  // the admin unix socket
)

// originOf returns the origin of a request on a listener.
func originOf(ctx *fasthttp.RequestCtx, trusted bool) origin {
	switch {
	case trusted:
		return owner
	case ctx.RemoteIP().IsLoopback():
		return local
	}
	return stranger
}

// guard allows a request if its origin permits it, or if it has the required token.
func (s *Server) guard(h *fasthttp.RequestHeader, needs access, from origin) *Problem {
	keys := s.keys.Load()
	switch {
	case from == owner, needs == open:
		return nil
	case needs == scrapes && keys.reads == nil:
		return nil
	case needs == reads && from == local && *keys == (keysOf{}):
		// Loopback suffices only if no token is set. If one is set, callers are expected to
		// use it: a proxy or sidecar could make clients on other machines look local.
		return nil
	}
	may := []*[sha256.Size]byte{keys.changes}
	switch needs {
	case asks:
		may = append(may, keys.asks)
	case reads, scrapes:
		may = append(may, keys.reads)
	}
	given, ok := strings.CutPrefix(string(h.Peek("Authorization")), "Bearer ")
	// The given token is hashed and compared with the hashes of valid tokens, so that the time of
	// the comparison reveals neither a valid token nor its length.
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
	if some {
		return newProblem(fasthttp.StatusUnauthorized, CodeUnauthorized, needsToken[needs])
	}
	return newProblem(fasthttp.StatusForbidden, CodeReadOnly, noToken[needs])
}

// Details of problems: needsToken if the request lacks a valid token, noToken if the node has
// no token that would permit the request.
var (
	needsToken = [...]string{
		reads:   "over TCP this needs the bearer token of -admin-read-token-file or -token-file; the admin unix socket needs none",
		scrapes: "over TCP metrics need the bearer token of -admin-read-token-file or -token-file; the admin unix socket needs none",
		asks:    "over TCP this needs the bearer token of -router-token-file or -token-file",
		changes: "a change over TCP needs the bearer token of -token-file",
	}
	noToken = [...]string{
		reads:   "over TCP this needs a token for reading: use the admin unix socket, or set -admin-read-token-file or -token-file",
		asks:    "this listener does not serve locate: use the admin unix socket, or set -router-token-file or -token-file",
		changes: "this listener is read-only: use the admin unix socket, or set -token-file",
	}
)

// keysOf holds the hashes of tokens; nil = none. They are replaced together.
type keysOf struct {
	changes, asks, reads *[sha256.Size]byte
}

// Tokens are the bearer tokens for untrusted listeners. Each has at least MinToken bytes; empty =
// there is no such token.
type Tokens struct {
	// Token permits changes.
	Token string
	// RouterToken permits only lookups of where prompts are cached.
	RouterToken string
	// ReadToken permits reads, including metrics.
	ReadToken string
}

// Validate lists all bad tokens.
func (t *Tokens) Validate() error {
	var bad []error
	for _, token := range []struct{ what, text string }{{"token", t.Token}, {"router token", t.RouterToken}, {"read token", t.ReadToken}} {
		if token.text != "" && len(token.text) < MinToken {
			bad = append(bad, fmt.Errorf("%s has %d bytes, want at least %d", token.what, len(token.text), MinToken))
		}
	}
	return errors.Join(bad...)
}

// MinToken is the minimum size of a token in bytes.
const MinToken = 16

// SetTokens replaces the tokens for later requests. They must be valid.
func (s *Server) SetTokens(t Tokens) {
	s.keys.Store(&keysOf{changes: hashed(t.Token), asks: hashed(t.RouterToken), reads: hashed(t.ReadToken)})
}
