package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// actions are the names, in the log, of the routes that change a node, by operationId.
var actions = map[string]string{
	"removeSegments": "remove segments", "removeSegment": "remove segment",
	"removeCheckpoints": "remove checkpoints", "removeCheckpoint": "remove checkpoint",
	"switchOff": "switch splicing off", "switchOn": "switch splicing on",
	"probeObjectStore": "probe object store", "pin": "pin", "unpin": "unpin",
	"changeConfig": "change configuration", "drain": "drain", "undrain": "drain", "reload": "reload",
}

// change is a requested change, for the log.
type change struct {
	object        string // the object that it is about
	dry           bool
	before, after any // nil = unknown
}

// audited is the name of the user value that marks a request with a line in the log.
const audited = "audited"

// audit logs a requested change, also one that was refused: the caller, its address, the change,
// and the values before and after. The logger writes this line at every log level except disabled;
// the field "level" is only for readers.
func (s *Server) audit(ctx *fasthttp.RequestCtx, c change, err error) {
	ctx.SetUserValue(audited, true)
	r, _, _ := s.routes.of(ctx)
	e := s.log.Log().Str("level", "info").Str("audit", actions[r.id]).Bool("dry_run", c.dry)
	if n := s.refusals.unlogged.Swap(0); n > 0 {
		e.Int64("unlogged", n)
	}
	if c.object != "" {
		e.Str("object", c.object)
	}
	if cred, ok := peerOf(ctx.Conn()); ok {
		e.Uint32("peer_uid", cred.Uid).Int32("peer_pid", cred.Pid)
	} else {
		e.Str("remote", ctx.RemoteAddr().String())
	}
	e.Str("client", plain(string(ctx.UserAgent())))
	for _, state := range []struct {
		name  string
		value any
	}{{"before", c.before}, {"after", c.after}} {
		if state.value == nil || err != nil && state.name == "after" {
			continue
		}
		if text, failed := json.Marshal(state.value); failed == nil {
			e.RawJSON(state.name, text)
		}
	}
	if err != nil {
		e.Err(err).Msg("a change was refused")
		return
	}
	e.Msg("a change by an operator")
}

// refusals bounds how many lines of refused requests are logged, since anybody can send such
// requests. Requests that reached their handler's own line are not counted.
type refusals struct {
	limit    *rate.Limiter
	unlogged atomic.Int64 // refusals without a line since the last line
}

func newRefusals() refusals { return refusals{limit: rate.NewLimiter(10, 100)} }

// auditRefusal logs a refused request for a change that has no line yet.
func (s *Server) auditRefusal(ctx *fasthttp.RequestCtx, err error) {
	r, arg, ok := s.routes.of(ctx)
	if !ok || r.needs != changes || ctx.UserValue(audited) != nil {
		return
	}
	if !s.refusals.limit.Allow() {
		s.refusals.unlogged.Add(1)
		return
	}
	dry := paramsOf(ctx).flag("dry_run")
	ctx.QueryArgs().Del("dry_run")
	s.audit(ctx, change{object: plain(cmp.Or(arg, ctx.QueryArgs().String())), dry: dry}, err)
}

// caller names the sender of a request, for operators.
func caller(ctx *fasthttp.RequestCtx) string {
	if cred, ok := peerOf(ctx.Conn()); ok {
		return fmt.Sprintf("uid %d", cred.Uid)
	}
	return ctx.RemoteIP().String()
}

// plain makes untrusted text fit for a log line: it shortens it and removes control characters.
func plain(text string) string {
	const most = 128
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, text[:min(len(text), most)]) // an incomplete character is dropped
}

// peerOf returns the credentials of the process at the other end of a unix socket.
func peerOf(conn net.Conn) (cred *unix.Ucred, ok bool) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, false
	}
	if failed := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); errors.Join(failed, err) != nil {
		return nil, false
	}
	return cred, true
}
