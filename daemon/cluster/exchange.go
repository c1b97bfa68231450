package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/time/rate"
)

// Exchange is the protocol by which members continually ask each other for changes of the
// index. Its bytes are opaque here. Its methods may be called concurrently, but Ask and
// Learn of one number are called in turn, between the member's OnJoin and OnLeave.
type Exchange interface {
	// Interval returns how often each of the given number of members is asked.
	Interval(members int) time.Duration
	// Ask returns the next question to a member, at most MaxQuestion bytes.
	Ask(number uint16) []byte
	// Answer appends the answer to a question to dst, at most MaxAnswer bytes. It returns
	// an error for an invalid question.
	Answer(dst, question []byte) ([]byte, error)
	// Learn processes a member's answer. more: ask again soon. After an error the member is
	// asked less often, until an answer is valid.
	Learn(number uint16, answer []byte) (more bool, err error)
}

// Bounds of the exchange.
const (
	MaxQuestion = 4 << 10
	MaxAnswer   = 256 << 10

	// DefaultExchangeRate bounds the bytes per second received from all members together,
	// and separately those sent. A node that joins 1,000 others with 10^5 names each reads
	// about 340 MB, which takes 40 seconds at this rate.
	DefaultExchangeRate = 8 << 20

	exchangePath  = "/cluster/v1/index"
	clusterHeader = "Spliced-Cluster"
	startHeader   = "Spliced-Incarnation"
	askTime       = 5 * time.Second // per question, including the connection
	maxPause      = 5 * time.Second // after failures
	// morePause is the delay before the next question to a member that has more to report:
	// one that always says so was asked 3,000 times a second. Answers of 64 KiB still reach
	// DefaultExchangeRate.
	morePause = 5 * time.Millisecond
)

// ExchangeCounters count since the start.
type ExchangeCounters struct {
	Asked, Failed, Learnt   uint64 // questions, those without a valid answer, bytes of answers
	Answered, Refused, Told uint64 // questions of others, those refused, bytes of answers
}

// exchanger asks members, each on a separate connection, and answers their questions.
type exchanger struct {
	of          Exchange
	cluster     string
	incarnation string
	creds       *credentials // nil = no TLS
	asks, tells *rate.Limiter
	members     atomic.Int64 // being asked

	asked, failed, learnt   atomic.Uint64
	answered, refused, told atomic.Uint64
}

func newExchanger(of Exchange, cluster string, incarnation uint64, creds *credentials, perSecond int) *exchanger {
	limit := func() *rate.Limiter { return rate.NewLimiter(rate.Limit(perSecond), max(perSecond/4, MaxAnswer)) }
	return &exchanger{
		of: of, cluster: cluster, incarnation: strconv.FormatUint(incarnation, 16), creds: creds, asks: limit(), tells: limit(),
	}
}

func (x *exchanger) counters() ExchangeCounters {
	return ExchangeCounters{
		Asked: x.asked.Load(), Failed: x.failed.Load(), Learnt: x.learnt.Load(),
		Answered: x.answered.Load(), Refused: x.refused.Load(), Told: x.told.Load(),
	}
}

// answer answers a question over the peers' port.
func (x *exchanger) answer(ctx *fasthttp.RequestCtx) {
	refuse := func(status int, code, text string) {
		x.refused.Add(1)
		ctx.Response.SetStatusCode(status)
		ctx.SetContentType("text/plain")
		ctx.Response.SetBodyString(code + ": " + text + "\n")
	}
	question := ctx.PostBody()
	switch {
	case !ctx.IsPost() || len(question) > MaxQuestion:
		refuse(fasthttp.StatusBadRequest, "invalid", fmt.Sprintf("%s of %d bytes", ctx.Method(), len(question)))
		return
	case string(ctx.Request.Header.Peek(clusterHeader)) != x.cluster || string(ctx.Request.Header.Peek(startHeader)) != x.incarnation:
		// The address belonged to another node, or to us before a restart; gossip will
		// correct it.
		refuse(fasthttp.StatusMisdirectedRequest, "stale", "this is not the requested node")
		return
	case !x.tells.AllowN(time.Now(), 0): // earlier answers have used up the rate
		refuse(fasthttp.StatusTooManyRequests, "busy", "too many answers are being sent")
		return
	}
	body, err := x.of.Answer(nil, question)
	if err != nil || len(body) > MaxAnswer {
		refuse(fasthttp.StatusBadRequest, "invalid", fmt.Sprintf("answer of %d bytes: %v", len(body), err))
		return
	}
	x.answered.Add(1)
	x.told.Add(uint64(len(body)))
	x.tells.ReserveN(time.Now(), len(body))
	ctx.SetContentType("application/octet-stream")
	ctx.Response.SetBodyRaw(body)
}

// asker asks one member until it is stopped.
type asker struct {
	*exchanger
	member Member
	tls    *tls.Config
	conn   net.Conn // nil = none
	br     *bufio.Reader

	stop context.CancelFunc
	done sync.WaitGroup
}

// begin asks a member repeatedly until end is called.
func (x *exchanger) begin(m Member) *asker {
	a := &asker{exchanger: x, member: m}
	if x.creds != nil {
		a.tls = x.creds.client(m.Name)
	}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	x.members.Add(1)
	a.done.Go(func() { a.run(ctx) })
	return a
}

// end waits until no question or Learn is running.
func (a *asker) end() {
	a.stop()
	a.done.Wait()
	a.members.Add(-1)
}

func (a *asker) run(ctx context.Context) {
	defer a.hangUp()
	failures := 0
	pause := rand.N(a.interval() + 1) // spreads the members over time
	for a.wait(ctx, pause) {
		more, err := a.ask(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			a.failed.Add(1)
			failures++
			pause = min(a.interval()<<min(failures, 8), max(maxPause, a.interval()))
			pause -= rand.N(pause/4 + 1)
		case more:
			failures, pause = 0, morePause
		default:
			failures, pause = 0, a.interval()
		}
	}
}

func (a *asker) interval() time.Duration {
	return max(a.of.Interval(int(a.members.Load())), time.Millisecond)
}

// wait pauses, and delays for the rate of earlier answers; false if it was stopped.
func (a *asker) wait(ctx context.Context, pause time.Duration) bool {
	paid := a.asks.ReserveN(time.Now(), 0).Delay()
	timer := time.NewTimer(max(pause, paid))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// ask sends one question. If the member closed the idle connection, it reconnects.
func (a *asker) ask(ctx context.Context) (more bool, err error) {
	a.asked.Add(1)
	question := a.of.Ask(a.member.Number)
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	used := a.conn != nil
	answer, err := a.exchange(ctx, question)
	if err != nil && used && ctx.Err() == nil && errors.Is(err, errLink) {
		answer, err = a.exchange(ctx, question)
	}
	if err != nil {
		return false, err
	}
	a.learnt.Add(uint64(len(answer)))
	a.asks.ReserveN(time.Now(), len(answer))
	return a.of.Learn(a.member.Number, answer)
}

var (
	errLink   = errors.New("cluster: connection failed")
	errAnswer = errors.New("cluster: answer is refused")
)

func (a *asker) hangUp() {
	if a.conn != nil {
		_ = a.conn.Close()
		a.conn = nil
	}
}

func (a *asker) exchange(ctx context.Context, question []byte) (answer []byte, err error) {
	if a.conn == nil {
		if err := a.dial(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", errLink, err)
		}
	}
	conn := a.conn
	end, _ := ctx.Deadline()
	err = conn.SetDeadline(end)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	keep := false
	if err == nil {
		answer, keep, err = a.talk(question)
	}
	if !stop() || !keep {
		a.hangUp()
	}
	return answer, err
}

func (a *asker) dial(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", a.member.Peer.String())
	if err != nil {
		return err
	}
	if a.tls != nil {
		secure := tls.Client(conn, a.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return err
		}
		conn = secure
	}
	a.conn, a.br = conn, bufio.NewReaderSize(conn, maxHeaderBytes)
	return nil
}

// talk sends a question and reads the answer.
func (a *asker) talk(question []byte) (answer []byte, keep bool, err error) {
	head := "POST " + exchangePath + " HTTP/1.1\r\nHost: " + a.member.Name + "\r\n" + clusterHeader + ": " + a.cluster + "\r\n" +
		startHeader + ": " + strconv.FormatUint(a.member.Incarnation, 16) + "\r\nContent-Length: " + strconv.Itoa(len(question)) + "\r\n\r\n"
	if _, err := a.conn.Write(append([]byte(head), question...)); err != nil {
		return nil, false, fmt.Errorf("%w: %w", errLink, err)
	}
	response := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(response)
	if err := response.ReadLimitBody(a.br, MaxAnswer); err != nil {
		return nil, false, fmt.Errorf("%w: %w", errLink, err)
	}
	if response.StatusCode() != fasthttp.StatusOK {
		return nil, !response.ConnectionClose(), fmt.Errorf("%w: status %d: %.200s", errAnswer, response.StatusCode(), response.Body())
	}
	return append([]byte(nil), response.Body()...), !response.ConnectionClose(), nil
}
