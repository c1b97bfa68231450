package hub

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Rule is what a link does to frames. The zero value passes all of them at once.
type Rule struct {
	Delay  time.Duration // added to each frame
	Jitter time.Duration // each frame's delay differs by up to so much, either way; order is kept
	Loss   float64       // share of frames that is lost, 0 to 1
	Cut    bool          // nothing passes
	// BytesPerSecond is how fast frames leave; 0 = at once. QueueBytes may wait for that,
	// more is dropped; 0 = DefaultQueue.
	BytesPerSecond int64
	QueueBytes     int64
}

// DefaultQueue is what waits at a slow link: some 170 full frames, as a switch has.
const DefaultQueue = 256 << 10

// Validate says what is wrong.
func (r *Rule) Validate() error {
	if r.Delay < 0 || r.Jitter < 0 || r.Jitter > r.Delay || !(r.Loss >= 0 && r.Loss <= 1) || r.BytesPerSecond < 0 || r.QueueBytes < 0 {
		return fmt.Errorf("hub: rule %+v: want no negative values, jitter of at most the delay, and a loss of 0 to 1", *r)
	}
	return nil
}

// Counters of a link count frames.
type Counters struct {
	Passed, Lost, Cut uint64
	Full              uint64 // dropped, for so many waited
	Bytes             uint64 // of those that passed
}

// Link is one direction between two ports. The zero value has the zero Rule and random
// numbers of its own. It has no clock and no lock: calls come one at a time.
type Link struct {
	rule   Rule
	random *rand.Rand
	free   time.Time // when what was taken so far will have left
	last   time.Time // when the last frame arrives
	counts Counters
}

// NewLink makes a link whose losses and jitter follow from a seed.
func NewLink(seed uint64) *Link { return &Link{random: rand.New(rand.NewPCG(seed, 0))} }

// Set changes what happens to frames from now on. Those on their way arrive.
func (l *Link) Set(r Rule) { l.rule = r }

// Counters takes a snapshot.
func (l *Link) Counters() Counters { return l.counts }

// Take decides about a frame that is given to the link now: when it arrives, or that it
// never does. Frames arrive in the order in which they were given.
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

// waiting is how many bytes have not left yet.
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
