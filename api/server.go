package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttpadaptor"

	"github.com/spliced-kv/spliced/api/framing"
	"github.com/spliced-kv/spliced/api/ui"
)

// Bounds of one server. They are generous guesses: the largest honest request is a GET with a
// cursor, and the usual clients are a Prometheus and a few people.
const (
	maxConnections = 128 // per listener
	maxProbes      = 16  // connections for probes, in addition to maxConnections
	probeTimeout   = 2 * time.Second
	maxHandshakes  = 256             // TLS handshakes in progress per listener, in addition to maxConnections
	handshakeTime  = 3 * time.Second // per handshake
	maxHeaderBytes = 8 << 10
	maxBodyBytes   = 4 << 10         // except for locate
	readTimeout    = 5 * time.Second // headers and body of one request
	writeTimeout   = 30 * time.Second
	idleTimeout    = 5 * time.Second

	probeStoreTimeout = 20 * time.Second // less than writeTimeout
	drainTimeout      = 5 * time.Second  // how long Run waits for responses in progress
	closeTimeout      = time.Second      // how long Run waits after it has closed their connections
	maxScrapes        = 4                // concurrent scrapes of /metrics
)

// Shown holds the data sources of a server. All are required. Its methods are the handlers that need
// nothing else.
type Shown struct {
	Node      Node
	Catalogue Catalogue
	Canaries  Canaries
	Control   Control
}

// Options configure a Server. Shown and Metrics are required.
type Options struct {
	Shown
	Metrics *prometheus.Registry
	Log     zerolog.Logger
	Tokens
	// Events provides recent events; nil = not served.
	Events Events
	// Hosts are names without port by which a browser may address this node, in addition to
	// localhost and address literals.
	Hosts []string

	heartbeat, writeTimeout, idleTimeout time.Duration // for tests; 0 = the constants of these names
}

// Validate lists all bad settings.
func (o *Options) Validate() error {
	var bad []error
	if o.Node == nil || o.Catalogue == nil || o.Canaries == nil || o.Control == nil || o.Metrics == nil {
		bad = append(bad, errors.New("Node, Catalogue, Canaries, Control and Metrics are required"))
	}
	if err := o.Tokens.Validate(); err != nil {
		bad = append(bad, err)
	}
	for _, h := range o.Hosts {
		if h == "" || h != hostname(h) {
			bad = append(bad, fmt.Errorf("host %q is not a lower-case name without port", h))
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("api options: %w: %w", errors.Join(bad...), ErrInvalid)
	}
	return nil
}

// Listener is a listener of a server. A trusted listener allows changes and profiling without
// a token, so only the owner of the node must be able to connect to it.
type Listener struct {
	net.Listener
	Trusted bool
}

// Server serves the admin REST. All fields except those of mu, keys and now are fixed after New.
type Server struct {
	now       atomic.Pointer[Shown]
	log       zerolog.Logger
	keys      atomic.Pointer[keysOf]
	locating  chan struct{} // one entry per running lookup
	hosts     map[string]bool
	metrics   fasthttp.RequestHandler
	profiling fasthttp.RequestHandler
	routes    routeTable

	site *ui.Site // the dashboard

	// stopping ends when Run does; long responses watch it.
	stopping context.Context
	stop     context.CancelFunc

	happened  Events
	heartbeat time.Duration
	patience  time.Duration  // how long a write waits for a client that does not read
	idle      time.Duration  // how long a connection is kept without a request
	streams   sync.WaitGroup // grows only while a connection is served
	strangers atomic.Int64   // streams over untrusted listeners

	turnedAway *prometheus.CounterVec // refused connections and lookups, by reason

	configuring sync.Mutex // held while the configuration changes
	refusals    refusals

	mu struct {
		sync.Mutex
		conns map[net.Conn]struct{}
	}
}

// New creates a server without starting it.
func New(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Server{happened: o.Events, heartbeat: cmp.Or(o.heartbeat, heartbeat), patience: cmp.Or(o.writeTimeout, writeTimeout), idle: cmp.Or(o.idleTimeout, idleTimeout), log: o.Log, hosts: map[string]bool{}, locating: make(chan struct{}, maxLocating), refusals: newRefusals()}
	s.Show(o.Shown)
	s.SetTokens(o.Tokens)
	for _, h := range o.Hosts {
		s.hosts[h] = true
	}
	s.metrics = fasthttpadaptor.NewFastHTTPHandler(promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError, ErrorLog: complainer{o.Log},
		// Counts omitted metrics as promhttp_metric_handler_errors_total.
		Registry: o.Metrics,
		// Clients may request OpenMetrics, and protobuf with native histograms.
		EnableOpenMetrics: true,
	}))
	s.turnedAway = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spliced_admin_connections_closed_total",
		Help: "Connections to the admin REST API that were closed because the maximum was reached, by reason: idle (the one without a request for the longest time), handshake (the oldest one still in its TLS handshake), bound (a new one, because all others were busy). Reason locate counts refused locate queries instead: too many were running.",
	}, []string{"reason"})
	if err := o.Metrics.Register(s.turnedAway); err != nil {
		return nil, fmt.Errorf("api options: %w: %w", err, ErrInvalid)
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.profiling = fasthttpadaptor.NewFastHTTPHandlerFunc(s.profile)
	s.routes = newRouteTable()
	var err error
	if s.site, err = ui.New(); err != nil {
		return nil, err
	}
	s.mu.conns = map[net.Conn]struct{}{}
	return s, nil
}

// hashed returns the hash of a token, nil for none.
func hashed(token string) *[sha256.Size]byte {
	if token == "" {
		return nil
	}
	return new(sha256.Sum256([]byte(token)))
}

// Show replaces the data sources. For example, a starting daemon replaces its placeholders by
// those of the node.
func (s *Server) Show(what Shown) { s.now.Store(&what) }

func (s *Server) shown() *Shown { return s.now.Load() }

// handler answers all requests of trusted or untrusted listeners.
func (s *Server) handler(trusted bool) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		defer s.finish(ctx)
		if err := framing.Check(&ctx.Request.Header); err != nil {
			ctx.SetConnectionClose()
			s.refuse(ctx, newProblem(fasthttp.StatusBadRequest, CodeInvalid, "the end of the request is ambiguous: "+err.Error()))
			return
		}
		if !trusted {
			if p := s.guardHost(ctx); p != nil {
				s.refuse(ctx, p)
				return
			}
		}
		if err := s.dispatch(ctx, trusted); err != nil {
			s.refuse(ctx, problemOf(err))
		}
	}
}

// refuse answers with a problem, and logs it if a change was requested.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, p *Problem) {
	s.auditRefusal(ctx, p)
	writeProblem(ctx, p)
}

// finish sets common headers, and turns a panic into a status 500, since a bug in the admin REST
// must not end the engines' cache.
func (s *Server) finish(ctx *fasthttp.RequestCtx) {
	if r := recover(); r != nil {
		s.log.Error().Str("path", string(ctx.Path())).Interface("panic", r).Stack().Msg("admin request failed")
		writeProblem(ctx, newProblem(fasthttp.StatusInternalServerError, CodeInternal, "the request failed; see the daemon's log"))
	}
	h := &ctx.Response.Header
	if len(h.Peek("Cache-Control")) == 0 {
		h.Set("Cache-Control", "no-store")
	}
	h.Set("X-Content-Type-Options", "nosniff")
	if s.stopping.Err() != nil {
		ctx.SetConnectionClose()
	}
}

func (s *Server) dispatch(ctx *fasthttp.RequestCtx, trusted bool) error {
	if _, err := url.ParseRequestURI(string(ctx.RequestURI())); err != nil { // some handlers would fail to parse it
		return newProblem(fasthttp.StatusBadRequest, CodeInvalid, "the request target is not an absolute path")
	}
	path := string(ctx.Path())
	if strings.HasPrefix(path, profilingPath) && trusted {
		s.profiling(ctx)
		return nil
	}
	if answered, err := s.dashboard(ctx, path); answered {
		return err
	}
	methods, arg, ok := s.routes.find(path)
	if !ok {
		return noPath(path)
	}
	r, ok := methods.method(ctx)
	if !ok {
		return noMethod(ctx, methods.allow())
	}
	if p := s.guard(&ctx.Request.Header, r.needs, originOf(ctx, trusted)); p != nil {
		if p.Status == fasthttp.StatusUnauthorized {
			ctx.Response.Header.Set("WWW-Authenticate", `Bearer realm="spliced"`)
		}
		return p
	}
	if trusted {
		ctx.SetUserValue(ofOwner, true)
	}
	return r.handle(s, ctx, arg)
}
