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

// How a client follows. A stream that says nothing for followSilence, in which the server
// has let three heartbeats go, is given up.
const (
	followSilence = 3 * heartbeat
	followLine    = 64 << 10 // bytes of one line; an event's strings are bounded well below
	followWaitMin = 250 * time.Millisecond
	followWaitMax = 30 * time.Second
)

// RecentEvents lists what happened, in its order: the newest, or with After what follows
// that event. more: there is more behind it.
func (c *Client) RecentEvents(ctx context.Context, q EventQuery) (list []Event, more bool, err error) {
	v := q.values()
	v.Set("poll", "true")
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	p, err := fetch[Page[Event]](ctx, c, eventsPath, v)
	return p.Items, p.Next != "", err
}

// Events calls f with each event that passes the query, from its After on, until ctx ends
// or f answers an error, which it returns. Limit means nothing. Whenever the stream ends it
// connects again, and goes on after the last event that it had: where it cannot, f is given
// an EventLost. What the server says against the question, and that it cannot be reached
// for the first time, are returned.
func (c *Client) Events(ctx context.Context, q EventQuery, f func(Event) error) error {
	s := follower{client: c, query: q, tell: f}
	for wait := followWaitMin; ; wait = min(2*wait, followWaitMax) {
		began := time.Now()
		err := s.connect(ctx)
		var said *Problem
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case s.failed != nil:
			return s.failed
		case !s.once, errors.As(err, &said) && said.Status < http.StatusInternalServerError:
			return err
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

// follower is a call of Client.Events.
type follower struct {
	client *Client
	query  EventQuery
	tell   func(Event) error
	once   bool   // it has been answered
	last   uint64 // the id that was read last; 0 = none
	failed error  // why it ends
}

// connect reads one stream to its end.
func (s *follower) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(followSilence, cancel)
	defer silence.Stop()
	req, err := s.client.request(ctx, http.MethodGet, eventsPath, s.query.values(), http.Header{"Accept": {"text/event-stream"}}, nil)
	if err != nil {
		return fmt.Errorf("follow events: %w", err)
	}
	// The client's own has a limit for the whole of an answer.
	res, err := (&http.Client{Transport: s.client.http.Transport}).Do(req)
	if err != nil {
		return fmt.Errorf("follow events: %w: %w", err, ErrUnavailable)
	}
	defer res.Body.Close()
	if media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || media != "text/event-stream" {
		body, err := io.ReadAll(io.LimitReader(res.Body, followLine))
		if err == nil {
			err = decodeAnswer(res, body, new(json.RawMessage))
		}
		if err == nil {
			err = errors.New("answered with a document, not a stream")
		}
		return fmt.Errorf("follow events: %w", err)
	}
	s.once = true
	lines := bufio.NewReaderSize(res.Body, followLine)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("follow events: %w: %w", err, ErrUnavailable)
		}
		silence.Reset(followSilence)
		if err := s.line(line); err != nil {
			return err
		}
	}
}

// line takes one line of a stream. An id counts once its event was told.
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
