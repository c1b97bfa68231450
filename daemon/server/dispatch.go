package server

import (
	"errors"
	"os"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/queue"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/plan"
)

// scratch holds buffers that one goroutine reuses for each request. The messages that handlers
// decode and return are stored in it, so they are valid until the next request.
type scratch struct {
	task   task
	out    []byte
	poller *poller             // the poller that this goroutine runs; nil = none
	worker *queue.Queue[*task] // the queue whose jobs it runs; nil = none. If both are nil, it may block

	requests [wire.OpCount]wire.Message // decoded last, by operation; nil = none yet

	matchReply   wire.MatchReply
	matchResult  tiering.MatchResult
	known        tiering.Known
	acquireReply wire.AcquireReply
	acquired     []tiering.Acquired
	reserveReply wire.ReserveReply
	codes        wire.CodesReply
	adviseReply  wire.AdviseReply
	adviseQuery  advise.Query
	advice       advise.Advice
	spans        []plan.Span
	tokens       []uint32
}

// message is a pointer to a message of type M.
type message[M any] interface {
	*M
	wire.Message
}

// decode returns the decoded body of a request, which has the type M for its operation. Columns
// of the result may be views of the body. decode works once per request and scratch.
func decode[M any, P message[M]](t *task) (P, error) {
	m, ok := t.scratch.requests[t.header.Op].(P)
	if !ok {
		m = new(M)
		t.scratch.requests[t.header.Op] = m
	}
	if t.decoded {
		return m, nil
	}
	err := m.Decode(t.body)
	t.decoded = err == nil
	return m, err
}

// operation defines how requests with one op are served.
type operation struct {
	run func(*task) (wire.Message, error)
	// long reports whether a request may take long, so that it becomes a job; nil = never.
	long func(*task) (bool, error)
}

// operations has an entry for every op of package wire; a test checks that. The entry of cancel is
// empty, since conn.handle serves it.
var operations = [wire.OpCount]operation{
	wire.OpHello:          {run: on(attachOps.hello)},
	wire.OpProfile:        {run: decoding(attachOps.profile), long: always}, // parses, maps memory
	wire.OpMatch:          {run: decoding(lookupOps.match), long: on(lookupOps.matchIsLong)},
	wire.OpAcquire:        {run: decoding(leaseOps.acquire), long: longer(longLookup)},
	wire.OpReserve:        {run: decoding(fillOps.reserve), long: decoding(fillOps.reserveIsLong)},
	wire.OpCommit:         {run: decoding(fillOps.commit), long: always},
	wire.OpAbort:          {run: decoding(fillOps.abort), long: longer(longIDs)},
	wire.OpCompose:        {run: decoding(computeOps.compose), long: always},
	wire.OpRotate:         {run: decoding(computeOps.rotate), long: always},
	wire.OpAssemble:       {run: decoding(computeOps.assemble), long: always},
	wire.OpSave:           {run: decoding(fillOps.save), long: on(fillOps.saveIsLong)},
	wire.OpLoad:           {run: decoding(leaseOps.load)},
	wire.OpRelease:        {run: decoding(leaseOps.release), long: longer(longIDs)},
	wire.OpStats:          {run: decoding(reportOps.stats)},
	wire.OpAdvise:         {run: decoding(lookupOps.advise), long: decoding(lookupOps.adviseIsLong)},
	wire.OpAppend:         {run: decoding(computeOps.appendRows), long: always},
	wire.OpAccept:         {run: decoding(computeOps.acceptRows)},
	wire.OpReplay:         {run: decoding(computeOps.replayRows), long: always},
	wire.OpReport:         {run: on(reportOps.report)},
	wire.OpAttachDevice:   {run: on(deviceOps.attachDevice), long: always},
	wire.OpRegisterDevice: {run: on(deviceOps.registerDevice), long: on(deviceOps.registerIsLong)},
	wire.OpAcquireDevice:  {run: decoding(leaseOps.acquireDevice)},
	wire.OpOrder:          {run: decoding(deviceOps.order)},
	wire.OpLoadDevice:     {run: decoding(leaseOps.loadDevice)},
	wire.OpPlan:           {run: decoding(workOps.planSegments), long: decoding(workOps.planIsLong)},
	wire.OpWatch:          {run: decoding(workOps.watch)},
	wire.OpServed:         {run: on(reportOps.served)},
}

// on turns a method of a type such as lookupOps into a function of the request. Each such type has the
// operations of one area, and the request as its only field.
func on[O ~struct{ *task }, R any](method func(O) (R, error)) func(*task) (R, error) {
	return func(t *task) (R, error) { return method(O{t}) }
}

// decoding does what on does, for a method that takes the decoded request.
func decoding[O ~struct{ *task }, M any, P message[M], R any](method func(O, P) (R, error)) func(*task) (R, error) {
	return func(t *task) (reply R, err error) {
		m, err := decode[M, P](t)
		if err != nil {
			return reply, err
		}
		return method(O{t}, m)
	}
}

func always(*task) (bool, error) { return true, nil }

// handle answers one frame, or puts its request in flight. If handle returns a request, the caller
// must run it.
func (c *conn) handle(frame []byte, fds []int, now time.Time, s *scratch) (_ next, mine *task) {
	c.requests.Add(1)
	t := &s.task
	*t = task{conn: c, at: c.attached.Load(), arrived: now, ctx: c.ctx, scratch: s, received: fds}
	var err error
	if t.header, t.body, err = wire.ParseHeader(frame); err == nil {
		err = c.check(&t.header, fds)
	}
	if err != nil {
		t.end(nil, err)
		return afterRefusal(&t.header), nil
	}
	t.op = &operations[t.header.Op]
	long := false
	if t.op.long != nil {
		long, err = t.op.long(t)
	}
	switch {
	case err != nil:
	case long:
		mine, err = t.start()
	case t.header.Op == wire.OpCancel:
		err = c.cancelRequests(t)
	default:
		c.server.short.Note(now)
		t.answer()
	}
	if err != nil {
		t.end(nil, err)
	}
	return readOn, mine
}

// check enforces the rules of docs/protocol.md that hold for every header.
func (c *conn) check(h *wire.Header, fds []int) error {
	at := c.attached.Load()
	switch {
	case h.Kind != wire.Request:
		return codes.Refuse(wire.Invalid, "kind %d is not a request", h.Kind)
	case !h.Op.Known():
		return codes.Refuse(wire.Unsupported, "%v", h.Op)
	case h.Request == 0:
		return codes.Refuse(wire.Invalid, "request id 0")
	case (h.Op == wire.OpHello) != (at == nil):
		return codes.Refuse(wire.Invalid, "hello is the first request and only that")
	case len(fds) > 0 && !h.Op.Rules().Descriptors:
		return codes.Refuse(wire.Invalid, "%d descriptors with %v", len(fds), h.Op)
	case h.Op == wire.OpHello:
		return errors.Join(c.server.refuseStopping(), c.server.refuseDraining(h.Op))
	case h.Epoch != c.server.epoch:
		return codes.Refuse(wire.Stale, "epoch %d, this daemon has %d", h.Epoch, c.server.epoch)
	case c.isInFlight(h.Request):
		return codes.Refuse(wire.Invalid, "request id %d is in flight", h.Request)
	}
	if err := c.server.descriptors.Check(fds...); err != nil {
		return err
	}
	rules := h.Op.Rules()
	if (rules.Tenant || h.Tenant != 0) && !slices.Contains(at.tenants, h.Tenant) {
		return codes.Refuse(wire.Denied, "tenant %d is not granted to this connection", h.Tenant)
	}
	if !rules.WhileStopping {
		if err := c.server.refuseStopping(); err != nil {
			return err
		}
	}
	return c.server.refuseDraining(h.Op)
}

func (c *conn) isInFlight(request uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.mu.inFlight[request]; ok {
		return true
	}
	for w := range c.mu.cancels {
		if w.header.Request == request {
			return true
		}
	}
	return false
}

// row counts the code of one row of a batch and returns it.
func (t *task) row(err error) uint16 {
	code, known := codes.Of(err)
	if !known {
		t.conn.logUnknown(t.header.Op, err)
	}
	return t.rowCode(code)
}

func (t *task) rowCode(code wire.Code) uint16 {
	t.conn.row(t.header.Op, code)
	return uint16(code)
}

func descriptors(files []*os.File) []int {
	if len(files) == 0 {
		return nil
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return fds
}
