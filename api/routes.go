package api

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// openAPI is the contract of every path below; a test compares the two.
//
//go:embed openapi.json
var openAPI []byte

const (
	locatePath = "/api/v1/locate"
	eventsPath = "/api/v1/events"
)

// access is the permission that a route requires on an untrusted listener.
type access uint8

const (
	open    access = iota // nothing: probes, and files that are the same everywhere
	scrapes               // if there is a token for reading, that or the one for changes
	reads                 // the token for reading or for changes; none over loopback while there is no token at all
	asks                  // the token for routers or for changes
	changes               // the token for changes
)

// route is one operation of the OpenAPI document.
type route struct {
	method string
	path   string // a trailing {key} is one path segment
	id     string // operationId
	needs  access
	handle func(s *Server, ctx *fasthttp.RequestCtx, arg string) error
}

func allRoutes() []route {
	const get, put, post, del, patch = fasthttp.MethodGet, fasthttp.MethodPut, fasthttp.MethodPost, fasthttp.MethodDelete, fasthttp.MethodPatch
	return []route{
		{get, "/livez", "getLive", open, (*Server).live},
		{get, "/readyz", "getReady", open, (*Server).ready},
		{get, "/healthz", "getHealth", open, (*Server).ready},
		{get, "/metrics", "getMetrics", scrapes, (*Server).scrape},
		{get, "/openapi.json", "getOpenAPI", open, (*Server).document},
		{get, "/api/v1/status", "getStatus", reads, (*Server).status},
		{get, "/api/v1/profiles", "listProfiles", reads, (*Server).listProfiles},
		{get, "/api/v1/segments", "listSegments", reads, (*Server).listSegments},
		{get, "/api/v1/segments/{key}", "getSegment", reads, (*Server).getSegment},
		{del, "/api/v1/segments/{key}", "removeSegment", changes, (*Server).removeSegment},
		{get, "/api/v1/checkpoints", "listCheckpoints", reads, (*Server).listCheckpoints},
		{get, "/api/v1/pools", "listPools", reads, (*Server).listPools},
		{get, "/api/v1/connections", "listConnections", reads, (*Server).listConnections},
		{get, "/api/v1/canaries", "listCanaries", reads, (*Server).listCanaries},
		{put, "/api/v1/canaries/{key}", "switchOff", changes, (*Server).switchOff},
		{del, "/api/v1/canaries/{key}", "switchOn", changes, (*Server).switchOn},
		{get, "/api/v1/cluster", "getCluster", reads, (*Server).cluster},
		{post, locatePath, "locate", asks, (*Server).locate},
		{post, "/api/v1/object-store/probe", "probeObjectStore", changes, (*Server).probeObjectStore},
		{get, "/api/v1/decisions", "listDecisions", reads, (*Server).listDecisions},
		{get, eventsPath, "listEvents", reads, (*Server).events},
		{get, "/api/v1/stats", "listCounters", reads, (*Server).listCounters},

		{get, "/api/v1/leases", "listLeases", reads, (*Server).listLeases},
		{del, "/api/v1/segments", "removeSegments", changes, (*Server).removeSegments},
		{del, "/api/v1/checkpoints", "removeCheckpoints", changes, (*Server).removeCheckpoints},
		{get, "/api/v1/checkpoints/{key}", "getCheckpoint", reads, (*Server).getCheckpoint},
		{del, "/api/v1/checkpoints/{key}", "removeCheckpoint", changes, (*Server).removeCheckpoint},
		{get, "/api/v1/pins", "listPins", reads, (*Server).listPins},
		{put, "/api/v1/pins/{key}", "pin", changes, (*Server).putPin},
		{del, "/api/v1/pins/{key}", "unpin", changes, (*Server).removePin},
		{get, "/api/v1/config", "getConfig", reads, (*Server).getConfig},
		{patch, "/api/v1/config", "changeConfig", changes, (*Server).patchConfig},
		{post, "/api/v1/drain", "drain", changes, (*Server).drainOn},
		{del, "/api/v1/drain", "undrain", changes, (*Server).drainOff},
		{post, "/api/v1/reload", "reload", changes, (*Server).reload},
		{get, "/api/v1/overview", "getOverview", reads, (*Server).overview},
		{get, "/api/v1/usage", "listUsage", reads, (*Server).listUsage},
		{get, "/api/v1/requests", "listRequests", reads, (*Server).listRequests},
		{get, "/api/v1/requests/{key}", "getRequest", reads, (*Server).getRequest},
	}
}

// methodTable holds the routes of one path.
type methodTable map[string]route

func (m methodTable) allow() string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// routeTable finds routes by path: exact ones, and those with one trailing argument by
// their prefix.
type routeTable struct {
	exact  map[string]methodTable
	prefix map[string]methodTable
}

func newRouteTable() routeTable {
	t := routeTable{exact: map[string]methodTable{}, prefix: map[string]methodTable{}}
	for _, r := range allRoutes() {
		table, path := t.exact, r.path
		if before, ok := strings.CutSuffix(path, "{key}"); ok {
			table, path = t.prefix, before
		}
		if table[path] == nil {
			table[path] = methodTable{}
		}
		table[path][r.method] = r
	}
	return t
}

func (t routeTable) find(path string) (methodTable, string, bool) {
	if m, ok := t.exact[path]; ok {
		return m, "", true
	}
	cut := strings.LastIndexByte(path, '/') + 1
	m, ok := t.prefix[path[:cut]]
	return m, path[cut:], ok && cut < len(path)
}

// writeJSON answers with v, which consists of plain data.
func writeJSON(ctx *fasthttp.RequestCtx, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(body)
	return nil
}

func paramsOf(ctx *fasthttp.RequestCtx) *params { return &params{args: ctx.QueryArgs()} }

// noParams refuses any query parameter.
func noParams(ctx *fasthttp.RequestCtx) error { return paramsOf(ctx).done() }

// onlyDryRun parses the only parameter of changes without others.
func onlyDryRun(ctx *fasthttp.RequestCtx) (dry bool, err error) {
	p := paramsOf(ctx)
	dry = p.flag("dry_run")
	return dry, p.done()
}
