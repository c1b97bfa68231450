package object

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// health tracks the server's failures and speed.
type health struct {
	cfg *Config

	open atomic.Bool // openUntil is set

	mu        sync.Mutex
	failures  int           // in a row
	wait      time.Duration // duration of the last pause
	openUntil time.Time     // end of the pause; open reports that there was one
	fullUntil time.Time     // end of the pause of writes
	last      string        // last failure
	first     float64       // seconds until an answer, smoothed; 0 = unknown
	rate      float64       // bytes per second after that, of one request, smoothed
	running   int           // ranges being read
}

// alone returns an error while the server must not be asked.
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

// failed counts a failure of the server; opened reports that it is not asked from now on.
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

// Health is the health of the object store. Nothing in it keeps this node from serving.
type Health struct {
	// Trouble names the problem, its consequence and its cause; empty if there is none.
	Trouble string
	// ClockAhead is the difference of the server's clock to ours, by its last answer.
	ClockAhead time.Duration
}

// maxSkew bounds the difference of the clocks: above 15 minutes S3 refuses signatures.
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

// measured records the time of a range. Rates of short ones are not meaningful.
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

// begin counts a running range until end is called.
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

// hint returns the expectation for a read: two answers, for the description and for the
// first bytes, and the rate of its streams while others read too.
func (h *health) hint() tier.Hint {
	h.mu.Lock()
	defer h.mu.Unlock()
	streams := min(float64(h.cfg.Streams), float64(h.cfg.Requests)/float64(1+h.running))
	return tier.Hint{Place: tier.PlaceObject, Latency: time.Duration(2 * h.first * float64(time.Second)), BytesPerSecond: h.rate * streams}
}
