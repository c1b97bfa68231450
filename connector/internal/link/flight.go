package link

import (
	"fmt"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/connector/wire"
)

// flight is the table of requests on one connection that have no reply yet. A request id
// consists of a sequence number and the index of the request's entry. A reply therefore finds
// its entry without a search, and a reply to an earlier request of the same entry is recognized:
//
//	63            16 15     0
//	+---------------+--------+
//	|   sequence    | entry  |
//	+---------------+--------+
//
// An entry stays until its reply has arrived, even if its caller has returned, so that staging
// and destinations stay reserved for as long as the daemon may use them. Invariant: the index of
// an entry is in one of the channels free and own exactly while the entry has id 0.
type flight struct {
	free chan uint16 // for callers
	own  chan uint16 // for cancels and releases of the attachment itself

	mu struct {
		sync.Mutex
		entries []entry
		seq     uint64
		orphans int   // entries without a caller
		ended   error // set when no more requests are accepted
	}
}

type entry struct {
	id   uint64
	op   wire.Op
	c    *Call // nil when its caller has returned
	late *Late // set if c is nil: how to handle the reply
}

// OwnEntries are reserved for cancels and releases, so that these get through when callers
// fill the table.
const OwnEntries = 4

// init makes a table of n entries.
func (f *flight) init(n int) {
	own := min(OwnEntries, n/2)
	f.free = make(chan uint16, n-own)
	f.own = make(chan uint16, own)
	f.mu.entries = make([]entry, n)
	for i := range n {
		f.putBack(uint16(i))
	}
}

func (f *flight) putBack(i uint16) {
	if int(i) < cap(f.free) {
		f.free <- i
	} else {
		f.own <- i
	}
}

// add assigns entry i to a call, or to no caller if c is nil, and returns the request id.
func (f *flight) add(i uint16, op wire.Op, c *Call, l *Late) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.ended != nil {
		f.putBack(i)
		return 0, f.mu.ended
	}
	f.mu.seq++
	id := f.mu.seq<<16 | uint64(i)
	f.mu.entries[i] = entry{id: id, op: op, c: c, late: l}
	if c == nil {
		f.mu.orphans++
	}
	return id, nil
}

// remove removes a request that was never sent.
func (f *flight) remove(id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.findLocked(id); e != nil {
		f.clearLocked(e)
	}
}

func (f *flight) findLocked(id uint64) *entry {
	i := int(id & 0xffff)
	if id == 0 || i >= len(f.mu.entries) || f.mu.entries[i].id != id {
		return nil
	}
	return &f.mu.entries[i]
}

func (f *flight) clearLocked(e *entry) {
	if e.c == nil {
		f.mu.orphans--
	}
	i := uint16(e.id & 0xffff)
	*e = entry{}
	f.putBack(i)
}

// take accepts a reply. If its caller still waits, take stores the frame and wakes the caller,
// unless the caller is self. If the caller has returned, take returns the Late that says how to
// handle the reply. known is false if no request has the reply's id.
func (f *flight) take(h wire.Header, frame []byte, self *Call) (l *Late, known bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.findLocked(h.Request)
	if e == nil {
		return nil, false, nil
	}
	if e.op != h.Op {
		return nil, true, fmt.Errorf("reply to request %d is for %s, want %s", h.Request, h.Op, e.op)
	}
	c, l := e.c, e.late
	f.clearLocked(e)
	if c != nil {
		c.reply = append(c.reply[:0], frame...)
		answerLocked(c, self)
		return nil, true, nil
	}
	return l, true, nil
}

func answerLocked(c, self *Call) {
	c.answered = true
	if c != self {
		c.done <- struct{}{}
	}
}

// answered reports whether c has been answered. It also empties c.done, so that the call can be
// reused.
func (f *flight) answered(c *Call) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !c.answered {
		return false
	}
	select {
	case <-c.done:
	default:
	}
	return true
}

// leave detaches c from its entry. It returns false if c was answered in the meantime.
func (f *flight) leave(c *Call, l *Late) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.answered {
		select {
		case <-c.done:
		default:
		}
		return false
	}
	if e := f.findLocked(c.id); e != nil {
		e.c, e.late = nil, l
		f.mu.orphans++
	}
	return true
}

// end closes the table: it refuses further requests and answers all callers with err. Requests
// that write into engine memory keep their entries, because the daemon may go on writing after
// the connection has failed; only a hang-up shows that it has stopped (see Attachment.hangup).
func (f *flight) end(err error) (first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.ended != nil {
		return false
	}
	f.mu.ended = err
	for i := range f.mu.entries {
		e := &f.mu.entries[i]
		if e.c == nil {
			continue
		}
		c := e.c
		c.err = fmt.Errorf("%s: %w", e.op, err)
		if c.Late.Memory {
			p := newPendingWrite(c.err, e.id)
			c.err = p
			e.c, e.late = nil, &Late{Memory: true, pending: p}
			f.mu.orphans++
		} else {
			f.clearLocked(e)
		}
		answerLocked(c, nil)
	}
	return true
}

// drain empties the table after end and returns its entries.
func (f *flight) drain() []*Late {
	f.mu.Lock()
	defer f.mu.Unlock()
	var left []*Late
	for i := range f.mu.entries {
		e := &f.mu.entries[i]
		if e.id == 0 {
			continue
		}
		if e.late != nil {
			left = append(left, e.late)
		}
		f.clearLocked(e)
	}
	return left
}

// unasked returns the abandoned requests that need a cancel but have had none, and marks them as
// cancelled.
func (f *flight) unasked() map[uint64]*Late {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found map[uint64]*Late
	for i := range f.mu.entries {
		e := &f.mu.entries[i]
		if e.late == nil || !e.late.Cancel || e.late.asked {
			continue
		}
		if found == nil {
			found = map[uint64]*Late{}
		}
		e.late.asked = true
		found[e.id] = e.late
	}
	return found
}

// askAgain clears the mark that unasked set on a request, because its cancel was not sent or
// failed.
func (f *flight) askAgain(id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.findLocked(id); e != nil && e.late != nil {
		e.late.asked = false
	}
}

// orphans returns the number of outstanding replies without a caller.
func (f *flight) orphans() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.orphans
}

// writing reports whether a request without a reply may write into engine memory.
func (f *flight) writing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.mu.entries, func(e entry) bool { return e.late != nil && e.late.Memory })
}
