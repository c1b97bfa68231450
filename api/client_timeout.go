package api

import "time"

// SetTimeout says how long each request may take, in place of a minute; 0 = as long as
// its context. Before the client is used. It does not hold for a stream of events.
func (c *Client) SetTimeout(d time.Duration) { c.http.Timeout = d }
