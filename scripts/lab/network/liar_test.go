package network

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/daemon/cluster"
	"github.com/spliced-kv/spliced/tiering/peer"
	"github.com/spliced-kv/spliced/tiering/peer/index"
)

// liar is a member that holds nothing. It has the cluster's keys, passes on to an honest
// node what it is asked, and changes what that answers. Bytes with digests that are made
// for them are no lie that anybody could find out: members are trusted that far.
var liar = role("liar", func(args []string) error {
	bind, seed, keyring, l := netip.MustParseAddrPort(args[0]), args[1], args[2], lies[args[3]]
	p := &passer{lie: l, pins: map[[pinBytes]byte][pinBytes]byte{}}
	own := index.NewOwn(liarStart)
	config := cluster.Config{
		Name: "bed", Node: args[3], Version: "1", Seeds: []string{seed}, Bind: bind, Keyring: keyring,
		Handler: p.answer, Exchange: passing{index.Exchange{Own: own, Index: index.New(index.Config{})}, p}, OnJoin: p.joined,
	}
	if l.address {
		honest := netip.MustParseAddrPort(seed)
		config.PeerAdvertise = netip.AddrPortFrom(honest.Addr(), honest.Port()+1)
	}
	var err error
	if p.cluster, err = cluster.New(config); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return p.cluster.Run(ctx)
})

// lie is what is not true in a liar's answers; nil = it is.
type lie struct {
	// find and read change the body of an answer, and index that of what a node holds.
	find, read   func(body []byte) []byte
	index        func(question, honest []byte) []byte
	raw          func(c net.Conn, bytes []byte) // in the place of answers to reads: bytes are the true ones
	rawFind      func(c net.Conn)               // in the place of answers to finds
	address      bool                           // the peers' port is another node's
	incorrigible bool                           // the lie is never found out as such: no counter of others grows
}

// passer passes on.
type passer struct {
	lie     *lie
	cluster *cluster.Cluster

	mu     sync.Mutex
	honest *fasthttp.HostClient
	start  string                            // of the honest node, for questions about its index
	pins   map[[pinBytes]byte][pinBytes]byte // of what was told, to those of the truth
}

// lied notes a lie that was told, for the test.
func lied() { fmt.Fprintln(os.Stderr, "LIED") }

func (p *passer) joined(m cluster.Member) {
	if m.Name != honestName {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start = strconv.FormatUint(m.Incarnation, 16)
	p.honest = &fasthttp.HostClient{
		Addr: m.Peer.String(), ReadTimeout: slack, WriteTimeout: slack, MaxConns: 64,
		Dial: func(addr string) (net.Conn, error) {
			return tls.DialWithDialer(&net.Dialer{Timeout: slack}, "tcp", addr, p.cluster.ClientTLS(m.Name))
		},
	}
}

// honestName is the node that liars know.
const honestName = "n0"

// ask asks the honest node.
func (p *passer) ask(path string, body []byte, answer *fasthttp.Response) error {
	p.mu.Lock()
	honest, start := p.honest, p.start
	p.mu.Unlock()
	if honest == nil {
		return errors.New("the honest node is not there yet")
	}
	q := fasthttp.AcquireRequest()
	defer fasthttp.ReleaseRequest(q)
	q.Header.SetMethod(fasthttp.MethodPost)
	q.SetRequestURI("http://" + honest.Addr + path)
	q.Header.Set("Spliced-Cluster", "bed")
	q.Header.Set("Spliced-Incarnation", start)
	q.SetBody(body)
	return honest.Do(q, answer)
}

// answer answers finds and reads.
func (p *passer) answer(ctx *fasthttp.RequestCtx) {
	path, body := string(ctx.Path()), append([]byte(nil), ctx.PostBody()...)
	l := p.lie
	find := path == peer.FindPath
	if raw := l.rawFind; find && raw != nil {
		seize(ctx, raw)
		return
	}
	if path == peer.ReadPath {
		p.unpin(body)
	}
	if err := p.ask(path, body, &ctx.Response); err != nil {
		ctx.Error(err.Error(), fasthttp.StatusServiceUnavailable)
		return
	}
	if path == peer.HoldersPath {
		return // told honestly
	}
	if raw := l.raw; !find && raw != nil {
		truth := append([]byte(nil), ctx.Response.Body()...)
		seize(ctx, func(c net.Conn) { raw(c, truth) })
		return
	}
	change := l.read
	if find {
		change = l.find
	}
	if change == nil || ctx.Response.StatusCode() != fasthttp.StatusOK {
		return
	}
	lied()
	truth := append([]byte(nil), ctx.Response.Body()...)
	told := change(append([]byte(nil), truth...))
	if find {
		p.pin(truth, told)
	}
	ctx.Response.SetBody(told)
}

// seize has a lie written to the connection in place of an answer.
func seize(ctx *fasthttp.RequestCtx, raw func(net.Conn)) {
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(c net.Conn) { lied(); raw(c) })
}

// Layout of messages, as in tiering/peer/wire.go.
const (
	pinBytes  = 16
	nameBytes = 32 + 16 + 1 + 32 + 1 + 32
	rowHead   = 2 + 1 + 4 // of an answer to one name, before the description
	keyAt     = rowHead + 1
	tokensAt  = rowHead + 33 + 1 // of the shape: tokens, head, tail, begin, end
	ranksAt   = rowHead + 33 + 21 + 33
	bytesAt   = ranksAt + 2 // of a rank
	publishAt = bytesAt + 8 // its length, then the publisher, then the token ids
)

// digestsAt is where the number of a description's digests stands, and the ids' number.
func digestsAt(answer []byte) (digests, ids int) {
	ids = publishAt + 2 + int(binary.LittleEndian.Uint16(answer[publishAt:]))
	return ids + 4 + 4*int(binary.LittleEndian.Uint32(answer[ids:])), ids
}

// pinOf is what a reader shows who has relied on an answer.
func pinOf(answer []byte) (pin [pinBytes]byte, ok bool) {
	defer func() { ok = recover() == nil }() // a lie may not be as long as it says
	digests, _ := digestsAt(answer)
	shape := append([]byte(nil), answer[rowHead:publishAt]...)
	shape = append(shape, 0, 0, 0, 0, 0, 0) // no publisher, no ids
	sum := sha256.Sum256(append(shape, answer[digests:]...))
	return [pinBytes]byte(sum[:]), true
}

func (p *passer) pin(truth, told []byte) {
	right, ok := pinOf(truth)
	if wrong, ok2 := pinOf(told); ok && ok2 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.pins[wrong] = right
	}
}

// unpin has the honest node asked for what it has.
func (p *passer) unpin(read []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if right, ok := p.pins[[pinBytes]byte(read[nameBytes:])]; ok {
		copy(read[nameBytes:], right[:])
	}
}

// passing answers what the node holds: as the honest one, or with a lie.
type passing struct {
	index.Exchange
	p *passer
}

func (x passing) Answer(dst, question []byte) ([]byte, error) {
	var honest fasthttp.Response
	if err := x.p.ask("/cluster/v1/index", question, &honest); err != nil {
		return dst, err
	}
	if honest.StatusCode() != fasthttp.StatusOK {
		return dst, fmt.Errorf("the honest node says %d", honest.StatusCode())
	}
	if x.p.lie.index == nil {
		return append(dst, honest.Body()...), nil
	}
	lied()
	return append(dst, x.p.lie.index(question, honest.Body())...), nil
}

// Learn learns nothing.
func (passing) Learn(uint16, []byte) (bool, error) { return false, nil }

// lies by name; a node that tells one has its name.
var lies = map[string]*lie{
	// What objects are.
	"digests":       {find: func(b []byte) []byte { b[len(b)-1] ^= 1; return b }},
	"key":           {find: func(b []byte) []byte { b[keyAt] ^= 1; return b }},
	"kind":          {find: func(b []byte) []byte { b[rowHead] = 2; return b }},
	"tokens":        {find: func(b []byte) []byte { _, ids := digestsAt(b); b[ids+4] ^= 1; return b }},
	"shape":         {find: func(b []byte) []byte { b[tokensAt+16]++; return b }},
	"more-tokens":   {find: func(b []byte) []byte { putU32(b[tokensAt:], 1<<31); return b }},
	"ranks":         {find: func(b []byte) []byte { b[ranksAt], b[ranksAt+1] = 255, 255; return b }},
	"no-rank":       {find: func(b []byte) []byte { b[ranksAt], b[ranksAt+1] = 0, 0; return b }},
	"size":          {find: func(b []byte) []byte { binary.LittleEndian.PutUint64(b[bytesAt:], 1<<62); return b }},
	"small":         {find: func(b []byte) []byte { binary.LittleEndian.PutUint64(b[bytesAt:], 64); return b }},
	"ids":           {find: func(b []byte) []byte { _, ids := digestsAt(b); putU32(b[ids:], 1<<32-1); return b }},
	"digest-count":  {find: func(b []byte) []byte { at, _ := digestsAt(b); putU32(b[at:], 1<<31); return b }},
	"publisher":     {find: func(b []byte) []byte { b[publishAt], b[publishAt+1] = 255, 255; return b }},
	"length":        {find: func(b []byte) []byte { putU32(b[3:], 1<<31); return b }},
	"rows":          {find: func(b []byte) []byte { b[0] = 2; return b }},
	"status":        {find: func(b []byte) []byte { b[2] = 9; return b }},
	"tail":          {find: func(b []byte) []byte { return append(b, 0) }},
	"cut-short":     {find: func(b []byte) []byte { return b[:len(b)/2] }},
	"nothing":       {find: func([]byte) []byte { return nil }},
	"garbage":       {find: func(b []byte) []byte { _, _ = rand.Read(b); return b }},
	"not-here":      {find: func([]byte) []byte { return []byte{1, 0, 0} }, incorrigible: true},
	"later-forever": {find: func([]byte) []byte { return []byte{1, 0, 2} }, incorrigible: true},
	"gibibyte":      {rawFind: func(c net.Conn) { say(c, "200 OK", "Content-Length: 1073741824") }},
	"busy-forever": {rawFind: func(c net.Conn) {
		say(c, "429 Too Many Requests", "Retry-After-Ms: 2147483647\r\nContent-Length: 0")
	}, incorrigible: true},
	"silence": {rawFind: func(c net.Conn) { hold(c) }},

	// What their bytes are.
	"bytes":         {read: func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
	"last-byte":     {read: func(b []byte) []byte { b[len(b)-1] ^= 0x80; return b }},
	"zeros":         {read: func(b []byte) []byte { clear(b); return b }},
	"fewer-bytes":   {read: func(b []byte) []byte { return b[:len(b)-1] }},
	"more-bytes":    {read: func(b []byte) []byte { return append(b, 0) }},
	"no-bytes":      {read: func([]byte) []byte { return nil }},
	"half-then-end": {raw: func(c net.Conn, b []byte) { say(c, "200 OK", length(b)); _, _ = c.Write(b[:len(b)/2]) }},
	"half-then-still": {raw: func(c net.Conn, b []byte) {
		say(c, "200 OK", length(b))
		_, _ = c.Write(b[:len(b)/2])
		hold(c)
	}},
	"drip": {raw: func(c net.Conn, b []byte) {
		say(c, "200 OK", length(b))
		for i := range b {
			if _, err := c.Write(b[i : i+1]); err != nil {
				return
			}
			<-time.After(20 * time.Millisecond)
		}
	}},
	"chunked": {raw: func(c net.Conn, _ []byte) {
		say(c, "200 OK", "Transfer-Encoding: chunked")
		_, _ = c.Write([]byte("4\r\nabcd\r\n0\r\n\r\n"))
	}},
	"headers": {raw: func(c net.Conn, _ []byte) {
		_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n"))
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(c, "X-%d: and so on\r\n", i); err != nil {
				return
			}
		}
	}},
	"redirect": {raw: func(c net.Conn, _ []byte) { say(c, "302 Found", "Location: http://127.0.0.1/\r\nContent-Length: 0") }},

	// What it holds, and where.
	"index-garbage": {index: func([]byte, []byte) []byte { b := make([]byte, 100); _, _ = rand.Read(b); return b }},
	"index-long":    {index: func([]byte, []byte) []byte { return make([]byte, cluster.MaxAnswer+1) }},
	"index-short":   {index: func(_, b []byte) []byte { return b[:len(b)/2] }},
	"index-anew": {index: func([]byte, []byte) []byte {
		b := piece(0, endOfSet, false)
		_, _ = rand.Read(b[1:9]) // of another start each time
		return b
	}},
	"index-gap": {index: func([]byte, []byte) []byte { return piece(1<<20, endOfSet, false) }},
	// There is always more, and never anything new.
	"index-more": {index: func(question, _ []byte) []byte {
		if binary.LittleEndian.Uint64(question) != liarStart {
			return piece(0, endOfSet, true)
		}
		b := binary.LittleEndian.AppendUint64([]byte{0x11}, liarStart)
		return append(b, 1, 0, 0, 0) // version 1, and no change since
	}},
	// A set that takes 2^34 questions to read.
	"index-endless": {index: func(question, _ []byte) []byte {
		cursor := binary.LittleEndian.Uint64(question[16:])
		if binary.LittleEndian.Uint64(question) != liarStart {
			cursor = 0
		}
		return piece(cursor, cursor+1, true)
	}},
	"index-false": {find: func([]byte) []byte { return []byte{1, 0, 0} }, incorrigible: true},
	"address":     {address: true},
}

// liarStart is the incarnation of sets that liars make up.
const liarStart = 7

// endOfSet is the cursor behind the last name.
const endOfSet = 1 << 34

// piece is a part of a set in which there are no names, by the layout in
// tiering/peer/index/message.go.
func piece(from, end uint64, more bool) []byte {
	b := []byte{0x12}
	if more {
		b[0] |= 1
	}
	b = binary.LittleEndian.AppendUint64(b, liarStart)
	b = binary.AppendUvarint(b, 1)
	b = binary.AppendUvarint(binary.AppendUvarint(b, from), end)
	return append(b, 0, 0)
}

func putU32(b []byte, n uint32) { binary.LittleEndian.PutUint32(b, n) }
func length(b []byte) string    { return fmt.Sprint("Content-Length: ", len(b)) }
func say(c net.Conn, status, header string) {
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Type: application/octet-stream\r\n%s\r\n\r\n", status, header)
}

// hold keeps a connection and says nothing more.
func hold(c net.Conn) {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, _ = c.Read(make([]byte, 1))
}
