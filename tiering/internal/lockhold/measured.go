//go:build lockholds

package lockhold

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Mutex is a sync.Mutex that counts its acquisitions and measures how long it was held.
type Mutex struct {
	sync.Mutex
	uses  uint64 // acquisitions; guarded by the mutex
	since time.Time
	times []time.Duration
	worst map[string]time.Duration // longest hold, by the functions that unlocked
}

// Lock locks the mutex, counts the acquisition and notes the time.
func (m *Mutex) Lock() {
	m.Mutex.Lock()
	m.uses++
	m.since = time.Now()
}

// Unlock records how long the mutex was held and unlocks it. The recording itself is not
// part of the measured time.
func (m *Mutex) Unlock() {
	held := time.Since(m.since)
	if len(m.times) < most {
		m.times = append(m.times, held)
	}
	if held > long {
		if m.worst == nil {
			m.worst = map[string]time.Duration{}
		}
		who := callers()
		m.worst[who] = max(m.worst[who], held)
	}
	m.Mutex.Unlock()
}

const (
	most = 1 << 24               // maximum number of records between two calls of Take
	long = 20 * time.Microsecond // for a longer hold the callers of Unlock are recorded
)

func callers() string {
	var pcs [6]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	var names []string
	for {
		f, more := frames.Next()
		names = append(names, f.Function[strings.LastIndexByte(f.Function, '/')+1:])
		if !more {
			return strings.Join(names, " < ")
		}
	}
}

// Take returns the durations for which the lock was held since the last call, in ascending
// order, and the ten longest with the functions that unlocked. It clears its records.
func (m *Mutex) Take() (times []time.Duration, worst []string) {
	m.Mutex.Lock()
	defer m.Mutex.Unlock()
	slices.Sort(m.times)
	by := slices.SortedFunc(maps.Keys(m.worst), func(a, b string) int { return cmp.Compare(m.worst[b], m.worst[a]) })
	for _, who := range by[:min(len(by), 10)] {
		worst = append(worst, fmt.Sprint(m.worst[who], " ", who))
	}
	times, m.times, m.worst = m.times, nil, nil
	return times, worst
}
