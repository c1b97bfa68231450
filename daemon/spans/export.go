package spans

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Limits. All but exportWithin are the defaults of OpenTelemetry's exporters.
const (
	exportWithin = 5 * time.Second  // limit of one attempt
	batchWithin  = 30 * time.Second // limit of all attempts for a batch
	firstRetry   = 5 * time.Second
	longestRetry = 30 * time.Second

	answerBytes = 64 << 10 // bytes read from an answer

	contentType = "application/x-protobuf"
)

// run sends batches until Close is called. Then it sends the rest of the queue.
func (s *Spans) run(ctx context.Context) {
	defer close(s.done)
	tick := time.NewTicker(exportAfter)
	defer tick.Stop()
	spans := make([]message, 0, batchSpans)
	flush := func() {
		if len(spans) > 0 {
			s.export(ctx, spans)
			clear(spans)
			spans = spans[:0]
		}
	}
	logged, loggedAt := uint64(0), time.Time{}
	logDropped := func() {
		if n := s.dropped.Load(); n > logged {
			logged, loggedAt = n, time.Now()
			s.log.Warn().Uint64("dropped", n).Msg("spans were dropped")
		}
	}
	add := func(m message) {
		if spans = append(spans, m); len(spans) == batchSpans {
			flush()
		}
	}
	for {
		select {
		case m := <-s.queue:
			add(m)
		case <-tick.C:
			flush()
			if time.Since(loggedAt) >= logEvery {
				logDropped()
			}
		case <-s.stop:
			for {
				select {
				case m := <-s.queue:
					add(m)
				default:
					flush()
					logDropped()
					return
				}
			}
		}
	}
}

// errRetry marks errors after which a later attempt may succeed.
var errRetry = errors.New("retried later")

// rejectedError says that the collector accepted a request but rejected some of its spans.
type rejectedError struct {
	spans uint64
	why   string
}

func (e *rejectedError) Error() string {
	return fmt.Sprintf("the collector rejected %d spans: %.200q", e.spans, e.why)
}

// export sends a batch. It repeats until the collector accepts or refuses the batch, or time is up.
func (s *Spans) export(ctx context.Context, spans []message) {
	ctx, cancel := context.WithTimeout(ctx, batchWithin)
	defer cancel()
	body := batch(s.resource, s.scope, spans)
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		after, err := s.post(ctx, body)
		if err == nil {
			return
		}
		s.failures.Warn().Err(err).Msg("span export failed, retrying")
		if errors.Is(err, errRetry) && s.pause(ctx, max(after, wait/2+rand.N(wait))) {
			continue
		}
		lost := uint64(len(spans))
		if partial := (*rejectedError)(nil); errors.As(err, &partial) {
			lost = partial.spans
		}
		s.dropped.Add(lost)
		return
	}
}

// pause waits before the next attempt. It returns false if there must be no next attempt: ctx ends
// before the wait would, or Close was called before the wait began.
func (s *Spans) pause(ctx context.Context, wait time.Duration) bool {
	if until, ok := ctx.Deadline(); ok && time.Until(until) <= wait {
		return false
	}
	select {
	case <-s.stop:
		return false
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.stop:
		return true
	case <-ctx.Done():
		return false
	}
}

// post makes one attempt. If the error is errRetry, the result pause is the time that the collector
// asks this node to wait; 0 = none.
func (s *Spans) post(ctx context.Context, body []byte) (pause time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header = s.headers.Clone()
	answer, err := s.client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errRetry, err)
	}
	defer answer.Body.Close() //nolint:errcheck // nothing is written to it
	text, err := io.ReadAll(io.LimitReader(answer.Body, answerBytes))
	if answer.StatusCode/100 == 2 {
		return 0, accepted(answer.Header, text, err)
	}
	err = fmt.Errorf("the collector answered HTTP %d: %.200q", answer.StatusCode, text)
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return retryAfter(answer.Header.Get("Retry-After")), fmt.Errorf("%w: %w", errRetry, err)
	}
	return 0, err
}

// accepted decodes the body of a successful answer. It ignores an incomplete body, since sending
// the spans again would duplicate them.
func accepted(header http.Header, body []byte, err error) error {
	if err != nil || header.Get("Content-Type") != contentType {
		return nil
	}
	if n, why := rejected(body); n > 0 || why != "" {
		return &rejectedError{n, why}
	}
	return nil
}

// retryAfter parses the header Retry-After: seconds or a date. For anything else it returns 0.
func retryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// ParseHeaders parses OTEL_EXPORTER_OTLP_HEADERS: name=value entries separated by commas, names and
// values percent-encoded. An error contains the number of the entry, but not its value.
func ParseHeaders(text string) (http.Header, error) {
	headers := http.Header{}
	for i, entry := range strings.Split(text, ",") {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		name, value, ok := strings.Cut(entry, "=")
		name, nameErr := url.PathUnescape(strings.TrimSpace(name))
		value, valueErr := url.PathUnescape(strings.TrimSpace(value))
		if !ok || !isToken(name) || nameErr != nil || valueErr != nil || strings.ContainsFunc(value, isControl) {
			return nil, fmt.Errorf("entry %d is not name=value", i+1)
		}
		headers.Set(name, value)
	}
	return headers, nil
}

// isToken reports whether text is a valid name of a header.
func isToken(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
