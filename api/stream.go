package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// Parameters of event streams. Guesses, except for the cost of ten streams (BenchmarkStreams).
const (
	heartbeat   = 15 * time.Second       // interval of comments while nothing happens
	streamPause = 100 * time.Millisecond // between writes, so that many events cost little more than one
	streamBatch = 128                    // events per write
	// maxStrangers bounds the streams over untrusted listeners. The remaining streams are left
	// for the node's owner.
	maxStrangers = 24
	streamRetry  = 2 * time.Second // delay before a browser reconnects
)

// Marks of requests.
const (
	streaming = "spliced.streaming" // its response is a stream, and its connection has given up its place
	ofOwner   = "spliced.owner"     // it came over a trusted listener
)

// stream sends events as they happen (server-sent events), until the client disconnects or
// the server stops.
//
// The connection gives up its place in the listener, so that streams take no places from other
// requests; the source of events bounds the number of streams. Without a place, the connection
// cannot serve another request, so it ends with the stream.
func (s *Server) stream(ctx *fasthttp.RequestCtx, q EventQuery) error {
	h := &ctx.Response.Header
	h.SetContentType("text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // nginx passes on data at once
	if ctx.IsHead() {
		return nil
	}
	leave := func() {}
	if ctx.UserValue(ofOwner) == nil {
		leave = func() { s.strangers.Add(-1) }
		if s.strangers.Add(1) > maxStrangers {
			leave()
			return newProblem(fasthttp.StatusServiceUnavailable, CodeUnavailable, fmt.Sprintf("%d clients follow events over TCP, the maximum", maxStrangers))
		}
	}
	f, err := s.happened.Follow(q)
	if err != nil {
		leave()
		return fmt.Errorf("follow events: %w", err)
	}
	ctx.SetConnectionClose()
	ctx.SetUserValue(streaming, true)
	s.streams.Add(1)
	conn := ctx.Conn()
	ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
		defer s.streams.Done()
		defer leave()
		defer f.Close()
		defer func() {
			if r := recover(); r != nil {
				s.log.Error().Interface("panic", r).Stack().Msg("a stream of events failed")
			}
		}()
		s.follow(conn, w, f)
	})
	return nil
}

// follow writes events until a write fails.
func (s *Server) follow(conn net.Conn, w *bufio.Writer, f Follower) {
	ctx, cancel := context.WithCancel(s.stopping)
	defer cancel()
	defer watchEnd(conn, cancel)()
	// When the server stops, it waits only closeTimeout for a client that does not read.
	hurry := func() { _ = conn.SetWriteDeadline(time.Now().Add(closeTimeout)) }
	defer context.AfterFunc(s.stopping, hurry)()
	send := func() bool {
		_ = conn.SetWriteDeadline(time.Now().Add(s.patience)) // after an error the write fails, too
		if s.stopping.Err() != nil {
			hurry()
		}
		return ctx.Err() == nil && w.Flush() == nil
	}
	// The first bytes are sent at once, so that the client knows that it is served. They
	// contain an id, so that the client misses nothing if the stream ends before an event.
	fmt.Fprintf(w, "retry: %d\n", streamRetry.Milliseconds())
	writePlace(w, f)
	events := make([]Event, 0, streamBatch)
	var line []byte
	for send() {
		if n := len(events); 0 < n && n < cap(events)/2 { // a fuller batch means that more events wait
			pause(ctx, streamPause)
		}
		var err error
		if events, err = f.Next(ctx, s.heartbeat, events[:0]); err != nil {
			return
		}
		if len(events) == 0 {
			fmt.Fprint(w, ": nothing happens\n")
			writePlace(w, f)
		}
		for i := range events {
			if line, err = appendEvent(line[:0], &events[i]); err != nil {
				s.log.Error().Err(err).Msg("cannot encode an event")
				continue
			}
			if _, err = w.Write(line); err != nil {
				return
			}
		}
	}
}

// writePlace writes the id after which a reconnecting client continues.
func writePlace(w *bufio.Writer, f Follower) {
	if last := f.Last(); last != 0 {
		fmt.Fprintf(w, "id: %d\n", last)
	}
	fmt.Fprint(w, "\n")
}

// appendEvent appends the lines of one event.
func appendEvent(b []byte, e *Event) ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return b, fmt.Errorf("event %d: %w", e.ID, err)
	}
	b = strconv.AppendUint(append(b, "id: "...), e.ID, 10)
	b = append(append(b, "\nevent: "...), e.Kind...)
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...), nil
}

// watchEnd calls the function ended when the client closes its end of the connection, or sends
// data, which an honest client does not. The returned function ends the watch. After watchEnd
// nothing else may read from the connection.
func watchEnd(conn net.Conn, ended func()) (stop func()) {
	done := make(chan struct{})
	_ = conn.SetReadDeadline(time.Time{})
	go func() {
		defer close(done)
		var b [1]byte
		_, _ = conn.Read(b[:])
		ended()
	}()
	return func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		<-done
	}
}
