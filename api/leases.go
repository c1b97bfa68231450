package api

import (
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// Lease is an object that one client may read. Leases of slots, which hold results of compose,
// rotate, assemble and replay, are not listed.
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
	Expires    time.Time `json:"expires"` // in the past: its memory is quarantined until the client releases it
	Bytes      int64     `json:"bytes"`   // of the object, over all ranks; on a GPU of one rank
	Device     string    `json:"device"`  // the GPU's UUID; empty = host memory
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
	q := LeaseQuery{Tenant: p.name("tenant"), Connection: p.number("connection", 63, "a number"), Limit: p.limit()}
	if after := p.number("cursor", 63, "a number"); after != nil {
		q.After = *after
	}
	if err := p.done(); err != nil {
		return err
	}
	limit := q.Limit
	q.Limit++ // one more shows whether there is a next page
	items, err := s.shown().Control.Leases(q)
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	return writeJSON(ctx, pageOf(items, limit, func(l *Lease) string { return strconv.FormatUint(l.Lease, 10) }))
}
