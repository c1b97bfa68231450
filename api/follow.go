package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Parameters of a follower. It gives up a stream that is silent for followSilence, since the
// server then has missed three heartbeats.
const (
	followSilence = 3 * heartbeat
	followLine    = 64 << 10 // bytes of one line; an event's strings are bounded well below that
	followWaitMin = 250 * time.Millisecond
	followWaitMax = 30 * time.Second
)

// RecentEvents lists events in order: the newest ones, or the ones after q.After if it is set. The
// result more reports whether further events match.
func (c *Client) RecentEvents(ctx context.Context, q EventQuery) (list []Event, more bool, err error) {
	v := q.values()
	v.Set("poll", "true")
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	p, err := fetch[Page[Event]](ctx, c, eventsPath, v)
	return p.Items, p.Next != "", err
}

// Events calls f with each event after q.After that matches the query. It ignores q.Limit. It
// returns when ctx ends, or when f returns an error, and then returns that error. When the stream
// breaks, Events reconnects and continues after the last event; if the server does not have the
// missed events any more, f gets an EventLost. Events calls reached with false when it cannot
// reconnect, and with true when it can again; nil = it does not report that. Events returns an
// error if the first connection fails, or if the server refuses the request.
func (c *Client) Events(ctx context.Context, q EventQuery, f func(Event) error, reached func(bool)) error {
	if reached == nil {
		reached = func(bool) {}
	}
	s := follower{client: c, query: q, tell: f, reached: reached}
	for wait := followWaitMin; ; wait = min(2*wait, followWaitMax) {
		began := time.Now()
		s.open = false
		err := s.connect(ctx)
		var said *Problem
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case s.failed != nil:
			return s.failed
		case !s.once, errors.As(err, &said) && said.Status < http.StatusInternalServerError:
			return err
		case !s.open && !s.lost:
			s.lost = true
			s.reached(false)
		case time.Since(began) > wait:
			wait = followWaitMin
		}
		if pause(ctx, wait); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (q *EventQuery) values() url.Values {
	v := url.Values{}
	if len(q.Kinds) > 0 {
		v.Set("kind", strings.Join(q.Kinds, ","))
	}
	if q.Tenant != "" {
		v.Set("tenant", q.Tenant)
	}
	if q.After != nil {
		v.Set("after", strconv.FormatUint(*q.After, 10))
	}
	return v
}

// follower is the state of a call of Client.Events.
type follower struct {
	client  *Client
	query   EventQuery
	tell    func(Event) error
	reached func(bool)
	once    bool   // the server has accepted a request
	open    bool   // the server has accepted the latest request
	lost    bool   // reached was called with false last
	last    uint64 // id of the last event read; 0 = none
	failed  error  // why it must not reconnect; nil = reconnect
}

// connect reads one stream to its end.
func (s *follower) connect(ctx context.Context) error {
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(followSilence, cancel)
	defer silence.Stop()
	req, err := s.client.request(streaming, http.MethodGet, eventsPath, s.query.values(), http.Header{"Accept": {"text/event-stream"}}, nil)
	if err != nil {
		return fmt.Errorf("follow events: %w", err)
	}
	// A separate http.Client, since the timeout of the Client's own one would end the stream.
	res, err := (&http.Client{Transport: s.client.http.Transport}).Do(req)
	if err != nil {
		return s.client.unanswered(ctx, err)
	}
	defer res.Body.Close()
	if media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || media != "text/event-stream" {
		body, err := io.ReadAll(io.LimitReader(res.Body, followLine))
		if err == nil {
			err = s.client.decode(res, body, new(json.RawMessage))
		}
		if err == nil {
			err = errors.New("answered with a document, not a stream")
		}
		return fmt.Errorf("follow events: %w", err)
	}
	s.once, s.open = true, true
	if s.lost {
		s.lost = false
		s.reached(true)
	}
	lines := bufio.NewReaderSize(res.Body, followLine)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return s.client.unanswered(ctx, err)
		}
		silence.Reset(followSilence)
		if err := s.line(line); err != nil {
			return err
		}
	}
}

// line processes one line of a stream. It records the id of an event after f has received the
// event.
func (s *follower) line(line []byte) (err error) {
	name, value, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(": "))
	switch string(name) {
	case "id":
		s.last, err = strconv.ParseUint(string(value), 10, 64)
	case "data":
		var e Event
		if err = json.Unmarshal(value, &e); err == nil {
			err = s.tell(e)
		}
	case "":
		if after := s.last; after != 0 {
			s.query.After = &after
		}
	}
	s.failed = err
	return err
}
