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

const eventsPath = "/api/v1/events"

// maxEventBytes bounds one line of a stream.
const maxEventBytes = 1 << 20

// Bounds of the time between two attempts at a stream.
const (
	leastRetry = 250 * time.Millisecond
	mostRetry  = 30 * time.Second
)

func (q *EventQuery) values() url.Values {
	v := url.Values{}
	setNonEmpty(v, "kind", strings.Join(q.Kinds, ","))
	setNonEmpty(v, "tenant", q.Tenant)
	if q.After != nil {
		v.Set("after", strconv.FormatUint(*q.After, 10))
	}
	return v
}

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

// Events calls f with each event that passes the query, until ctx ends or f answers an
// error, which it returns. A stream that ends is asked for again, from after its last
// event on. What the node says against the question, and that it cannot be reached for
// the first time, are returned.
func (c *Client) Events(ctx context.Context, q EventQuery, f func(Event) error) error {
	reached, wait := false, leastRetry
	for {
		var stopped error
		err := c.follow(ctx, q, func(e Event) error {
			if e.ID != 0 {
				q.After = &e.ID
			}
			wait = leastRetry
			stopped = f(e)
			return stopped
		}, &reached)
		switch {
		case stopped != nil:
			return stopped
		case ctx.Err() != nil:
			return ctx.Err()
		case !reached || !errors.Is(err, ErrUnavailable):
			return err
		}
		again := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			again.Stop()
			return ctx.Err()
		case <-again.C:
		}
		wait = min(2*wait, mostRetry)
	}
}

// follow reads one stream to its end.
func (c *Client) follow(ctx context.Context, q EventQuery, f func(Event) error, reached *bool) error {
	req, err := c.request(ctx, clientCall{method: http.MethodGet, path: eventsPath, query: q.values()})
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	// The client's own has a limit for the whole of an answer.
	res, err := (&http.Client{Transport: c.http.Transport}).Do(req)
	if err != nil {
		return fmt.Errorf("follow events: %w: %w", err, ErrUnavailable)
	}
	defer res.Body.Close()
	if media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); media != "text/event-stream" {
		answer, err := io.ReadAll(io.LimitReader(res.Body, maxEventBytes))
		if err == nil {
			err = decodeAnswer(res, answer, new(json.RawMessage))
		}
		if err == nil {
			err = errors.New("it answers no stream of events")
		}
		return fmt.Errorf("follow events: %w", err)
	}
	*reached = true
	err = readEvents(res.Body, f)
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("follow events: the stream has ended: %w", ErrUnavailable)
	}
	return err
}

// readEvents reads a stream as the HTML standard has it, of which nodes use the fields
// event, data and id, and comments.
func readEvents(r io.Reader, f func(Event) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEventBytes)
	var kind string
	var data []byte
	for lines.Scan() {
		name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(lines.Bytes()) == 0:
			if len(data) > 0 {
				e, err := eventOf(kind, data)
				if err == nil {
					err = f(e)
				}
				if err != nil {
					return err
				}
			}
			kind, data = "", data[:0]
		case string(name) == "event":
			kind = string(value)
		case string(name) == "data":
			if len(data) > 0 {
				data = append(data, '\n')
			}
			if data = append(data, value...); len(data) > maxEventBytes {
				return fmt.Errorf("an event has more than %d bytes", maxEventBytes)
			}
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("%w: %w", err, io.ErrUnexpectedEOF)
	}
	return lines.Err()
}

func eventOf(kind string, data []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(data, &e); err != nil {
		return e, fmt.Errorf("an event is no JSON: %w", err)
	}
	if e.Kind == "" {
		e.Kind = kind
	}
	return e, nil
}
