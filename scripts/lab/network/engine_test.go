package network

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// model has one layer and 4.25 KiB a token.
var model = profiletest.New(profiletest.Wide(profile.F32))

// document is a segment. Its bytes follow from its key, so that who has it can tell
// whether they are right without having published it.
type document struct {
	spec   profile.SegmentSpec
	tokens []uint32
	key    profile.SegmentKey
}

var documents atomic.Uint32

// newDocument makes one that nobody has published.
func newDocument(tokens int) *document {
	d := &document{spec: profile.FirstSpec(tokens), tokens: make([]uint32, tokens)}
	for i := range d.tokens {
		d.tokens[i] = rand.Uint32N(1 << 16)
	}
	d.tokens[0] = documents.Add(1)
	d.key = model.SegmentKey(nil, d.spec, d.tokens)
	return d
}

// content gives the bytes of all parts, in order.
func (d *document) content() *rand.ChaCha8 {
	return rand.NewChaCha8(sha256.Sum256(d.key[:]))
}

// right reports whether a lease has the document's bytes.
func (d *document) right(l *connector.Lease) bool {
	content, want := d.content(), []byte(nil)
	for i, p := range l.Layout().Parts {
		if int64(len(want)) < p.Len {
			want = make([]byte, p.Len)
		}
		_, _ = content.Read(want[:p.Len])
		if !bytes.Equal(l.Part(i), want[:p.Len]) {
			return !l.Valid() // what is not valid any more promises nothing
		}
	}
	return true
}

// open attaches an engine to the daemon.
func (n *node) open() {
	n.t.Helper()
	var err error
	n.client, err = connector.Open(connector.Options{Socket: n.socket(), Name: "engine", Timeouts: connector.Timeouts{
		Lookup: patience, Transfer: patience, Attach: patience}})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { n.client.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err = n.client.WaitAttached(ctx); err == nil {
		if n.model, err = n.client.Register(model, connector.Binding{}); err == nil {
			err = n.model.WaitReady(ctx)
		}
	}
	if err != nil {
		n.t.Fatalf("%v\n%s", err, n.log)
	}
}

// timed makes a call of the engine's that has to end within a bound.
func (n *node) timed(what string, bound time.Duration, call func()) (took time.Duration) {
	n.t.Helper()
	began := time.Now()
	call()
	took = time.Since(began)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.longest = max(n.longest, took); took > bound+slack {
		n.t.Errorf("%s: %s took %v, its bound is %v", n.name, what, took, bound)
	}
	return took
}

// put publishes a document.
func (n *node) put(d *document) (err error) {
	content := d.content()
	fill := func(_ profile.Part, _ int, _ int64, dst []byte) error {
		_, err := content.Read(dst)
		return err
	}
	n.timed("put", 0, func() {
		_, err = n.model.Put(context.Background(), &connector.PutQuery{Spec: d.spec, Tokens: d.tokens, Source: connector.Source{Fill: fill}})
	})
	return err
}

// publish makes a document and publishes it.
func (n *node) publish(tokens int) *document {
	n.t.Helper()
	d := newDocument(tokens)
	if err := n.put(d); err != nil {
		n.t.Fatalf("%s: put: %v\n%s", n.name, err, n.log)
	}
	return d
}

// tier is where the node believes a document to be; false = nowhere.
func (n *node) tier(d *document) (tier uint8, hit bool) {
	var found connector.Found
	n.timed("match", 0, func() {
		// An error is a miss, as while the daemon is restarted.
		_ = n.model.Match(context.Background(), &connector.MatchQuery{Keys: []profile.SegmentKey{d.key}}, &found)
	})
	return found.Segments[0].Tier, found.Segments[0].Hit()
}

func (n *node) sees(d *document) bool {
	_, hit := n.tier(d)
	return hit
}

// fetch leases a document and compares its bytes: wrong ones fail the test. What does not
// come within wait is an error.
func (n *node) fetch(d *document, wait time.Duration) error {
	n.t.Helper()
	_, err := n.lease(d, wait)
	return err
}

// lease is fetch, and tells how long the acquire took.
func (n *node) lease(d *document, wait time.Duration) (took time.Duration, err error) {
	n.t.Helper()
	var rows []connector.Acquired
	took = n.timed("acquire", wait, func() {
		rows, err = n.model.Acquire(context.Background(), []profile.SegmentKey{d.key}, connector.AcquireOptions{Wait: wait})
	})
	if err == nil {
		err = rows[0].Err
	}
	if err == nil && rows[0].Lease == nil {
		err = errNone
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.missed++
		return took, err
	}
	defer rows[0].Lease.Release()
	if !d.right(rows[0].Lease) {
		n.t.Errorf("%s: WRONG BYTES of %x", n.name, d.key[:4])
		return took, errors.New("wrong bytes")
	}
	n.fetched++
	return took, nil
}

// mustFetch fetches again while nothing comes: a copy that a match has begun to fetch may
// be between two places.
func (n *node) mustFetch(d *document) {
	n.t.Helper()
	var err error
	for began := time.Now(); time.Since(began) < patience; {
		if err = n.fetch(d, patience/2); err == nil {
			return
		}
		<-time.After(poll)
	}
	n.t.Fatalf("%s cannot fetch a document: %v\n%s", n.name, err, n.log)
}
