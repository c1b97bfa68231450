package api

import (
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// Lease is what one client may read. Slots, which are leases of results, are not among
// them.
type Lease struct {
	Lease      uint64    `json:"lease"`
	Object     string    `json:"object"` // segment or checkpoint
	Key        Digest    `json:"key"`
	Tenant     string    `json:"tenant"`
	Profile    uint32    `json:"profile"`
	Client     string    `json:"client"`
	Connection uint64    `json:"connection"`
	Rank       int       `json:"rank"`
	Since      time.Time `json:"since"`
	Expires    time.Time `json:"expires"` // past: its memory is quarantined until the client lets go
	Bytes      int64     `json:"bytes"`   // of the object, over all ranks; on a GPU of the rank
	Device     string    `json:"device"`  // the GPU's UUID; empty = of memory
}

// LeaseQuery selects a page of leases in ascending order of ids. Zero fields select all.
type LeaseQuery struct {
	Tenant     string
	Connection *uint64
	After      uint64 // ids greater than this one
	Limit      int
}

func (s *Server) listLeases(ctx *fasthttp.RequestCtx, _ string) error {
	p := paramsOf(ctx)
	q := LeaseQuery{Tenant: p.name("tenant"), Connection: p.number("connection"), Limit: p.limit()}
	if after := p.number("cursor"); after != nil {
		q.After = *after
	}
	if err := p.done(); err != nil {
		return err
	}
	limit := q.Limit
	q.Limit++ // one more tells whether there is a next page
	items, err := s.shown().Control.Leases(q)
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	page := Page[Lease]{Items: orEmpty(items)}
	if len(items) > limit {
		page.Items, page.Next = items[:limit], strconv.FormatUint(items[limit-1].Lease, 10)
	}
	return writeJSON(ctx, page)
}

// number reads a decimal number; nil = not given.
func (p *params) number(name string) *uint64 {
	v, ok := p.text(name)
	if !ok {
		return nil
	}
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil {
		p.refuse(name, "%q is not a number", v)
		return nil
	}
	return &n
}
