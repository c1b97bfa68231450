package network

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// library is what engines under load have published, for the others to fetch.
type library struct {
	mu   sync.Mutex
	docs []*document // the newest; at most libraryMost
	all  int
}

const libraryMost = 40

func (l *library) add(d *document) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all++
	if l.docs = append(l.docs, d); len(l.docs) > libraryMost {
		l.docs = l.docs[1:]
	}
}

func (l *library) any() *document {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.docs) == 0 {
		return nil
	}
	return l.docs[rand.IntN(len(l.docs))]
}

// load has an engine publish and fetch until the context ends. Its calls may fail, as
// they do while its daemon is restarted, but not last.
func (n *node) load(ctx context.Context, l *library, failed *atomic.Int64) {
	for ctx.Err() == nil {
		d := newDocument(100)
		if n.put(d) == nil {
			l.add(d)
		} else {
			failed.Add(1)
		}
		for range 3 {
			if d := l.any(); d != nil {
				_ = n.sees(d)
				_ = n.fetch(d, time.Second)
			}
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestAllNodesAreRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	disk := func(n *node) []string {
		return []string{"-disk=" + filepath.Join(b.dir, n.name, "disk"), "-disk-size=64MiB", "-disk-private=8MiB", "-disk-slab=4MiB", "-disk-reserve=0B"}
	}
	for _, n := range b.nodes {
		n.launch(disk(n)...)
	}
	for _, n := range b.nodes {
		n.open()
	}
	b.joined()
	ctx, stop := context.WithCancel(context.Background())
	var busy sync.WaitGroup
	var l library
	var failed atomic.Int64
	for _, n := range b.nodes {
		busy.Go(func() { n.load(ctx, &l, &failed) })
	}
	var ends, returns []time.Duration
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		for _, n := range b.nodes {
			before := l.count()
			eventually(t, "the load goes on", func() bool { return l.count() > before+10 })
			ends = append(ends, n.end(signal))
			began := time.Now()
			n.launch(disk(n)...)
			returns = append(returns, within(t, patience, "the node is back", func() bool { return n.using() == len(b.nodes)-1 }))
			b.joined()
			for _, other := range b.nodes {
				if other != n {
					eventually(t, "the others work with the new daemon", func() bool {
						m := other.member(n.name)
						return m != nil && m.InUse && !m.Started.Before(began.Truncate(time.Millisecond))
					})
				}
			}
			if took := time.Since(began); took > healBound {
				t.Errorf("%s is a member for all %v after %v", n.name, took, signal)
			}
		}
	}
	stop()
	busy.Wait()
	took := b.healed(time.Now(), b.nodes...)
	fetched, missed := 0, 0
	for _, n := range b.nodes {
		fetched, missed = fetched+n.fetched, missed+n.missed
		if n.fetched == 0 {
			t.Errorf("%s has fetched nothing", n.name)
		}
	}
	report(t, "3 nodes, each by SIGTERM and by SIGKILL: a daemon ends within %v, works with the others within %v; %d segments published, %d leased right, %d missed, %d puts failed; new ones seen %.1f s after the last; longest call %v",
		quantile(ends, 100), quantile(returns, 100), l.count(), fetched, missed, failed.Load(), took.Seconds(), b.longest())
}

func (l *library) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}
