package object

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// client sends requests to one bucket. It never retries: its callers handle failures and
// set deadlines.
type client struct {
	core      minio.Core
	bucket    string
	prefix    string
	answer    time.Duration
	stall     time.Duration
	transport *transport
}

func newClient(c *Config) (*client, error) {
	u, err := c.endpoint()
	if err != nil {
		return nil, fmt.Errorf("object: endpoint %w: %w", err, tier.ErrInvalid)
	}
	t := &transport{now: c.Now, dialer: dialer{Dialer: net.Dialer{Timeout: c.AnswerTime}}}
	t.base = &http.Transport{
		DialContext:           t.dialer.DialContext,
		TLSHandshakeTimeout:   c.AnswerTime,
		ResponseHeaderTimeout: c.AnswerTime,
		MaxIdleConnsPerHost:   c.Requests + c.Writers + 1,
		MaxConnsPerHost:       c.Requests + c.Writers + 2,
		IdleConnTimeout:       30 * time.Second,
		DisableCompression:    true,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,

		MaxResponseHeaderBytes: 64 << 10,
	}
	if c.CA != "" {
		own := &authorities{path: c.CA, dialer: &t.dialer, name: u.Hostname()}
		if _, err := own.pool(); err != nil {
			return nil, fmt.Errorf("object: authorities: %w: %w", err, tier.ErrInvalid)
		}
		t.base.DialTLSContext = own.dial
	}
	var keys *credentials.Credentials
	if c.Credentials != "" {
		keys = credentials.New(&fileCredentials{path: c.Credentials})
	} else {
		keys = credentials.NewStaticV4(c.Keys.ID, c.Keys.Secret, c.Keys.Token)
	}
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds:      keys,
		Secure:     u.Scheme == "https",
		Region:     c.Region,
		Transport:  t,
		MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("object: %w: %w", err, tier.ErrInvalid)
	}
	return &client{*core, c.Bucket, c.Prefix, c.AnswerTime, c.StallTime, t}, nil
}

// transport counts requests and tracks the server's clock.
type transport struct {
	base     *http.Transport
	dialer   dialer
	now      func() time.Time
	requests atomic.Uint64
	ahead    atomic.Int64 // nanoseconds by which the server's clock is ahead of ours
}

func (t *transport) RoundTrip(q *http.Request) (*http.Response, error) {
	t.requests.Add(1)
	r, err := t.base.RoundTrip(q)
	if err == nil && (q.Header.Get("Range") == "" || r.StatusCode >= http.StatusMultipleChoices) {
		// This excludes the bytes of objects, which get reads into buffers of fixed size.
		moved, _ := q.Context().Value(movedKey{}).(func())
		r.Body = &boundedBody{ReadCloser: r.Body, left: maxAnswerBytes, moved: moved}
	}
	if err == nil {
		if date, err := http.ParseTime(r.Header.Get("Date")); err == nil {
			t.ahead.Store(int64(date.Sub(t.now())))
		}
	}
	return r, err
}

// maxAnswerBytes is the most bytes of an answer that is not an object. A page of a listing has
// at most 1,000 names of 1 KiB, with about 500 bytes more for each; an error is far smaller.
const maxAnswerBytes = 4 << 20

// boundedBody returns an error if an answer is longer than maxAnswerBytes. Like the
// function fill, it calls the function moved before every pieceBytes bytes.
type boundedBody struct {
	io.ReadCloser
	left  int64
	piece int64  // bytes until moved is called again
	moved func() // nil = the request is not watched
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.moved != nil && b.piece <= 0 {
		b.moved()
		b.piece = pieceBytes
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	b.piece -= int64(n)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxAnswerBytes)
	}
	return n, err
}

// serverNow returns the time of the server's clock, estimated from its last answer.
func (t *transport) serverNow() time.Time { return t.now().Add(time.Duration(t.ahead.Load())) }

// fileCredentials provides the credentials in a file, which is read again after a change.
type fileCredentials struct {
	path string

	mu   sync.Mutex
	seen os.FileInfo
}

// RetrieveWithCredContext implements credentials.Provider. Its errors name the setting.
func (f *fileCredentials) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, err := f.readLocked()
	if err != nil {
		return credentials.Value{}, fmt.Errorf("object-credentials: %w", err)
	}
	return v, nil
}

func (f *fileCredentials) readLocked() (credentials.Value, error) {
	seen, err := os.Stat(f.path)
	if err != nil {
		return credentials.Value{}, err
	}
	if !seen.Mode().IsRegular() || seen.Size() > maxCredentials {
		return credentials.Value{}, fmt.Errorf("%s is not a file of at most %d bytes", f.path, maxCredentials)
	}
	aws := credentials.FileAWSCredentials{Filename: f.path, Profile: "default"}
	v, err := aws.RetrieveWithCredContext(nil)
	if err == nil && (v.AccessKeyID == "" || v.SecretAccessKey == "") {
		err = errors.New("no aws_access_key_id and aws_secret_access_key of profile default")
	}
	if err != nil {
		return credentials.Value{}, fmt.Errorf("%s: %w", f.path, err)
	}
	f.seen = seen
	return v, nil
}

// Retrieve is called by older callers.
func (f *fileCredentials) Retrieve() (credentials.Value, error) {
	return f.RetrieveWithCredContext(nil)
}

// IsExpired reports whether the file has changed. It is called before each request, which
// is cheap: the kernel answers the stat from memory.
func (f *fileCredentials) IsExpired() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := os.Stat(f.path)
	return f.seen == nil || err == nil &&
		(!os.SameFile(f.seen, now) || !f.seen.ModTime().Equal(now.ModTime()) || f.seen.Size() != now.Size())
}

// authorities provides the certificate authorities in a file for new connections. The
// file is read again after a change.
type authorities struct {
	path   string
	dialer *dialer
	name   string // host name of the server

	mu   sync.Mutex
	seen os.FileInfo
	last *x509.CertPool
}

// maxCredentials is the most bytes of a credentials file, which has a few lines per profile.
const maxCredentials = 1 << 20

// maxCA is the most bytes of a file of authorities; a system's file has 200 KiB.
const maxCA = 4 << 20

// CheckAuthorities returns an error if New would refuse this Config.CA.
func CheckAuthorities(path string) error {
	if path == "" {
		return nil
	}
	_, err := (&authorities{path: path}).pool()
	return err
}

// pool returns the authorities in the file, or the last ones if the file cannot be read
// any more.
func (a *authorities) pool() (*x509.CertPool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, err := os.Stat(a.path)
	if err == nil && a.seen != nil && os.SameFile(a.seen, now) && a.seen.ModTime().Equal(now.ModTime()) && a.seen.Size() == now.Size() {
		return a.last, nil
	}
	var text []byte
	if err == nil && (!now.Mode().IsRegular() || now.Size() > maxCA) {
		err = fmt.Errorf("%s is not a file of at most %d bytes", a.path, maxCA)
	}
	if err == nil {
		text, err = os.ReadFile(a.path)
	}
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(text) {
		err = fmt.Errorf("%s holds no certificate", a.path)
	}
	switch {
	case err == nil:
		a.seen, a.last = now, pool
	case a.last == nil:
		return nil, err
	}
	return a.last, nil
}

// dial opens a connection to a server with a certificate of these authorities.
func (a *authorities) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	pool, err := a.pool()
	if err != nil {
		return nil, err
	}
	plain, err := a.dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.dialer.Timeout)
	defer cancel()
	c := tls.Client(plain, &tls.Config{RootCAs: pool, ServerName: a.name, MinVersion: tls.VersionTLS12})
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	return c, nil
}

// Kinds of server errors, in addition to those of package tier.
var (
	errThere         = errors.New("object: there is one")
	errUnconditional = errors.New("object: the server has no conditional writes")
)

// failure wraps an error of a request in its kind: the context's error, tier.ErrGone,
// tier.ErrFull, errThere, errUnconditional, else tier.ErrUnavailable.
func (c *client) failure(ctx context.Context, what string, err error) error {
	if ended := ctx.Err(); ended != nil {
		if cause := context.Cause(ctx); !errors.Is(cause, ended) {
			return fmt.Errorf("object: %s: %w: %w", what, cause, tier.ErrUnavailable) // the cause is errStalled, from watch
		}
		return fmt.Errorf("object: %s: %w", what, ended)
	}
	var r minio.ErrorResponse
	if !errors.As(err, &r) {
		// A network error is formatted with %v, not wrapped: it may contain a deadline of
		// the transport, which callers would take for their own.
		return fmt.Errorf("object: %s: %v: %w", what, err, tier.ErrUnavailable)
	}
	kind := tier.ErrUnavailable
	switch {
	case r.StatusCode == http.StatusPreconditionFailed:
		kind = errThere
	case r.Code == minio.NoSuchKey, r.StatusCode == http.StatusNotFound && r.Code != minio.NoSuchBucket:
		kind = tier.ErrGone
	case r.StatusCode == http.StatusInsufficientStorage, strings.Contains(r.Code, "Quota"), strings.Contains(r.Code, "StorageFull"), r.Code == "NoSpaceLeft":
		kind = tier.ErrFull
	case r.StatusCode == http.StatusNotImplemented:
		kind = errUnconditional
	case r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		kind = tier.ErrCorrupt // the object is shorter than its description states
	case r.Code == "RequestTimeTooSkewed":
		return fmt.Errorf("object: %s: our clock is %v behind the server's: %w", what, time.Duration(c.transport.ahead.Load()).Round(time.Second), kind)
	}
	return fmt.Errorf("object: %s: %s (%d): %w", what, r.Code, r.StatusCode, kind)
}

var errStalled = errors.New("no progress")

// movedKey is the key of moved in a watched context.
type movedKey struct{}

// watch returns a context that ends when a request makes no progress. The answer must begin
// within c.answer. From then on, the time between two calls of the returned function moved
// must not exceed c.stall. The caller calls moved whenever bytes have been transferred, and
// stop at the end.
func (c *client) watch(ctx context.Context) (watched context.Context, moved, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(c.answer, func() { cancel(errStalled) })
	moved = func() { timer.Reset(c.stall) }
	return context.WithValue(watched, movedKey{}, moved), moved, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}

// pause waits for d during a watched request. The wait counts as progress.
func (c *client) pause(ctx context.Context, d time.Duration, moved func()) error {
	for d > 0 {
		step := min(d, c.stall/2)
		moved()
		if err := pause(ctx, step); err != nil {
			return err
		}
		d -= step
	}
	moved()
	return nil
}

// span is the result of a get.
type span struct {
	etag        string
	total       int64 // size of the object in bytes
	n           int64
	first, rest time.Duration
}

// get reads bytes of an object from off into buffers. If short is true, the object may end
// before the buffers are full; otherwise get fills all of them. If etag is not empty and
// the object has another etag, the error is tier.ErrGone.
func (c *client) get(ctx context.Context, t tag, etag string, off int64, bufs [][]byte, short bool) (span, error) {
	var s span
	want := int64(0)
	for _, b := range bufs {
		want += int64(len(b))
	}
	if want == 0 {
		return s, nil
	}
	what := fmt.Sprintf("read %d bytes at %d of %x", want, off, t[:4])
	var o minio.GetObjectOptions
	err := o.SetRange(off, off+want-1)
	if err == nil && etag != "" {
		err = o.SetMatchETag(etag)
	}
	if err != nil {
		return s, fmt.Errorf("object: %s: %w: %w", what, err, tier.ErrInvalid)
	}
	began := time.Now()
	watched, moved, stop := c.watch(ctx)
	defer stop()
	body, info, header, err := c.core.GetObject(watched, c.bucket, c.prefix+t.name(), o)
	if err != nil {
		err = c.failure(watched, what, err)
		if errors.Is(err, errThere) {
			err = fmt.Errorf("object: %s: replaced: %w", what, tier.ErrGone)
		}
		return s, err
	}
	defer func() { _ = body.Close() }()
	s.first = time.Since(began)
	s.etag = info.ETag
	if s.total, err = totalOf(header, info.Size, off); err != nil {
		return s, fmt.Errorf("object: %s: %w: %w", what, err, tier.ErrUnavailable)
	}
	if there := min(want, s.total-off); there < want && !short || info.Size < there {
		return s, fmt.Errorf("object: %s: it has %d: %w", what, s.total, tier.ErrCorrupt)
	}
	s.n, err = fill(body, bufs, min(want, s.total-off), moved)
	s.rest = time.Since(began) - s.first
	if err != nil {
		return s, c.failure(watched, what, err)
	}
	return s, nil
}

// totalOf returns the size of an object, from the headers of the answer to a get at off.
func totalOf(h http.Header, length, off int64) (int64, error) {
	r := h.Get("Content-Range")
	if r == "" {
		if off != 0 {
			return 0, errors.New("the server does not read ranges")
		}
		return length, nil
	}
	_, after, ok := strings.Cut(r, "/")
	from, _, _ := strings.Cut(strings.TrimPrefix(r, "bytes "), "-")
	total, err := strconv.ParseInt(after, 10, 64)
	begin, err2 := strconv.ParseInt(from, 10, 64)
	if !ok || err != nil || err2 != nil || begin != off || total < off {
		return 0, fmt.Errorf("content range %q of what begins at %d", r, off)
	}
	return total, nil
}

// pieceBytes is the size of one read of a body. Each piece has to arrive within client.stall.
const pieceBytes = 256 << 10

// fill reads n bytes into buffers, and calls the function moved before each piece.
func fill(from io.Reader, bufs [][]byte, n int64, moved func()) (got int64, err error) {
	for _, b := range bufs {
		for len(b) > 0 && got < n {
			moved()
			k, err := io.ReadFull(from, b[:min(int64(len(b)), n-got, pieceBytes)])
			got += int64(k)
			if err != nil {
				return got, fmt.Errorf("after %d bytes: %w", got, err)
			}
			b = b[k:]
		}
	}
	return got, nil
}

// put writes an object. Unless replace is set, it returns errThere if the object exists.
func (c *client) put(ctx context.Context, t tag, body io.Reader, size int64, replace bool) error {
	o := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true, DisableContentSha256: true}
	if !replace {
		o.SetMatchETagExcept("*")
	}
	_, err := c.core.PutObject(ctx, c.bucket, c.prefix+t.name(), body, size, "", "", o)
	if err != nil {
		return c.failure(ctx, fmt.Sprintf("write %d bytes of %x", size, t[:4]), err)
	}
	return nil
}

// exists reports whether an object exists.
func (c *client) exists(ctx context.Context, t tag) (bool, error) {
	watched, _, stop := c.watch(ctx)
	defer stop()
	_, err := c.core.StatObject(watched, c.bucket, c.prefix+t.name(), minio.StatObjectOptions{})
	if err == nil {
		return true, nil
	}
	if err = c.failure(watched, "look for "+t.name(), err); errors.Is(err, tier.ErrGone) {
		return false, nil
	}
	return false, err
}

// close closes all connections. No request may be running.
func (c *client) close() {
	c.transport.base.CloseIdleConnections()
	c.transport.dialer.close()
}

// dialer is a net.Dialer that can close all its connections. If a request is served by
// another connection while the transport dials for it, the transport continues to dial
// and keeps the new connection, which CloseIdleConnections may miss.
type dialer struct {
	net.Dialer
	mu     sync.Mutex
	closed bool
	open   map[*dialed]struct{}
}

// dialed is a connection of a dialer.
type dialed struct {
	net.Conn
	of *dialer
}

func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	if d.open == nil {
		d.open = map[*dialed]struct{}{}
	}
	c := &dialed{conn, d}
	d.open[c] = struct{}{}
	return c, nil
}

// Close closes the connection.
func (c *dialed) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// close closes all connections. Connections that are still being made are closed at once.
func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for c := range d.open {
		_ = c.Conn.Close()
	}
	d.open = nil
}
