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
)

// EventLost is the kind of what a client gets that fell behind: Tokens is how many events
// it has missed.
const EventLost = "lost"

// maxEventBytes bounds one line of a stream.
const maxEventBytes = 1 << 20

// EventQuery selects events. Zero fields select all.
type EventQuery struct {
	After  uint64 // only those with a greater id
	Kinds  []string
	Tenant string
}

func (q *EventQuery) values() url.Values {
	v := url.Values{}
	setNonEmpty(v, "kind", strings.Join(q.Kinds, ","))
	setNonEmpty(v, "tenant", q.Tenant)
	if q.After > 0 {
		v.Set("after", strconv.FormatUint(q.After, 10))
	}
	return v
}

// Events lists those that the node still has.
func (c *Client) Events(ctx context.Context, q EventQuery) ([]Event, error) {
	v := q.values()
	v.Set("poll", "1")
	p, err := fetch[Page[Event]](ctx, c, "/api/v1/events", v)
	return p.Items, err
}

// FollowEvents gives f each event that passes the query, first those that the node still
// has, until the context or the connection ends or f fails. The timeout of the client is
// not that of the stream. A connection that ends is ErrUnavailable: whoever goes on asks
// for what came after the last event.
func (c *Client) FollowEvents(ctx context.Context, q EventQuery, f func(Event) error) error {
	const path = "/api/v1/events"
	req, err := c.request(ctx, clientCall{method: http.MethodGet, path: path, query: q.values()})
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	if q.After > 0 {
		req.Header.Set("Last-Event-ID", strconv.FormatUint(q.After, 10))
	}
	res, err := (&http.Client{Transport: c.http.Transport}).Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("GET %s: %w: %w", path, err, ErrUnavailable)
	}
	defer res.Body.Close()
	if media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); media != "text/event-stream" {
		answer, err := io.ReadAll(io.LimitReader(res.Body, maxEventBytes))
		if err == nil {
			var none json.RawMessage
			err = decodeAnswer(res, answer, &none)
		}
		if err == nil {
			err = errors.New("it answers no stream of events")
		}
		return fmt.Errorf("GET %s: %w", path, err)
	}
	err = readEvents(res.Body, f)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil, errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("GET %s: the stream has ended: %w", path, ErrUnavailable)
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
	if kind == EventLost {
		var lost struct {
			Lost int `json:"lost"`
		}
		// Only the number is told, in an object or by itself.
		if json.Unmarshal(data, &lost) != nil || lost.Lost == 0 {
			lost.Lost, _ = strconv.Atoi(strings.Trim(string(data), `"`))
		}
		return Event{Kind: kind, Tokens: lost.Lost, Text: fmt.Sprintf("%d events are lost: they were not read in time", lost.Lost)}, nil
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, fmt.Errorf("an event is no JSON: %w", err)
	}
	if e.Kind == "" {
		e.Kind = kind
	}
	return e, nil
}
