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

// Mutex is a sync.Mutex that measures.
type Mutex struct {
	sync.Mutex
	uses  uint64 // how often it was taken; under it
	since time.Time
	times []time.Duration
	worst map[string]time.Duration // by who let go
}

// Lock is sync.Mutex's.
func (m *Mutex) Lock() {
	m.Mutex.Lock()
	m.uses++
	m.since = time.Now()
}

// Unlock is sync.Mutex's. What it notes is not counted.
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
	most = 1 << 24               // bounds what is noted between two calls of Take
	long = 20 * time.Microsecond // from when on it is asked who let go
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

// Take returns how long the lock was held each time since the last call, sorted,
// and who let go after the longest holds.
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
