package object

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// listPage is the most objects that one request lists or deletes, which is S3's limit.
const listPage = 1000

// firstFaster is the factor by which the first pass lists faster than later ones, because
// the index is incomplete until it has ended.
const firstFaster = 10

// list runs passes until ctx ends.
func (s *Store) list(ctx context.Context) {
	p := &pass{store: s}
	for {
		err := p.run(ctx)
		wait := s.cfg.ListEvery
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// The next run continues where this one stopped, after a wait in which an
			// open breaker closes.
			s.cfg.Log.Warn().Str("tier", "object").Err(err).Msg("the bucket cannot be listed")
			s.counters.ListErrors.Add(1)
			wait = min(wait, s.cfg.BreakerMax)
			if !s.index.listed.Load() {
				wait = min(wait, 2*s.cfg.BreakerMin)
			}
		default:
			again := s.finish(p)
			p = &pass{store: s}
			if again {
				continue
			}
		}
		if pause(ctx, wait) != nil {
			return
		}
	}
}

// finish adopts the result of a pass. The result again is true if the prefix is over its
// budget, so that another pass has to delete the oldest objects at once.
func (s *Store) finish(p *pass) (again bool) {
	again = s.room.settle(p.bytes, &p.ages, s.cfg.Bytes, s.client.transport.serverNow())
	s.counters.Passes.Add(1)
	s.index.listed.Store(true) // last: writes may begin, and need to know the bytes
	return again
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pass is one listing of the whole prefix, in the order of tags. If the method run returns
// an error, the next call of run continues the pass with the shard in which it failed.
type pass struct {
	store *Store
	shard int      // the shard being listed; earlier ones are settled
	list  []uint64 // short tags of this shard
	doom  []string // names to be deleted, at most a page

	bytes int64 // of objects that are not deleted
	ages  ages
	// bytes and ages of the current shard, until it is settled.
	shardBytes int64
	shardAges  ages
}

// run lists until the end of the prefix, or an error. It waits if another pass is running.
func (p *pass) run(ctx context.Context) error {
	s := p.store
	select {
	case s.listing <- struct{}{}:
		defer func() { <-s.listing }()
	case <-ctx.Done():
		return fmt.Errorf("object: list: %w", ctx.Err())
	}
	err := p.all(ctx)
	s.settle(ctx, err)
	return err
}

func (p *pass) all(ctx context.Context) error {
	s := p.store
	p.reset()
	start := ""
	if p.shard > 0 {
		start = fmt.Sprintf("%s%s%02x/", s.cfg.Prefix, formatDir, p.shard)
	}
	s.index.begin(p.shard)
	listing, moved, stop := s.client.watch(ctx)
	defer stop()
	page := 0
	no := false
	for o := range s.client.core.ListObjectsIter(listing, s.cfg.Bucket, minio.ListObjectsOptions{
		Prefix: s.cfg.Prefix + formatDir, Recursive: true, StartAfter: start, MaxKeys: listPage, FetchOwner: &no,
	}) {
		if o.Err != nil {
			return s.client.failure(listing, "list", o.Err)
		}
		moved()
		if err := p.see(ctx, &o); err != nil {
			return err
		}
		if page++; page%listPage == 0 {
			if err := p.rest(ctx, moved); err != nil {
				return err
			}
		}
	}
	if err := listing.Err(); err != nil {
		return s.client.failure(listing, "list", err)
	}
	for p.shard < shards {
		p.settle()
	}
	return p.sweep(ctx)
}

// reset drops what was seen of the current shard.
func (p *pass) reset() {
	p.list, p.doom, p.shardBytes, p.shardAges = nil, nil, 0, ages{}
}

// The method rest waits before the next request, as long as Config.ListRequests demands.
func (p *pass) rest(ctx context.Context, moved func()) error {
	rate := p.store.cfg.ListRequests
	if !p.store.index.listed.Load() {
		rate *= firstFaster
	}
	return p.store.client.pause(ctx, time.Duration(float64(time.Second)/rate), moved)
}

// see handles one object of a listing.
func (p *pass) see(ctx context.Context, o *minio.ObjectInfo) error {
	s := p.store
	t, ok := parseName(strings.TrimPrefix(o.Key, s.cfg.Prefix))
	if !ok {
		s.counters.Foreign.Add(1)
		return nil
	}
	if int(t[0]) < p.shard {
		return fmt.Errorf("object: list: %s comes behind shard %02x: the server does not list in order: %w", t.name(), p.shard, tier.ErrUnavailable)
	}
	for p.shard < int(t[0]) {
		p.settle()
	}
	age := s.client.transport.serverNow().Sub(o.LastModified)
	switch {
	case s.cfg.Life > 0 && age > s.cfg.Life:
		s.counters.Expired.Add(1)
		return p.doomed(ctx, t, o)
	case s.room.goes(o.LastModified, o.Size):
		s.counters.Evicted.Add(1)
		return p.doomed(ctx, t, o)
	}
	p.shardBytes += o.Size
	p.shardAges.add(age, o.Size)
	// The list may have one entry too many, by which the index sees that not all fit.
	if len(p.list) <= s.index.most {
		p.list = append(p.list, t.short())
	}
	return nil
}

// doomed schedules the deletion of an object.
func (p *pass) doomed(ctx context.Context, t tag, o *minio.ObjectInfo) error {
	p.store.counters.EvictedBytes.Add(uint64(o.Size))
	p.store.index.forget(t)
	p.doom = append(p.doom, o.Key)
	if len(p.doom) < listPage {
		return nil
	}
	return p.sweep(ctx)
}

// settle ends the current shard and begins the next one.
func (p *pass) settle() {
	x := p.store.index
	x.settle(p.shard, p.list, p.store.cfg.Now())
	p.bytes += p.shardBytes
	p.ages.join(&p.shardAges)
	p.list, p.shardBytes, p.shardAges = nil, 0, ages{}
	if p.shard++; p.shard < shards {
		x.begin(p.shard)
	}
}

// sweep deletes the scheduled objects.
func (p *pass) sweep(ctx context.Context) error {
	if len(p.doom) == 0 {
		return nil
	}
	s := p.store
	watched, _, stop := s.client.watch(ctx)
	defer stop()
	names := make(chan minio.ObjectInfo, len(p.doom))
	for _, n := range p.doom {
		names <- minio.ObjectInfo{Key: n}
	}
	close(names)
	var errs []error
	for e := range s.client.core.RemoveObjects(watched, s.cfg.Bucket, names, minio.RemoveObjectsOptions{}) {
		errs = append(errs, e.Err)
	}
	n := len(p.doom)
	p.doom = p.doom[:0]
	if len(errs) > 0 {
		return s.client.failure(watched, fmt.Sprintf("delete %d old objects, %d times", n, len(errs)), errs[0])
	}
	return nil
}

// room tracks the bytes in the prefix: those that the last pass has counted, and those
// that this node has written since.
type room struct {
	mu     sync.Mutex
	bytes  int64
	cutoff time.Time // objects written before this time of the server's clock are deleted for room
	excess int64     // bytes still to be deleted
}

func (r *room) held() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

func (r *room) add(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes += n
}

// fits reports whether n more bytes fit into a budget; 0 = no limit.
func (r *room) fits(n, budget int64) bool { return budget == 0 || r.held()+n <= budget }

// The method goes reports whether an object of n bytes has to be deleted for room. If so,
// it subtracts these bytes from those still to be deleted.
func (r *room) goes(written time.Time, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.excess <= 0 || !written.Before(r.cutoff) {
		return false
	}
	r.excess -= n
	return true
}

// If a prefix has more than fullPercent of its budget, the oldest objects are deleted
// until it has leftPercent, so that there is room for writes between passes (guesses).
const (
	fullPercent = 95
	leftPercent = 85
)

// settle adopts the result of a pass. The result again is true if another pass has to
// delete the oldest objects.
func (r *room) settle(bytes int64, a *ages, budget int64, now time.Time) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes, r.excess = bytes, 0
	if budget == 0 || bytes <= budget/100*fullPercent {
		return false
	}
	r.excess = bytes - budget/100*leftPercent
	r.cutoff = now.Add(-a.oldest(r.excess))
	return true
}

// ages counts bytes by age, in logarithmic steps: 16 for each doubling of the age in seconds.
type ages [ageSteps]int64

const ageSteps = 16 * 30

func ageStep(age time.Duration) int {
	step := int(16 * math.Log2(1+max(age, 0).Seconds()))
	return min(step, ageSteps-1)
}

func (a *ages) add(age time.Duration, n int64) { a[ageStep(age)] += n }

func (a *ages) join(b *ages) {
	for i, n := range b {
		a[i] += n
	}
}

// oldest returns the age for which all objects of at least this age have the given number
// of bytes together.
func (a *ages) oldest(bytes int64) time.Duration {
	for i, n := range slices.Backward(a[:]) {
		if bytes -= n; bytes <= 0 {
			return time.Duration((math.Exp2(float64(i)/16) - 1) * float64(time.Second))
		}
	}
	return 0
}

// List runs a pass at once, and a second one if the first shows that objects have to be
// deleted for room. It is for callers that must see objects that other nodes have just
// written.
func (s *Store) List(ctx context.Context) error {
	for range 2 {
		p := &pass{store: s}
		if err := p.run(ctx); err != nil {
			return err
		}
		if !s.finish(p) {
			break
		}
	}
	return nil
}
