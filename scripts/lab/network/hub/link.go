package hub

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Rule describes how a link treats frames. The zero value passes all frames without delay.
type Rule struct {
	Delay  time.Duration // added to each frame
	Jitter time.Duration // largest deviation of a frame's delay in either direction; order is kept
	Loss   float64       // share of lost frames, 0 to 1
	Cut    bool          // all frames are lost
	// BytesPerSecond is the rate at which frames leave; 0 = unlimited. Up to QueueBytes wait to
	// leave, and further frames are dropped; 0 = DefaultQueue.
	BytesPerSecond int64
	QueueBytes     int64
}

// DefaultQueue is the queue of a slow link: some 170 full frames, as in a switch.
const DefaultQueue = 256 << 10

// Validate returns an error if the rule is invalid.
func (r *Rule) Validate() error {
	if r.Delay < 0 || r.Jitter < 0 || r.Jitter > r.Delay || !(r.Loss >= 0 && r.Loss <= 1) || r.BytesPerSecond < 0 || r.QueueBytes < 0 {
		return fmt.Errorf("hub: rule %+v: want no negative values, jitter of at most the delay, and a loss of 0 to 1", *r)
	}
	return nil
}

// Counters counts the frames of a link.
type Counters struct {
	Passed, Lost, Cut uint64
	Full              uint64 // dropped because the queue was full
	Bytes             uint64 // of passed frames
}

// Link is one direction between two ports. The zero value has the zero Rule and its own
// random generator. It has no clock and no lock: calls must not be concurrent.
type Link struct {
	rule   Rule
	random *rand.Rand
	free   time.Time // when all accepted frames will have left
	last   time.Time // when the last frame arrives
	counts Counters
}

// NewLink returns a link whose losses and jitter are determined by a seed.
func NewLink(seed uint64) *Link { return &Link{random: rand.New(rand.NewPCG(seed, 0))} }

// Set changes the rule for later frames. Frames in flight arrive.
func (l *Link) Set(r Rule) { l.rule = r }

// Counters returns a snapshot.
func (l *Link) Counters() Counters { return l.counts }

// Take decides what happens to a frame that is passed to the link now. It returns the frame's
// arrival time, or false if the frame is lost. Frames arrive in the order in which they were
// passed.
func (l *Link) Take(now time.Time, bytes int) (arrives time.Time, ok bool) {
	r := &l.rule
	if r.Cut {
		l.counts.Cut++
		return time.Time{}, false
	}
	if r.Loss > 0 && l.draw() < r.Loss {
		l.counts.Lost++
		return time.Time{}, false
	}
	at := now
	if r.BytesPerSecond > 0 {
		if l.free.Before(now) {
			l.free = now
		}
		if l.waiting(now)+int64(bytes) > r.queue() {
			l.counts.Full++
			return time.Time{}, false
		}
		l.free = l.free.Add(time.Duration(float64(bytes) / float64(r.BytesPerSecond) * float64(time.Second)))
		at = l.free
	}
	at = at.Add(r.Delay)
	if r.Jitter > 0 {
		at = at.Add(time.Duration((2*l.draw() - 1) * float64(r.Jitter)))
	}
	if at.Before(l.last) {
		at = l.last
	}
	l.last = at
	l.counts.Passed++
	l.counts.Bytes += uint64(bytes)
	return at, true
}

// waiting returns the bytes that have not left yet.
func (l *Link) waiting(now time.Time) int64 {
	return int64(l.free.Sub(now).Seconds() * float64(l.rule.BytesPerSecond))
}

func (r *Rule) queue() int64 {
	if r.QueueBytes == 0 {
		return DefaultQueue
	}
	return r.QueueBytes
}

func (l *Link) draw() float64 {
	if l.random == nil {
		return rand.Float64()
	}
	return l.random.Float64()
}
