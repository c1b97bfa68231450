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

// openAPI is the contract of every path below. make generate writes it from allRoutes and from
// the types of requests and answers with their comments.
//
//go:generate go test . -run DocumentIsGenerated -update
//go:embed openapi.json
var openAPI []byte

const (
	locatePath = "/api/v1/locate"
	eventsPath = "/api/v1/events"
)

// access is the permission that a route requires on an untrusted listener.
type access uint8

const (
	open    access = iota // no token: probes, and files that are the same on all nodes
	scrapes               // the token for reading or for changes; no token if there is none for reading
	reads                 // the token for reading or for changes; over loopback no token if none of any kind is set
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
	doc    operation
}

// onShown makes the handler of a route that needs only the data sources.
func onShown(handle func(from *Shown, ctx *fasthttp.RequestCtx, arg string) error) func(*Server, *fasthttp.RequestCtx, string) error {
	return func(s *Server, ctx *fasthttp.RequestCtx, arg string) error { return handle(s.shown(), ctx, arg) }
}

// simple makes the handler of a route without parameters, which answers with what the function get
// returns.
func simple[T any](get func(from *Shown) (T, error)) func(*Server, *fasthttp.RequestCtx, string) error {
	return func(s *Server, ctx *fasthttp.RequestCtx, _ string) error {
		if err := noParams(ctx); err != nil {
			return err
		}
		answer, err := get(s.shown())
		if err != nil {
			return err
		}
		return writeJSON(ctx, answer)
	}
}

// whole makes the handler of a listing in one page. Its length is bounded by the data source:
// profiles, pools, connections and counters are few.
func whole[T any](list func(from *Shown) []T) func(*Server, *fasthttp.RequestCtx, string) error {
	return simple(func(from *Shown) (Page[T], error) { return Page[T]{Items: orEmpty(list(from))}, nil })
}

func allRoutes() []route {
	const get, put, post, del, patch = fasthttp.MethodGet, fasthttp.MethodPut, fasthttp.MethodPost, fasthttp.MethodDelete, fasthttp.MethodPatch
	var (
		yesNo  = schema{"type": "boolean"}
		text   = schema{"type": "string"}
		name   = schema{"type": "string", "minLength": 1, "maxLength": maxNameBytes}
		number = schema{"type": "integer", "minimum": 0}
		period = schema{"type": "string", "pattern": "^[0-9]"}
		digits = schema{"type": "string", "pattern": "^[0-9a-fA-F]{1,64}$"}
		digest = schema{"$ref": "#/components/schemas/Digest"}
		size   = schema{"type": "integer", "minimum": 1, "maximum": MaxLimit, "default": DefaultLimit}

		verbose   = parameter{name: "verbose", schema: yesNo, about: "list every check"}
		tenant    = parameter{name: "tenant", schema: name, about: "only objects of this tenant"}
		profile   = parameter{name: "profile", schema: number, about: "only objects of this profile"}
		begins    = parameter{name: "key_prefix", schema: digits, about: "only keys that begin with these hex digits"}
		cursor    = parameter{name: "cursor", schema: digest, about: "next of the previous page"}
		limit     = parameter{name: "limit", schema: size, about: "maximum number of items in the answer"}
		limitPlus = parameter{name: "limit", schema: size, about: "maximum number of items in the answer; checkpoints that share the last hash are added"}
		dryRun    = parameter{name: "dry_run", schema: yesNo, about: "report what would change, and change nothing"}
		kind      = parameter{name: "kind", schema: oneOf(checkpointKinds), about: "only checkpoints of this kind"}
		way       = parameter{name: "way", schema: oneOf(ways), about: "only prompts served in this way"}
		ofTenant  = parameter{name: "tenant", schema: name, about: "for this tenant only; all tenants by default"}
	)
	key := func(about string) parameter {
		return parameter{in: "path", required: true, name: "key", schema: digest, about: about}
	}
	filter := []parameter{
		tenant, profile,
		{name: "prefix", schema: digits, about: "only keys that begin with these hex digits"},
		{name: "older_than", schema: period, about: "only objects that were not used for this time, such as 1h or 7d"},
		{name: "all", schema: yesNo, about: "remove everything; required if no other parameter selects objects"},
		dryRun,
	}
	return []route{
		{get, "/livez", "getLive", open, onShown((*Shown).live), operation{
			summary: "Whether the main loop of the process runs", answer: Health{},
			fails: map[int]string{503: "it does not run"}, failure: Health{},
		}},
		{get, "/readyz", "getReady", open, onShown((*Shown).ready), operation{
			summary: "Whether the engine socket is served; a degraded node is ready",
			params:  []parameter{verbose}, answer: Health{},
			fails: map[int]string{503: "the node is not ready"}, failure: Health{},
		}},
		{get, "/healthz", "getHealth", open, onShown((*Shown).ready), operation{
			summary: "The same as /readyz",
			params:  []parameter{verbose}, answer: Health{},
			fails: map[int]string{503: "the node is not ready"}, failure: Health{},
		}},
		{get, "/metrics", "getMetrics", scrapes, (*Server).scrape, operation{
			summary:  "Metrics for Prometheus: text, or OpenMetrics or protobuf with native histograms if Accept requests it",
			anyQuery: true, result: "the metrics",
			media: map[string]schema{"text/plain": text, "application/openmetrics-text": text, "application/vnd.google.protobuf": {"type": "string", "format": "binary"}},
		}},
		{get, "/openapi.json", "getOpenAPI", open, (*Server).document, operation{
			summary: "This document", anyQuery: true,
			media: map[string]schema{"application/json": {"type": "object"}},
		}},
		{get, "/api/v1/status", "getStatus", reads, simple((*Shown).status), operation{
			summary: "State of the process", answer: Status{},
		}},
		{get, "/api/v1/profiles", "listProfiles", reads, whole(func(from *Shown) []Profile { return from.Node.Profiles() }), operation{
			summary: "Registered model identities", items: Profile{},
		}},
		{get, "/api/v1/segments", "listSegments", reads, onShown((*Shown).listSegments), operation{
			summary: "Segments, ordered by key",
			params:  []parameter{tenant, profile, begins, cursor, limit},
			items:   Segment{}, next: digest,
		}},
		{del, "/api/v1/segments", "removeSegments", changes, (*Server).removeSegments, operation{
			summary: "Remove the segments that match the filter, from all tiers",
			params:  filter,
			result:  "what was removed, or with dry_run would be", answer: Removed{},
			fails: map[int]string{404: "the tenant or profile is unknown to this node", 409: "another removal of several objects is running"},
		}},
		{get, "/api/v1/segments/{key}", "getSegment", reads, onShown((*Shown).getSegment), operation{
			summary: "One segment with its parts",
			params:  []parameter{key("segment key")}, answer: SegmentDetail{},
			fails: map[int]string{404: "the segment is not cached"},
		}},
		{del, "/api/v1/segments/{key}", "removeSegment", changes, (*Server).removeSegment, operation{
			summary: "Evict a segment; its memory is freed when its last lease ends",
			params:  []parameter{key("segment key"), dryRun},
			result:  "the segment that was removed, or with dry_run would be", answer: Removal{},
			fails: map[int]string{404: "the segment is not cached", 409: "the segment is being filled, or is pinned"},
		}},
		{get, "/api/v1/checkpoints", "listCheckpoints", reads, onShown((*Shown).listCheckpoints), operation{
			summary: "Checkpoints of running states, ordered by hash",
			params:  []parameter{tenant, profile, cursor, limitPlus},
			items:   Checkpoint{}, next: digest,
		}},
		{del, "/api/v1/checkpoints", "removeCheckpoints", changes, (*Server).removeCheckpoints, operation{
			summary: "Remove the checkpoints that match the filter, from all tiers",
			details: "A checkpoint that a kept one extends is kept too, and counted as busy.",
			params:  filter,
			result:  "what was removed, or with dry_run would be", answer: Removed{},
			fails: map[int]string{404: "the tenant or profile is unknown to this node", 409: "another removal of several objects is running"},
		}},
		{get, "/api/v1/checkpoints/{key}", "getCheckpoint", reads, onShown((*Shown).getCheckpoint), operation{
			summary: "The first checkpoint of a hash that matches the filter",
			params:  []parameter{key("hash"), tenant, profile, kind}, answer: CheckpointDetail{},
			fails: map[int]string{404: "no such checkpoint is cached, or the tenant or profile is unknown to this node"},
		}},
		{del, "/api/v1/checkpoints/{key}", "removeCheckpoint", changes, (*Server).removeCheckpoint, operation{
			summary: "Remove the checkpoints of a hash that match the filter, from all tiers",
			params:  []parameter{key("hash"), tenant, profile, kind, dryRun},
			result:  "what was removed, or with dry_run would be", answer: Removed{},
			fails: map[int]string{404: "no such checkpoint is cached, or the tenant or profile is unknown to this node", 409: "one of them is being filled, is pinned, or is extended by another"},
		}},
		{get, "/api/v1/pools", "listPools", reads, whole(func(from *Shown) []Pool { return withTenants(from.Node.Pools()) }), operation{
			summary: "Memory and disk budgets and their use", items: Pool{},
		}},
		{get, "/api/v1/connections", "listConnections", reads, whole((*Shown).connections), operation{
			summary: "Attached clients", items: Connection{},
		}},
		{get, "/api/v1/canaries", "listCanaries", reads, whole(func(from *Shown) []Canary { return from.Canaries.Canaries() }), operation{
			summary: "Reports of engines that recomputed reused segments, by profile and tenant", items: Canary{},
		}},
		{put, "/api/v1/canaries/{key}", "switchOff", changes, (*Server).switchOff, operation{
			summary: "Switch splicing off for a profile",
			params: []parameter{key("fingerprint of the profile"), ofTenant,
				{name: "why", schema: schema{"type": "string", "minLength": 1, "maxLength": maxWhy}, about: "reason, shown to other operators"}, dryRun},
			result: "the affected rows after the change, or with dry_run before it", answer: Switched{},
			fails: map[int]string{
				404: "the tenant is not configured, no object or report is of the profile, or there is nothing to switch on",
				409: "too many profiles are switched off",
				503: "the change is in force, but could not be written to the disk directory: a restart would forget it",
			},
		}},
		{del, "/api/v1/canaries/{key}", "switchOn", changes, (*Server).switchOn, operation{
			summary: "Switch splicing on again for a profile",
			params:  []parameter{key("fingerprint of the profile"), ofTenant, dryRun},
			result:  "the affected rows after the change, or with dry_run before it", answer: Switched{},
			fails: map[int]string{
				404: "the tenant is not configured, no object or report is of the profile, or there is nothing to switch on",
				409: "too many profiles are switched off",
				503: "the change is in force, but could not be written to the disk directory: a restart would forget it",
			},
		}},
		{get, "/api/v1/cluster", "getCluster", reads, simple((*Shown).cluster), operation{
			summary: "The node's view of its cluster", answer: Cluster{},
		}},
		{post, locatePath, "locate", asks, (*Server).locate, operation{
			summary: "Which nodes of the cluster have which parts of a prompt",
			details: "For routers. A query contains keys, as engines compute them, or token ids, from which the node computes the keys. " +
				"Token ids are neither logged nor stored. The parts on other nodes are this node's beliefs, which are up to some seconds old and sometimes wrong.",
			body: LocateQuery{}, answer: Located{},
			fails: map[int]string{
				400: "bad fields; the problem names all of them",
				404: "the tenant or profile is unknown to this node",
				413: "the body exceeds 1 MiB, or 4 KiB without the token",
				503: "too many such queries are running, or the node is starting",
			},
		}},
		{post, "/api/v1/object-store/probe", "probeObjectStore", changes, simple((*Shown).probeObjectStore), operation{
			summary: "Test the object store with a temporary object", answer: ObjectProbe{},
		}},
		{get, "/api/v1/decisions", "listDecisions", reads, onShown((*Shown).listDecisions), operation{
			summary: "The latest decisions about segments and checkpoints, newest first; with a disk also those of earlier starts",
			params: []parameter{tenant, profile,
				{name: "what", schema: oneOf(decided), about: "only decisions of this kind"}, begins, limit},
			items: Decision{},
		}},
		{get, eventsPath, "listEvents", reads, (*Server).events, operation{
			summary: "Recent and new events: a stream of server-sent events, or with poll a listing",
			details: "The stream begins after the event that the header Last-Event-ID names, or else after the one that the parameter after names. " +
				"Without both it contains new events only. It has a comment at least every 15 seconds. A reader gets an event lost in place of " +
				"the events that it missed because it was too slow or away for too long, or because the daemon has restarted. " +
				"A listing has the order of the events; without after it contains the newest.",
			params: []parameter{
				{name: "kind", schema: listOf(EventKinds), about: "only events of these kinds, separated by commas"},
				{name: "tenant", schema: name, about: "only events of this tenant; events without a tenant are omitted"},
				{name: "after", schema: number, about: "id of the last known event; 0 = all that are kept"},
				{name: "poll", schema: withDefault(yesNo, false), about: "answer at once with a listing"},
				{name: "limit", schema: size, about: "maximum number of items of a listing; an event lost before them is not counted"},
				{name: "Last-Event-ID", in: "header", schema: number, about: "the same as after, and overrides it; browsers send it when they reconnect"},
			},
			items: Event{}, next: text,
			media: map[string]schema{"text/event-stream": {"type": "string", "description": "id: the event's id, event: its kind, data: an Event"}},
			fails: map[int]string{503: "the maximum number of clients follows events"},
		}},
		{get, "/api/v1/stats", "listCounters", reads, whole(func(from *Shown) []Counter { return from.Node.Counters() }), operation{
			summary: "Counters and gauges by name", items: Counter{},
		}},
		{get, "/api/v1/overview", "getOverview", reads, onShown((*Shown).overview), operation{
			summary: "Content of the overview page, with a history for charts",
			params:  []parameter{{name: "history", schema: withDefault(oneOf(histories), HistoryHours), about: "length of the history: its steps are ten seconds, or five minutes for 7d"}},
			answer:  Overview{},
		}},
		{get, "/api/v1/usage", "listUsage", reads, whole(func(from *Shown) []Usage { return from.Node.Usage() }), operation{
			summary: "How prompts were served, by tenant and model", items: Usage{},
		}},
		{get, "/api/v1/requests", "listRequests", reads, onShown((*Shown).listRequests), operation{
			summary: "How the prompts last reported by engines were served, newest first",
			params:  []parameter{tenant, profile, way, limit}, items: Request{},
		}},
		{get, "/api/v1/requests/{key}", "getRequest", reads, onShown((*Shown).getRequest), operation{
			summary: "How one prompt was served, token by token",
			params:  []parameter{{in: "path", required: true, name: "key", schema: schema{"type": "integer", "minimum": 1}, about: "id of the request"}},
			answer:  Request{},
			fails:   map[int]string{404: "the request is not kept, or not any more"},
		}},
		{get, "/api/v1/leases", "listLeases", reads, onShown((*Shown).listLeases), operation{
			summary: "Leases of clients, ordered by lease",
			params: []parameter{tenant,
				{name: "connection", schema: number, about: "only leases of this connection"},
				{name: "cursor", schema: schema{"type": "string", "pattern": "^[0-9]+$"}, about: cursor.about}, limit},
			items: Lease{}, next: text,
		}},
		{get, "/api/v1/pins", "listPins", reads, simple((*Shown).listPins), operation{
			summary: "Pinned objects, ordered by key", items: Pin{},
		}},
		{put, "/api/v1/pins/{key}", "pin", changes, (*Server).putPin, operation{
			summary: "Keep a segment, or the checkpoints of a hash, in memory",
			details: "Objects that are only on disk are read first. An existing pin gets the new expiry. Pins end with the daemon.",
			params: []parameter{key("segment key or hash"),
				{name: "ttl", required: true, schema: period, about: "how long, such as 10m; at most 7d"},
				{name: "by", schema: name, about: "who pins it; by default the user or the address of the client"}, dryRun},
			result: "the pins after the change, or with dry_run as they would be", answer: Pinned{},
			fails: map[int]string{
				404: "no such object is cached",
				409: "the object is being filled, or it is on disk and no engine has registered its model since the start",
				503: "the object is on disk and cannot be read into memory now",
				507: "pins would exceed half of a pool, or the tenant's quota",
			},
		}},
		{del, "/api/v1/pins/{key}", "unpin", changes, (*Server).removePin, operation{
			summary: "Remove the pins of a key",
			params:  []parameter{key("segment key or hash"), dryRun},
			result:  "the pins that were removed, or with dry_run would be", answer: Pinned{},
			fails: map[int]string{404: "the object is not pinned"},
		}},
		{get, "/api/v1/config", "getConfig", reads, onShown((*Shown).getConfig), operation{
			summary: "The configuration, without secrets", answer: Config{}, etag: true,
		}},
		{patch, "/api/v1/config", "changeConfig", changes, (*Server).patchConfig, operation{
			summary: "Change the configuration of the running daemon",
			details: "A merge patch (RFC 7396) of log_level, public_bytes and private_bytes within pools_bytes, the quotas of tenants, and canary_share, " +
				"which engines learn with the reply to their next report of a request. null removes a quota or canary_share. " +
				"A pool shrinks as fast as its objects can be evicted. Changes last until the daemon ends.",
			params: []parameter{
				{name: "If-Match", in: "header", required: true, schema: text, about: "the ETag of the configuration that the change is based on, or *"}, dryRun},
			body: ConfigPatch{}, bodyMedia: mergePatch,
			result: "the configuration after the change, or with dry_run as it would be", answer: Config{}, etag: true,
			fails: map[int]string{
				412: "the configuration has changed since",
				415: "the body is not " + mergePatch,
				422: "a field needs a restart; the problem names it",
				428: "If-Match is missing",
			},
		}},
		{post, "/api/v1/drain", "drain", changes, (*Server).drainOn, operation{
			summary: "Refuse new clients and objects, and report not ready",
			details: "Attached clients can still read, lease, and finish fills. The daemon does not end.",
			params:  []parameter{{name: "undo", schema: yesNo, about: "end the drain"}, dryRun},
			result:  "the state after the change, or with dry_run as it would be", answer: Drained{},
		}},
		{del, "/api/v1/drain", "undrain", changes, (*Server).drainOff, operation{
			summary: "End a drain",
			params:  []parameter{dryRun},
			result:  "the state after the change, or with dry_run as it would be", answer: Drained{},
		}},
		{post, "/api/v1/reload", "reload", changes, (*Server).reload, operation{
			summary: "Read keys, tokens and certificates again",
			details: "The same as SIGHUP: it reads the files of the tenants' tokens, of the admin REST's tokens and TLS, and of the cluster. Either all of them are used or none.",
			params:  []parameter{dryRun},
			result:  "what was read", answer: Reloaded{},
			fails: map[int]string{422: "some files cannot be used, and the problem names each of them; nothing has changed"},
		}},
	}
}

// methodTable holds the routes of one path.
type methodTable map[string]route

func (m methodTable) allow() string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// routeTable finds routes by path: a route without an argument by its whole path, and a route with
// a trailing argument by the path before the argument.
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

// of returns the route of a request, and the argument in its path.
func (t routeTable) of(ctx *fasthttp.RequestCtx) (r route, arg string, ok bool) {
	methods, arg, ok := t.find(string(ctx.Path()))
	if !ok {
		return r, "", false
	}
	r, ok = methods.method(ctx)
	return r, arg, ok
}

// method returns the route of a request's method. fasthttp omits the body of an answer to HEAD.
func (m methodTable) method(ctx *fasthttp.RequestCtx) (route, bool) {
	name := string(ctx.Method())
	if name == fasthttp.MethodHead {
		name = fasthttp.MethodGet
	}
	r, ok := m[name]
	return r, ok
}

// writeJSON answers with v. Encoding v as JSON must not fail.
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

// onlyDryRun parses the query of a change whose only parameter is dry_run.
func onlyDryRun(ctx *fasthttp.RequestCtx) (dry bool, err error) {
	p := paramsOf(ctx)
	dry = p.flag("dry_run")
	return dry, p.done()
}
