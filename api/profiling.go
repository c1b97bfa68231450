package api

import (
	"net/http"
	"net/http/pprof"
	"strings"
)

const profilingPath = "/debug/pprof/"

// profile serves the profiles of the Go runtime. The caller has checked that the listener is
// trusted. A recording ends early when the server stops.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) {
	r = r.WithContext(s.stopping)
	switch name := strings.TrimPrefix(r.URL.Path, profilingPath); name {
	case "":
		pprof.Index(w, r)
	case "cmdline":
		pprof.Cmdline(w, r)
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Handler(name).ServeHTTP(w, r)
	}
}
