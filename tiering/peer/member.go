package peer

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// member is a peer and its state.
type member struct {
	Member
	cfg *Config

	slots  slots        // one for each concurrent range
	queued atomic.Int64 // bytes requested and not received
	reads  atomic.Int64 // copies being read, or waiting
	busy   atomic.Int64 // end of the pause that the member asked for, in unix nanoseconds
	speed  speed
	breaker
	pool
	*silence
}

func newMember(cfg *Config, m Member) *member {
	return &member{Member: m, cfg: cfg, slots: slots{free: cfg.Streams}, silence: newSilence()}
}

// open reports whether the member may be asked now.
func (m *member) open(now time.Time) bool {
	return !m.silent.Load() && m.breaker.may(now) && m.busy.Load() <= now.UnixNano()
}

// expect returns the expected latency and rate of the member, and the seconds in which an
// object of assumedBytes would arrive.
func (m *member) expect() (h tier.Hint, seconds float64) {
	rtt, rate := m.speed.get()
	h.BytesPerSecond = rate
	if rate == 0 {
		rate = assumedRate
	}
	queue := float64(m.queued.Load()) / rate
	h.Latency = rtt + time.Duration(queue*float64(time.Second))
	return h, h.Latency.Seconds() + assumedBytes/rate
}

// enterRead counts a copy that will be read from the member, and its bytes.
func (m *member) enterRead(bytes int64) error {
	if n := m.reads.Add(1); n > int64(m.cfg.MaxReads) {
		m.reads.Add(-1)
		return fmt.Errorf("peer: %d copies of node %d are read: %w", n-1, m.Node, tier.ErrBusy)
	}
	m.queued.Add(bytes)
	return nil
}

// leaveRead undoes enterRead. bytes are those that have not arrived.
func (m *member) leaveRead(bytes int64) {
	m.reads.Add(-1)
	m.queued.Add(-bytes)
}

// leaveAlone records a member's request to be asked later.
func (m *member) leaveAlone(now time.Time, after time.Duration) {
	m.busy.Store(now.Add(after).UnixNano())
}

// breaker stops requests to a member that has failed several times in a row. After a
// time, which doubles with each opening, one request tries again.
//
//	closed ── BreakerFailures failures ──► open ── time is over ──► half open
//	   ▲                                    ▲                          │  │
//	   └────────── an answer ───────────────┼──────────────────────────┘  │
//	                                        └────── a failure, twice ─────┘
type breaker struct {
	until atomic.Int64 // unix nanoseconds; 0 = closed

	mu       sync.Mutex
	failures [2]int        // failures in a row, by kind of request
	wait     time.Duration // duration of the last opening
	probing  bool          // half open, and a request is trying
}

func (b *breaker) may(now time.Time) bool { return b.until.Load() <= now.UnixNano() }

// The method begin is called before a member is asked. If it returns false, the member must
// not be asked. Otherwise the method settle has to be called with the outcome of the
// request.
func (b *breaker) begin(now time.Time) bool {
	if b.until.Load() == 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.may(now) || b.probing {
		return false
	}
	b.probing = b.until.Load() != 0
	return true
}

// asked is the kind of a request. Failures are counted for each kind, so that a member
// that answers finds but sends no bytes is not asked either.
type asked uint8

const (
	finds asked = iota
	reads
)

// outcome is the result of a request.
type outcome uint8

const (
	answered outcome = iota // any valid answer, even a refusal
	failed                  // no answer, too slow, or invalid
	neither                 // the caller gave up
)

// settle records the outcome of a request. The result opened is true if this outcome has
// opened the breaker, so that the member is not asked for a while.
func (b *breaker) settle(of asked, o outcome, now time.Time, cfg *Config) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	probing := b.probing
	b.probing = false
	switch {
	case o == answered:
		b.until.Store(0)
		if b.failures[of] = 0; b.failures == [2]int{} {
			b.wait = 0
		}
	case o == failed:
		b.failures[of]++
		if b.failures[of] < cfg.BreakerFailures && !probing || !b.may(now) {
			return false
		}
		b.wait = min(max(2*b.wait, cfg.BreakerMin), cfg.BreakerMax)
		b.until.Store(now.Add(b.wait).UnixNano())
		return true
	}
	return false
}

// speed is the measured performance of a member: the time until it answers a find, and
// the bytes per second while ranges arrive.
type speed struct {
	rtt  atomic.Uint64 // float64 bits of seconds; 0 = unknown
	rate atomic.Uint64 // float64 bits of bytes per second

	mu     sync.Mutex
	active int
	since  time.Time
	bytes  int64
}

const (
	// speedWeight is the weight of a new measurement (a guess: about ten measurements count).
	speedWeight = 0.2
	// speedBytes is the least transfer that is measured; smaller ones measure the round
	// trip rather than the rate.
	speedBytes = 256 << 10
	// speedWindow is the longest measurement: longer busy periods are divided, so that
	// the rate is updated during long transfers.
	speedWindow = 100 * time.Millisecond
)

func (s *speed) get() (rtt time.Duration, rate float64) {
	return time.Duration(math.Float64frombits(s.rtt.Load()) * float64(time.Second)), math.Float64frombits(s.rate.Load())
}

func fold(a *atomic.Uint64, v float64) {
	if old := math.Float64frombits(a.Load()); old != 0 {
		v = old + speedWeight*(v-old)
	}
	a.Store(math.Float64bits(v))
}

// The method took records a round trip.
func (s *speed) took(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fold(&s.rtt, d.Seconds())
}

func (s *speed) begin(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active++; s.active == 1 {
		s.since, s.bytes = now, 0
	}
}

func (s *speed) end(now time.Time, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	s.bytes += bytes
	took := now.Sub(s.since)
	if s.active > 0 && took < speedWindow {
		return
	}
	if s.bytes >= speedBytes && took > 0 {
		fold(&s.rate, float64(s.bytes)/took.Seconds())
	}
	s.since, s.bytes = now, 0
}
