package api

import (
	"strings"

	"github.com/valyala/fasthttp"
)

const dashboardPath = "/ui/"

// dashboard answers requests for the dashboard, and reports whether the path belongs to it.
// The files are the same for all clients and contain nothing about the node, so no token is
// required: the page asks for one if the REST API requires it.
//
// The redirects are relative, since a proxy may serve us below another path.
func (s *Server) dashboard(ctx *fasthttp.RequestCtx, path string) (bool, error) {
	below, ok := strings.CutPrefix(path, dashboardPath)
	moved := path == "/" || path+"/" == dashboardPath
	if !ok && !moved {
		return false, nil
	}
	if !ctx.IsGet() && !ctx.IsHead() {
		return true, noMethod(ctx, fasthttp.MethodGet)
	}
	h := &ctx.Response.Header
	if moved {
		h.Set("Location", strings.TrimPrefix(dashboardPath, "/"))
		ctx.SetStatusCode(fasthttp.StatusFound)
		return true, nil
	}
	asked := &ctx.Request.Header
	answer, ok := s.site.Serve(below, string(asked.Peek("Accept-Encoding")), string(asked.Peek("If-None-Match")))
	if !ok {
		return true, noPath(path)
	}
	for _, line := range answer.Header {
		h.Set(line[0], line[1])
	}
	ctx.SetStatusCode(answer.Status)
	ctx.SetBody(answer.Body)
	return true, nil
}
