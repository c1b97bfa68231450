package hub

import (
	"container/heap"
	"time"
)

// flight is a bounded queue (maxFlight) of frames to a port, ordered by arrival time. It
// has no clock and no lock.
type flight struct {
	frames frames
	bytes  int
	seq    uint64
	full   uint64 // frames dropped for lack of room
}

// maxFlight bounds the bytes in flight to a port: 200 ms at 1 Gbit/s.
const maxFlight = 32 << 20

type frame struct {
	at    time.Time
	seq   uint64
	bytes []byte
}

// add queues a frame that arrives at the time at, and reports whether it is now the next frame
// to arrive. If the queue has no room, add drops the frame.
func (f *flight) add(at time.Time, bytes []byte) (next bool) {
	if f.bytes+len(bytes) > maxFlight {
		f.full++
		return false
	}
	f.seq++
	heap.Push(&f.frames, frame{at, f.seq, bytes})
	f.bytes += len(bytes)
	return f.frames[0].seq == f.seq
}

// due removes and returns the next frame if it has arrived. Otherwise bytes is nil and wait is
// the time until the next frame arrives; 0 = the queue is empty.
func (f *flight) due(now time.Time) (bytes []byte, wait time.Duration) {
	if len(f.frames) == 0 {
		return nil, 0
	}
	if wait := f.frames[0].at.Sub(now); wait > 0 {
		return nil, wait
	}
	next := heap.Pop(&f.frames).(frame)
	f.bytes -= len(next.bytes)
	return next.bytes, 0
}

// frames is a heap; frames that arrive at once keep their order.
type frames []frame

func (f frames) Len() int      { return len(f) }
func (f frames) Swap(a, b int) { f[a], f[b] = f[b], f[a] }
func (f frames) Less(a, b int) bool {
	if f[a].at.Equal(f[b].at) {
		return f[a].seq < f[b].seq
	}
	return f[a].at.Before(f[b].at)
}
func (f *frames) Push(x any) { *f = append(*f, x.(frame)) }
func (f *frames) Pop() any {
	last := len(*f) - 1
	x := (*f)[last]
	(*f)[last] = frame{}
	*f = (*f)[:last]
	return x
}
