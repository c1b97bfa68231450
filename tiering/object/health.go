package object

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// health tracks the failures and the speed of the server.
type health struct {
	cfg *Config

	open atomic.Bool // openUntil is set, so alone has to check it

	mu        sync.Mutex
	failures  int           // failures in a row
	wait      time.Duration // duration of the last pause
	openUntil time.Time     // end of the pause; zero = none since the last answer
	fullUntil time.Time     // end of the pause of writes
	last      string        // last failure
	first     float64       // smoothed seconds until an answer begins; 0 = unknown
	rate      float64       // smoothed bytes per second of one request after that; 0 = unknown
	running   int           // ranges being read
}

// The method alone returns an error while the server must not be asked.
func (h *health) alone(now time.Time) error {
	if !h.open.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.openUntil) {
		return fmt.Errorf("object: %d requests in a row have failed (%s): %w", h.failures, h.last, tier.ErrUnavailable)
	}
	return nil
}

func (h *health) full(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.fullUntil) {
		return fmt.Errorf("object: the server had no room (%s): %w", h.last, tier.ErrFull)
	}
	return nil
}

// The method failed counts a failure of the server. The result opened is true if this
// failure begins a time in which the server is not asked.
func (h *health) failed(err error, now time.Time) (opened bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	h.last = err.Error()
	if h.failures < h.cfg.BreakerFailures || now.Before(h.openUntil) {
		return false
	}
	if h.wait == 0 {
		h.wait = h.cfg.BreakerMin
	} else {
		h.wait = min(2*h.wait, h.cfg.BreakerMax)
	}
	h.openUntil = now.Add(h.wait)
	h.open.Store(true)
	return true
}

func (h *health) ranOut(err error, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = err.Error()
	h.fullUntil = now.Add(h.cfg.FullTime)
}

// answered records that the server works.
func (h *health) answered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures, h.wait, h.openUntil = 0, 0, time.Time{}
	h.open.Store(false)
}

// Health is the health of the object store. No trouble of it keeps this node from serving.
type Health struct {
	// Trouble names the problem, its consequence and its cause; empty if there is none.
	Trouble string
	// ClockAhead is the lead of the server's clock over ours in its last answer.
	ClockAhead time.Duration
}

// maxSkew is the difference of the clocks above which Health reports trouble. Above 15
// minutes S3 refuses signatures.
const maxSkew = 5 * time.Minute

// Health returns the health of the object store.
func (s *Store) Health() Health {
	h := &s.health
	out := Health{ClockAhead: time.Duration(s.client.transport.ahead.Load())}
	skewed := out.ClockAhead.Abs() > maxSkew
	listed := s.index.listed.Load()
	now := s.cfg.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.failures >= h.cfg.BreakerFailures:
		out.Trouble = fmt.Sprintf("%d requests in a row have failed, what is only there is a miss and nothing is written: %s", h.failures, h.last)
	case skewed:
		out.Trouble = fmt.Sprintf("the server's clock is %v ahead of this node's: beyond 15 minutes requests are refused", out.ClockAhead.Round(time.Second))
	case now.Before(h.fullUntil):
		out.Trouble = "the server has no room, what leaves this node is lost unless others have it: " + h.last
	case !listed && h.failures > 0:
		out.Trouble = "the bucket cannot be listed, so that nothing is written yet: " + h.last
	}
	return out
}

const smooth = 0.2 // weight of the newest measurement (guess)

// measured records the times of a request: first is the time until its answer began, and
// rest is the time in which the bytes of the answer arrived. It ignores the rate of short
// ranges.
func (h *health) measured(first, rest time.Duration, bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	blend(&h.first, first.Seconds())
	if bytes >= 64<<10 && rest > 0 {
		blend(&h.rate, float64(bytes)/rest.Seconds())
	}
}

func blend(to *float64, v float64) {
	if *to == 0 {
		*to = v
		return
	}
	*to += smooth * (v - *to)
}

// The method begin counts a running request until the returned function is called.
func (h *health) begin() (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.running--
	}
}

// hint returns the expected latency and rate of a read. The latency is the time until two
// answers begin: the answer with the description, and the answer with the first bytes. The
// rate is the sum over the streams that the read gets, while the other running requests
// also use streams.
func (h *health) hint() tier.Hint {
	h.mu.Lock()
	defer h.mu.Unlock()
	streams := min(float64(h.cfg.Streams), float64(h.cfg.Requests)/float64(1+h.running))
	return tier.Hint{Place: tier.PlaceObject, Latency: time.Duration(2 * h.first * float64(time.Second)), BytesPerSecond: h.rate * streams}
}
