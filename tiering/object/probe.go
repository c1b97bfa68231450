package object

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Step is one operation of a probe.
type Step struct {
	Name string // list, write, overwrite, read, range, delete
	Took time.Duration
	Err  error
}

// probeDir is the directory of probes below the prefix. Passes ignore and keep its contents.
const probeDir = "probe/"

// probeBytes is the size of a probe's object.
const probeBytes = 64 << 10

// Probe performs the operations of a Store on a new object, and returns the results.
// It lists, writes, tries to overwrite (which has to fail), reads all bytes and a range, and
// deletes. If listing fails, it stops. If writing fails, it only deletes. Each step has the
// timeout Config.AnswerTime. The breaker neither prevents nor counts the requests.
func (s *Store) Probe(ctx context.Context) []Step {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	p := &probe{Store: s, name: s.cfg.Prefix + probeDir + hex.EncodeToString(id[:]), body: make([]byte, probeBytes)}
	_, _ = rand.Read(p.body)
	if !p.do(ctx, "list", p.list) {
		return p.steps
	}
	if p.do(ctx, "write", p.write) {
		p.do(ctx, "overwrite", p.overwrite)
		p.do(ctx, "read", func(ctx context.Context) error { return p.read(ctx, 0, probeBytes) })
		p.do(ctx, "range", func(ctx context.Context) error { return p.read(ctx, 1000, 5000) })
	}
	p.do(context.WithoutCancel(ctx), "delete", p.delete)
	return p.steps
}

type probe struct {
	*Store
	name  string
	body  []byte
	steps []Step
}

func (p *probe) do(ctx context.Context, name string, try func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.AnswerTime)
	defer cancel()
	began := time.Now()
	err := try(ctx)
	p.steps = append(p.steps, Step{name, time.Since(began), err})
	return err == nil
}

func (p *probe) list(ctx context.Context) error {
	for o := range p.client.core.ListObjectsIter(ctx, p.cfg.Bucket, minio.ListObjectsOptions{Prefix: p.cfg.Prefix + formatDir, Recursive: true, MaxKeys: 1}) {
		if o.Err != nil {
			return p.client.failure(ctx, "list", o.Err)
		}
		break
	}
	return ctx.Err()
}

func (p *probe) put(ctx context.Context, replace bool) error {
	o := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true, DisableContentSha256: true}
	if !replace {
		o.SetMatchETagExcept("*")
	}
	_, err := p.client.core.PutObject(ctx, p.cfg.Bucket, p.name, bytes.NewReader(p.body), probeBytes, "", "", o)
	if err != nil {
		return p.client.failure(ctx, "write", err)
	}
	return nil
}

// write writes the object, which does not exist yet.
func (p *probe) write(ctx context.Context) error {
	err := p.put(ctx, false)
	if errors.Is(err, errUnconditional) {
		err = p.put(ctx, true)
	}
	return err
}

// overwrite checks that the server refuses to overwrite the object.
func (p *probe) overwrite(ctx context.Context) error {
	switch err := p.put(ctx, false); {
	case errors.Is(err, errThere):
		return nil
	case err == nil:
		return fmt.Errorf("the server overwrites what a conditional write should leave, so that nodes that write one object at once both pay for it: %w", tier.ErrUnavailable)
	case errors.Is(err, errUnconditional):
		return fmt.Errorf("the server has no conditional writes, so that each object costs one request more: %w", err)
	default:
		return err
	}
}

func (p *probe) read(ctx context.Context, off, n int64) error {
	var o minio.GetObjectOptions
	if err := o.SetRange(off, off+n-1); err != nil {
		return err
	}
	body, _, _, err := p.client.core.GetObject(ctx, p.cfg.Bucket, p.name, o)
	if err != nil {
		return p.client.failure(ctx, "read", err)
	}
	defer func() { _ = body.Close() }()
	got, err := io.ReadAll(io.LimitReader(body, probeBytes+1))
	switch {
	case err != nil:
		return p.client.failure(ctx, "read", err)
	case !bytes.Equal(got, p.body[off:off+n]):
		return fmt.Errorf("%d bytes at %d came back as %d others: %w", n, off, len(got), tier.ErrCorrupt)
	}
	return nil
}

func (p *probe) delete(ctx context.Context) error {
	if err := p.client.core.RemoveObject(ctx, p.cfg.Bucket, p.name, minio.RemoveObjectOptions{}); err != nil {
		return p.client.failure(ctx, "delete", err)
	}
	return nil
}
