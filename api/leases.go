package api

import (
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// Lease is a client's right to read an object. Leases of slots, which hold results of compose,
// rotate, assemble and replay, are not listed.
type Lease struct {
	Lease      uint64    `json:"lease"` // id of the lease
	Object     string    `json:"object" enum:"segment,checkpoint"`
	Key        Digest    `json:"key"` // segment key or prefix hash
	Tenant     string    `json:"tenant"`
	Profile    uint32    `json:"profile"`
	Client     string    `json:"client"` // name of the client
	Connection uint64    `json:"connection"`
	Rank       int       `json:"rank"`
	Since      time.Time `json:"since"`
	Expires    time.Time `json:"expires"` // if it is past, the memory is quarantined until the client releases the lease
	Bytes      int64     `json:"bytes"`   // size of the object: over all ranks in host memory, of one rank on a GPU
	Device     string    `json:"device"`  // UUID of the GPU; empty = host memory
}

// LeaseQuery selects a page of leases in ascending order of ids. Zero fields do not restrict
// it.
type LeaseQuery struct {
	Tenant     string
	Connection *uint64
	After      uint64 // only greater ids
	Limit      int
}

func (from *Shown) listLeases(ctx *fasthttp.RequestCtx, _ string) error {
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
	items, err := from.Control.Leases(q)
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	return writeJSON(ctx, pageOf(items, limit, func(l *Lease) string { return strconv.FormatUint(l.Lease, 10) }))
}
