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

// Bounds of one server. Guessed, with room: the largest honest request is a GET
// with a cursor, the busiest client a Prometheus with a few people beside it.
const (
	maxConnections = 128 // per listener
	maxProbes      = 16  // and beside them
	probeTimeout   = 2 * time.Second
	maxHandshakes  = 256             // of TLS, per listener and beside requests
	handshakeTime  = 3 * time.Second // of one
	maxHeaderBytes = 8 << 10
	maxBodyBytes   = 4 << 10         // but for questions where a prompt is held
	readTimeout    = 5 * time.Second // headers and body of one request
	writeTimeout   = 30 * time.Second
	idleTimeout    = 5 * time.Second

	probeStoreTimeout = 20 * time.Second // of which writeTimeout leaves some
	drainTimeout      = 5 * time.Second  // how long Run waits for answers in progress
	closeTimeout      = time.Second      // and then, with their connections closed
	maxScrapes        = 4                // of /metrics at once
)

// Shown is what a server tells of. All of it is required.
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
	// Events is what happened lately; nil = nobody keeps it, and it is not served.
	Events Events
	// Hosts are further names a browser may call this node by, beside
	// localhost and address literals. Without port.
	Hosts []string

	heartbeat, writeTimeout time.Duration // of tests; 0 = the constants of these names
}

// Validate lists every bad setting at once.
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

// Listener is where a server accepts. On a trusted one things may be changed
// and the process profiled: it must be one that only its owner can connect to.
type Listener struct {
	net.Listener
	Trusted bool
}

// Server answers the admin REST. All fields but those of mu, keys and now are fixed after New.
type Server struct {
	now       atomic.Pointer[Shown]
	log       zerolog.Logger
	keys      atomic.Pointer[keysOf]
	locating  chan struct{} // one for each question that is answered
	hosts     map[string]bool
	metrics   fasthttp.RequestHandler
	profiling fasthttp.RequestHandler
	routes    routeTable

	site *ui.Site // the dashboard

	// stopping ends when Run does; long answers watch it.
	stopping context.Context
	stop     context.CancelFunc

	happened  Events
	heartbeat time.Duration
	patience  time.Duration  // with a client that does not read what is written
	streams   sync.WaitGroup // grows only while a connection is served
	strangers atomic.Int64   // of these, over listeners that are not trusted

	turnedAway *prometheus.CounterVec // connections and questions, by reason

	configuring sync.Mutex // held while the configuration changes

	mu struct {
		sync.Mutex
		conns map[net.Conn]struct{}
	}
}

// New builds a server; nothing runs before Run.
func New(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Server{happened: o.Events, heartbeat: cmp.Or(o.heartbeat, heartbeat), patience: cmp.Or(o.writeTimeout, writeTimeout), log: o.Log, hosts: map[string]bool{}, locating: make(chan struct{}, maxLocating)}
	s.Show(o.Shown)
	s.SetTokens(o.Tokens)
	for _, h := range o.Hosts {
		s.hosts[h] = true
	}
	s.metrics = fasthttpadaptor.NewFastHTTPHandler(promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError, ErrorLog: complainer{o.Log},
		// Counts what was left out, as promhttp_metric_handler_errors_total.
		Registry: o.Metrics,
		// Native histograms travel as protobuf, to who asks for it; OpenMetrics is for who
		// asks for that.
		EnableOpenMetrics: true,
	}))
	s.turnedAway = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spliced_admin_connections_closed_total",
		Help: "Connections to the admin REST that were closed since there were as many as may be, by reason: idle (waited longest for a request), handshake (was slowest with TLS), bound (all others were busy), locate (no connection, but a question where a prompt is held: too many were being answered).",
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

// hashed is nil for no token.
func hashed(token string) *[sha256.Size]byte {
	if token == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	return &sum
}

// Show has the server tell of something else from now on: of the node, once it is
// open.
func (s *Server) Show(what Shown) { s.now.Store(&what) }

func (s *Server) shown() *Shown { return s.now.Load() }

// handler answers every request of listeners of one kind.
func (s *Server) handler(trusted bool) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		defer s.finish(ctx)
		if err := framing.Check(&ctx.Request.Header); err != nil {
			ctx.SetConnectionClose()
			writeProblem(ctx, newProblem(fasthttp.StatusBadRequest, CodeInvalid, "the end of the request is ambiguous: "+err.Error()))
			return
		}
		if !trusted {
			if p := s.guardHost(ctx); p != nil {
				writeProblem(ctx, p)
				return
			}
		}
		if err := s.dispatch(ctx, trusted); err != nil {
			writeProblem(ctx, problemOf(err))
		}
	}
}

// finish sets what every answer carries, and turns a panic into a 500: a mistake
// in a page for people must not take the engines' cache down.
func (s *Server) finish(ctx *fasthttp.RequestCtx) {
	if r := recover(); r != nil {
		s.log.Error().Str("path", string(ctx.Path())).Interface("panic", r).Stack().Msg("admin request failed")
		writeProblem(ctx, newProblem(fasthttp.StatusInternalServerError, CodeInternal, "the request failed; the log says more"))
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
	if _, err := url.ParseRequestURI(string(ctx.RequestURI())); err != nil { // which not all handlers could read
		return newProblem(fasthttp.StatusBadRequest, CodeInvalid, "the target of the request is no absolute path")
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
	method := string(ctx.Method())
	if method == fasthttp.MethodHead {
		method = fasthttp.MethodGet // fasthttp leaves the body out
	}
	r, ok := methods[method]
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
