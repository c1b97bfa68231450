package object

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// health is what the server's behaviour lets expect.
type health struct {
	cfg *Config

	open atomic.Bool // openUntil is set

	mu        sync.Mutex
	failures  int           // in a row
	wait      time.Duration // of the last time that the server was left alone
	openUntil time.Time     // it is left alone; open says that it was
	fullUntil time.Time     // it is not written to
	last      string        // what failed last
	first     float64       // seconds until an answer, smoothed; 0 = not known
	rate      float64       // bytes a second behind that, of one request, smoothed
	running   int           // ranges that are read
}

// alone tells whether the server is to be left alone.
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

// failed counts a failure of the server; opened tells that it is left alone from now on.
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

// answered notes that the server works.
func (h *health) answered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures, h.wait, h.openUntil = 0, 0, time.Time{}
	h.open.Store(false)
}

// Health is how the object store does. Nothing of it keeps this node from serving.
type Health struct {
	// Trouble is what does not work, what follows from that, and why; empty when it does.
	Trouble string
	// ClockAhead is how far the server's clock is ahead of ours, by its last answer.
	ClockAhead time.Duration
}

// maxSkew is how far clocks may be apart: beyond 15 minutes S3 refuses signatures.
const maxSkew = 5 * time.Minute

// Health answers how the object store does.
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

// measured notes how long a range took. Rates of short ones say little.
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

// begin counts a running range; the answer ends it.
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

// hint is what a read can expect: two answers, the description's and the first bytes',
// and the rate of its streams where others read too.
func (h *health) hint() tier.Hint {
	h.mu.Lock()
	defer h.mu.Unlock()
	streams := min(float64(h.cfg.Streams), float64(h.cfg.Requests)/float64(1+h.running))
	return tier.Hint{Place: tier.PlaceObject, Latency: time.Duration(2 * h.first * float64(time.Second)), BytesPerSecond: h.rate * streams}
}
