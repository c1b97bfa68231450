package driver

import "unsafe"

const (
	streamNonBlocking = 1 // the stream does not wait for the legacy default stream
	waitGreaterEqual  = 0 // CU_STREAM_WAIT_VALUE_GEQ
	writeWithBarrier  = 0 // CU_STREAM_WRITE_VALUE_DEFAULT
)

// StreamCreate creates a stream that runs concurrently with the default stream.
func (a *API) StreamCreate() (Stream, error) {
	var s Stream
	r := call(a.streamCreate, uintptr(unsafe.Pointer(&s)), streamNonBlocking)
	return s, fail("cuStreamCreate", r)
}

// mostUrgent is a higher priority than any device has. Drivers use the highest that they
// know.
const mostUrgent = -1 << 20

// StreamCreateUrgent creates a stream of the highest priority. Its work runs even if a few
// other streams wait in StreamWaitValue64GEQ, but not if many do: see order.MostWaiting.
func (a *API) StreamCreateUrgent() (Stream, error) {
	var s Stream
	priority := int32(mostUrgent)
	r := call(a.streamCreateWithPriority, uintptr(unsafe.Pointer(&s)), streamNonBlocking, uintptr(priority))
	return s, fail("cuStreamCreateWithPriority", r)
}

// StreamDestroy destroys a stream. Its running work still completes.
func (a *API) StreamDestroy(s Stream) error {
	return fail("cuStreamDestroy_v2", call(a.streamDestroy, uintptr(s)))
}

// StreamSynchronize waits until all work that was enqueued so far has ended. It returns the
// error of any failure on the stream.
func (a *API) StreamSynchronize(s Stream) error {
	return fail("cuStreamSynchronize", call(a.streamSynchronize, uintptr(s)))
}

// StreamQuery reports whether all work that was enqueued so far has ended.
func (a *API) StreamQuery(s Stream) (done bool, err error) {
	return answered("cuStreamQuery", call(a.streamQuery, uintptr(s)))
}

// answered interprets the result of a query, for which NotReady is no failure.
func answered(name string, r Result) (bool, error) {
	if r == NotReady {
		return false, nil
	}
	return r == Success, fail(name, r)
}

// EventCreate creates an event.
func (a *API) EventCreate(flags EventFlags) (Event, error) {
	var e Event
	r := call(a.eventCreate, uintptr(unsafe.Pointer(&e)), uintptr(flags))
	return e, fail("cuEventCreate", r)
}

// EventDestroy destroys an event that EventCreate created or IPCOpenEvent opened.
func (a *API) EventDestroy(e Event) error {
	return fail("cuEventDestroy_v2", call(a.eventDestroy, uintptr(e)))
}

// EventRecord enqueues the event after all work that is on the stream so far.
func (a *API) EventRecord(e Event, s Stream) error {
	return fail("cuEventRecord", call(a.eventRecord, uintptr(e), uintptr(s)))
}

// EventQuery reports whether the stream has passed the last EventRecord of e. An event that
// was never recorded counts as passed.
func (a *API) EventQuery(e Event) (done bool, err error) {
	return answered("cuEventQuery", call(a.eventQuery, uintptr(e)))
}

// EventSynchronize waits until EventQuery would return true.
func (a *API) EventSynchronize(e Event) error {
	return fail("cuEventSynchronize", call(a.eventSynchronize, uintptr(e)))
}

// EventElapsed returns the milliseconds between two events, with a resolution of half a
// microsecond. Both must have been created with timing and must have passed.
func (a *API) EventElapsed(start, end Event) (float32, error) {
	var ms float32
	r := call(a.eventElapsed, uintptr(unsafe.Pointer(&ms)), uintptr(start), uintptr(end))
	return ms, fail("cuEventElapsedTime", r)
}

// StreamWaitEvent makes later work on s wait for the last EventRecord of e, even if another
// process called EventRecord.
func (a *API) StreamWaitEvent(s Stream, e Event) error {
	return fail("cuStreamWaitEvent", call(a.streamWaitEvent, uintptr(s), uintptr(e), 0))
}

// IPCEventHandle returns a handle with which other processes open the event e. The event
// must have been created with EventInterprocess|EventNoTiming.
func (a *API) IPCEventHandle(e Event) ([IPCHandleBytes]byte, error) {
	var h [IPCHandleBytes]byte
	r := call(a.ipcGetEventHandle, uintptr(unsafe.Pointer(&h)), uintptr(e))
	return h, fail("cuIpcGetEventHandle", r)
}

// IPCOpenEvent opens an event of another process. EventDestroy closes it. The driver
// resolves the handle through /dev/shm, which both processes must share.
func (a *API) IPCOpenEvent(h [IPCHandleBytes]byte) (Event, error) {
	var e Event
	r := a.ipcOpenEventHandle(&e, ipcHandleOf(h))
	return e, fail("cuIpcOpenEventHandle", r)
}

// StreamWriteValue64 enqueues a store of v to p, which must be aligned to 8 bytes. The
// store becomes visible after everything that was enqueued on s before it.
func (a *API) StreamWriteValue64(s Stream, p DevicePtr, v uint64) error {
	r := call(a.streamWrite64, uintptr(s), uintptr(p), uintptr(v), writeWithBarrier)
	return fail("cuStreamWriteValue64_v2", r)
}

// StreamWaitValue64GEQ makes later work on s wait until the value at p is at least v:
// (int64)(*p - v) >= 0, so that a sequence may wrap around. p must be aligned to 8 bytes.
// Nothing but the value ends the wait.
func (a *API) StreamWaitValue64GEQ(s Stream, p DevicePtr, v uint64) error {
	r := call(a.streamWait64, uintptr(s), uintptr(p), uintptr(v), waitGreaterEqual)
	return fail("cuStreamWaitValue64_v2", r)
}
