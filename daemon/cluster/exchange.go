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

// Exchange is the protocol by which members continually ask each other for changes of the index.
// Package cluster does not interpret its bytes. Methods may be called concurrently, except that Ask
// and Learn for one number are called in turn, between the OnJoin and the OnLeave of that member.
type Exchange interface {
	// Interval returns the time between two questions to the same member, given the number of members.
	Interval(members int) time.Duration
	// Ask returns the next question to a member, of at most MaxQuestion bytes.
	Ask(number uint16) []byte
	// Answer appends the answer to a question to dst, at most MaxAnswer bytes. It returns an error if
	// the question is invalid.
	Answer(dst, question []byte) ([]byte, error)
	// Learn processes a member's answer. The result more reports whether the member has more to
	// report; it is then asked again soon. After an error, the member is asked less often until an
	// answer is valid.
	Learn(number uint16, answer []byte) (more bool, err error)
}

// Bounds of the exchange.
const (
	MaxQuestion = 4 << 10
	MaxAnswer   = 256 << 10

	// DefaultExchangeRate limits the bytes per second received from all members together, and
	// separately the bytes sent. A node that joins 1,000 nodes with 10^5 names each reads about 340 MB,
	// which takes 40 seconds at this rate.
	DefaultExchangeRate = 8 << 20

	exchangePath  = "/cluster/v1/index"
	clusterHeader = "Spliced-Cluster"
	startHeader   = "Spliced-Incarnation"
	askTime       = 5 * time.Second // limit of one question, including the connection
	maxPause      = 5 * time.Second // longest pause after failures
	// morePause is the delay before the next question to a member that has more to report. Without it,
	// a member that always has more was asked 3,000 times a second. With it, answers of 64 KiB still
	// reach DefaultExchangeRate.
	morePause = 5 * time.Millisecond
)

// ExchangeCounters count questions and answers since the start.
type ExchangeCounters struct {
	Asked, Failed, Learnt   uint64 // questions sent, questions without a valid answer, bytes of answers received
	Answered, Refused, Told uint64 // questions received, refused questions, bytes of answers sent
}

// exchanger asks members, each on a separate connection, and answers the questions of members.
type exchanger struct {
	of          Exchange
	cluster     string
	incarnation string
	creds       *credentials // nil = no TLS
	asks, tells *rate.Limiter
	members     atomic.Int64 // number of members being asked

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

// answer answers a question that arrived at the peers' port.
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
		// The address belonged to another node before, or to an earlier start of this node. Gossip will
		// correct it.
		refuse(fasthttp.StatusMisdirectedRequest, "stale", "this is not the requested node")
		return
	case !x.tells.AllowN(time.Now(), 0): // earlier answers have used up the rate of answers
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

// asker asks one member, from begin to end.
type asker struct {
	*exchanger
	member Member
	tls    *tls.Config
	conn   net.Conn // nil = not connected
	br     *bufio.Reader

	stop context.CancelFunc
	done sync.WaitGroup
}

// begin starts asking a member, which is asked repeatedly until end is called.
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

// end stops asking the member, and waits until no question and no Learn is running.
func (a *asker) end() {
	a.stop()
	a.done.Wait()
	a.members.Add(-1)
}

func (a *asker) run(ctx context.Context) {
	defer a.hangUp()
	failures := 0
	pause := rand.N(a.interval() + 1) // spreads the questions to all members over time
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

// wait pauses, longer if earlier answers have used up the rate. It returns false if ctx has ended.
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

// ask sends one question and processes the answer. If the member has closed an idle connection, ask
// connects again.
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

// talk sends a question and reads the answer. The result keep reports whether the connection may be
// used again.
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
