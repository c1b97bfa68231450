package events

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/api/places"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Config configures a Publisher. All fields except Model and Segments are required.
type Config struct {
	Bind, Replay string // HOST:PORT of the PUB socket and of the ROUTER socket
	Pod          string // name of this node's engine, as routers know it
	Model        string // name of the model, as routers know it; "" = the name in its profile
	BlockTokens  int    // block size, as routers hash blocks
	Format       Format
	Segments     bool  // also publish segments at any position
	Memory       int64 // limit for the memory of what is published, in bytes
	// Salts has the salts of the tenants whose objects are published.
	Salts map[tier.TenantID][]byte

	// Profile returns a registered profile. Objects of other profiles are not published.
	Profile func(profile.Fingerprint) (*profile.Profile, bool)
	// Segment returns the geometry and token ids of a segment in memory. The ids must not be changed.
	Segment func(profile.SegmentKey) (profile.SegmentSpec, []uint32, bool)
	Now     func() time.Time
	Log     zerolog.Logger
}

// Bounds.
const (
	maxChanges  = 1 << 16 // queued changes; with more, all objects are compared instead
	maxPrompts  = 64      // queued prompts; with more, or with more than promptBytes of ids, prompts are dropped
	promptBytes = 16 << 20
	batchBlocks = 1024 // largest number of blocks in a batch, apart from its last event
)

// Publisher publishes the contents of a node's cache to routers. Added, Removed and Served
// never block.
type Publisher struct {
	cfg     Config
	set     *held.Set
	pub     net.Listener
	router  net.Listener
	wake    chan struct{} // signals that changes are queued
	prompts chan *Prompt
	waiting atomic.Int64 // bytes of the token ids in queued prompts
	asked   chan *question
	turns   turns
	askers  *places.Set
	counts  counts

	mu struct {
		sync.Mutex
		changes  []change
		overflow bool // changes were dropped
	}

	// Owned by Run.
	told   *told
	recent recent
	scopes map[scopeKey]*scope
	log    *journal
	fans   *fans
	full   bool // an object was not published because of the memory limit
	batch  []event
	blocks int    // number of blocks in batch
	topic  string // topic of batch
	parts  []part // everything published; shared by snapshots until the next batch; nil = not built
}

type scopeKey struct {
	fingerprint profile.Fingerprint
	tenant      tier.TenantID
}

type change struct {
	want  tier.Want
	added bool
}

// counts may be used by all goroutines.
type counts struct {
	batches, stored, removed, resyncs, lost, unheard, replays, snapshots, untold, refused, displaced, prompts atomic.Uint64
	subscribers                                                                                               atomic.Int64
	blocks, objects, bytes                                                                                    atomic.Int64
	full                                                                                                      atomic.Bool
}

// Counters are the counts of a publisher since its start.
type Counters struct {
	Batches     uint64 `count:"batches" prom:"events_batches_total" help:"Batches of KV events published to routers."`
	Stored      uint64 `count:"stored" prom:"events_blocks_total,event=stored" help:"Blocks in KV events published to routers, by event: stored, removed."`
	Removed     uint64 `count:"removed" prom:"events_blocks_total,event=removed"`
	Resyncs     uint64 `count:"resyncs" prom:"events_resyncs_total" help:"Comparisons of all cached objects with the published blocks, made after the queue of changes overflowed."`
	Lost        uint64 `count:"lost" prom:"events_lost_total" help:"Batches of KV events that a subscriber missed because it was too slow. It gets the full state instead."`
	Unheard     uint64 `count:"unheard" prom:"events_prompts_dropped_total" help:"Prompts that the KV event publisher skipped, because too many were queued. Their checkpoints are published later or not at all."`
	Replays     uint64 `count:"replays" prom:"events_replays_total,from=buffer" help:"Replays sent to subscribers of KV events, by source: buffer (the batches kept in memory), all (the full state, also sent to new and slow subscribers)."`
	Snapshots   uint64 `count:"snapshots" prom:"events_replays_total,from=all"`
	Untold      uint64 `count:"untold" prom:"events_untold_total" help:"Objects not published in KV events because the memory limit (setting events-memory) was reached."`
	Refused     uint64 `count:"refused" prom:"events_connections_refused_total" help:"Connections to the KV event ports that were closed, because they did not speak ZeroMQ or too many were open."`
	Displaced   uint64 `count:"displaced" prom:"events_connections_displaced_total" help:"Connections to the KV event ports that were closed to make room for a new one: those without a subscription, or silent for the longest time."`
	Subscribers int64  `count:"subscribers" prom:"events_subscribers" help:"Connections subscribed to KV events."`
	Blocks      int64  `count:"blocks" prom:"events_told_blocks" help:"Blocks currently published to routers as cached."`
	Objects     int64  `count:"objects" prom:"events_told_objects" help:"Objects currently published to routers as cached: checkpoints, segments that begin a prompt, and all segments if so configured."`
	Bytes       int64  `count:"told_bytes" prom:"events_told_bytes" help:"Bytes of memory used by the list of published blocks, limited by the setting events-memory."`
}

// Counters returns the counters.
func (p *Publisher) Counters() Counters {
	c := &p.counts
	return Counters{
		c.batches.Load(), c.stored.Load(), c.removed.Load(), c.resyncs.Load(), c.lost.Load(), c.unheard.Load(), c.replays.Load(), c.snapshots.Load(),
		c.untold.Load(), c.refused.Load(), c.displaced.Load(), c.subscribers.Load(), c.blocks.Load(), c.objects.Load(), c.bytes.Load(),
	}
}

// Trouble returns why some objects are not published or some subscribers not served; "" = all are.
func (p *Publisher) Trouble() string {
	switch {
	case p.fans.places.Crowded():
		return fmt.Sprintf("%d routers are subscribed to KV events, the maximum: another one was refused", maxSubscribers)
	case !p.counts.full.Load():
		return ""
	}
	return fmt.Sprintf("published blocks take %d bytes, all of events-memory: further objects are not published", p.counts.bytes.Load())
}

// New creates a publisher. Listen and Run must be called.
func New(cfg Config) (*Publisher, error) {
	switch {
	case cfg.Profile == nil || cfg.Segment == nil || cfg.Now == nil:
		return nil, errors.New("events: Profile, Segment and Now are required")
	case cfg.BlockTokens < 1 || cfg.BlockTokens > profile.MaxTokens:
		return nil, fmt.Errorf("events: blocks of %d tokens", cfg.BlockTokens)
	case cfg.Memory < 1:
		return nil, fmt.Errorf("events: %d bytes of memory", cfg.Memory)
	}
	p := &Publisher{
		cfg: cfg, wake: make(chan struct{}, 1), prompts: make(chan *Prompt, maxPrompts), asked: make(chan *question), askers: places.NewSet(maxAskers),
		told: newTold(cfg.BlockTokens, cfg.Memory), recent: newRecent(), scopes: map[scopeKey]*scope{},
	}
	p.log = newJournal(cfg.Format, cfg.Now)
	p.fans = &fans{counts: &p.counts, places: places.NewSet(maxSubscribers), all: map[*subscriber]struct{}{}}
	return p, nil
}

// Listen opens both ports. The parameter set has the node's cached objects and notifies the
// publisher.
func (p *Publisher) Listen(set *held.Set) (err error) {
	p.set = set
	if p.pub, err = net.Listen("tcp", p.cfg.Bind); err != nil {
		return fmt.Errorf("events-bind: %w", err)
	}
	if p.router, err = net.Listen("tcp", p.cfg.Replay); err != nil {
		p.pub.Close()
		return fmt.Errorf("events-replay-bind: %w", err)
	}
	return nil
}

// Addrs returns the addresses of the PUB and the ROUTER socket, after Listen.
func (p *Publisher) Addrs() (pub, router net.Addr) { return p.pub.Addr(), p.router.Addr() }

// Close closes what Listen opened, if Run was not called.
func (p *Publisher) Close() {
	if p.pub != nil {
		p.pub.Close()
		p.router.Close()
	}
}

// Added implements held.Listener.
func (p *Publisher) Added(w tier.Want) { p.change(w, true) }

// Removed implements held.Listener.
func (p *Publisher) Removed(w tier.Want) { p.change(w, false) }

func (p *Publisher) change(w tier.Want, added bool) {
	if _, ok := p.cfg.Salts[w.Tenant]; !ok {
		return
	}
	p.mu.Lock()
	if len(p.mu.changes) < maxChanges {
		p.mu.changes = append(p.mu.changes, change{w, added})
	} else {
		p.mu.overflow = true
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Served records a prompt, so that its cached objects can be published with their token ids. These
// are checkpoints that end at q.Positions, and the segment of the first q.First tokens; all may be
// stored later. Served copies the token ids.
func (p *Publisher) Served(q *Prompt) {
	if _, ok := p.cfg.Salts[q.Tenant]; !ok || len(q.Positions) == 0 && q.First == 0 || q.BlockTokens < 1 {
		return
	}
	most := q.First
	for _, at := range q.Positions {
		most = max(most, at)
	}
	if most > len(q.Tokens) {
		return
	}
	size := 4 * int64(most)
	if p.waiting.Add(size) > promptBytes && p.waiting.Load() > size { // checked before the ids are copied
		p.waiting.Add(-size)
		p.counts.unheard.Add(1)
		return
	}
	select {
	case p.prompts <- &Prompt{q.Profile, q.Tenant, q.BlockTokens, slices.Clone(q.Tokens[:most]), slices.Clone(q.Positions), q.First}:
	default:
		p.waiting.Add(-size)
		p.counts.unheard.Add(1)
	}
}

// Prompt is a prompt for which an engine requested advice.
type Prompt struct {
	Profile     *profile.Profile
	Tenant      tier.TenantID
	BlockTokens int // block size of the engine, on which the names of checkpoints depend
	Tokens      []uint32
	Positions   []int // in ascending order
	First       int   // tokens of the prompt's first segment; 0 = none
}

// Run publishes until ctx ends, and then closes everything. It may be called once, after Listen.
func (p *Publisher) Run(ctx context.Context) error {
	var serving sync.WaitGroup
	ctx, stop := context.WithCancel(ctx)
	defer serving.Wait()
	defer stop()
	serving.Go(func() { <-ctx.Done(); p.pub.Close(); p.router.Close() })
	failed := make(chan error, 2)
	serving.Go(func() { failed <- p.accept(ctx, p.pub, p.fans.places, p.serve) })
	serving.Go(func() { failed <- p.accept(ctx, p.router, p.askers, p.answer) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("events: %w", err)
		case <-p.wake:
			p.drain()
		case q := <-p.prompts:
			p.waiting.Add(-4 * int64(len(q.Tokens)))
			p.look(q)
		case q := <-p.asked:
			q.answer <- p.reckon(q)
		}
		p.flush()
		p.gauge()
	}
}

func (p *Publisher) gauge() {
	p.counts.blocks.Store(int64(len(p.told.blocks)))
	p.counts.objects.Store(int64(len(p.told.objects)))
	p.counts.bytes.Store(p.told.bytes)
	p.counts.full.Store(p.full)
}

// drain takes the changes from the queue and publishes them.
func (p *Publisher) drain() {
	p.mu.Lock()
	changes, overflow := p.mu.changes, p.mu.overflow
	p.mu.changes, p.mu.overflow = nil, false
	p.mu.Unlock()
	for i := range changes {
		if changes[i].added {
			p.add(changes[i].want)
		} else {
			p.remove(changes[i].want)
		}
	}
	if overflow {
		p.resync()
	}
}

// resync publishes the differences between the published objects and the cache. Changes that happen
// meanwhile are queued.
func (p *Publisher) resync() {
	p.counts.resyncs.Add(1)
	p.cfg.Log.Info().Msg("queue of KV events overflowed: comparing published blocks with all held objects")
	for w := range p.told.objects {
		if !p.set.Has(w) {
			p.remove(w)
		}
	}
	for w := range p.set.All() {
		if _, ok := p.cfg.Salts[w.Tenant]; ok {
			p.add(w)
		}
	}
}

// add publishes a cached object, if its token ids are known.
func (p *Publisher) add(w tier.Want) {
	s := p.scope(w.Fingerprint, w.Tenant)
	if s == nil {
		return
	}
	if w.Kind != 0 {
		if tokens := p.recent.find(w); tokens != nil {
			p.tell(w, s, tokens)
		}
		return
	}
	spec, tokens, ok := p.cfg.Segment(w.Key)
	switch {
	case !ok:
	case spec.Role == profile.RoleFirst:
		p.tell(w, s, tokens)
	case p.cfg.Segments:
		p.emit(s)(p.told.addMid(w, s, spec, tokens))
	}
}

func (p *Publisher) tell(w tier.Want, s *scope, tokens []uint32) { p.emit(s)(p.told.add(w, s, tokens)) }

// emit returns a function that publishes the events of an added object.
func (p *Publisher) emit(s *scope) func(events []event, full bool) {
	return func(events []event, full bool) {
		if full {
			p.counts.untold.Add(1)
			p.full = true
			return
		}
		p.publish(s.topic, events)
	}
}

func (p *Publisher) remove(w tier.Want) {
	if events, s := p.told.remove(w); s != nil {
		p.full = false
		p.publish(s.topic, events)
	}
}

// scope returns the scope of a profile and a tenant; nil = the profile is not registered.
func (p *Publisher) scope(f profile.Fingerprint, t tier.TenantID) *scope {
	k := scopeKey{f, t}
	if s := p.scopes[k]; s != nil {
		return s
	}
	of, ok := p.cfg.Profile(f)
	if !ok {
		return nil
	}
	model := p.cfg.Model
	if model == "" {
		model = of.Identity().Model
	}
	s := &scope{number: uint32(len(p.scopes)), topic: "kv@" + p.cfg.Pod + "@" + model, profile: of, salt: p.cfg.Salts[t], groups: groupsOf(of)}
	p.scopes[k] = s
	return s
}

// look publishes the cached objects of a prompt. It also remembers the prompt, for objects that are
// stored later.
func (p *Publisher) look(q *Prompt) {
	p.counts.prompts.Add(1)
	f := q.Profile.Fingerprint()
	s := p.scope(f, q.Tenant)
	if s == nil {
		return
	}
	w := tier.Want{Fingerprint: f, Tenant: q.Tenant}
	if q.First > 0 {
		w.Key = q.Profile.SegmentKey(s.salt, profile.FirstSpec(q.First), q.Tokens[:q.First])
		if p.set.Has(w) {
			p.tell(w, s, q.Tokens[:q.First])
		}
	}
	hashes := q.Profile.PrefixHashes(s.salt, q.BlockTokens, q.Tokens, q.Positions)
	for i, at := range q.Positions {
		w.Key = hashes[i]
		for _, kind := range [...]tier.CheckpointKind{tier.Exact, tier.Spliced} {
			if w.Kind = kind; p.set.Has(w) {
				p.tell(w, s, q.Tokens[:at])
			}
		}
	}
	p.recent.remember(f, q, hashes)
}

// publish adds events to the batch, which has one topic, and sends full batches.
func (p *Publisher) publish(topic string, events []event) {
	if len(events) == 0 {
		return
	}
	if topic != p.topic {
		p.flush()
		p.topic = topic
	}
	for _, v := range events {
		p.batch = append(p.batch, v)
		p.blocks += max(1, len(v.hashes))
		switch v.tag {
		case stored:
			p.counts.stored.Add(uint64(len(v.hashes)))
		case removed:
			p.counts.removed.Add(uint64(len(v.hashes)))
		}
		if p.blocks >= batchBlocks {
			p.flush()
		}
	}
}

// flush sends the collected batch.
func (p *Publisher) flush() {
	if len(p.batch) == 0 {
		return
	}
	m := p.log.append(p.topic, p.batch)
	p.parts = nil
	clear(p.batch)
	p.batch, p.blocks = p.batch[:0], 0
	p.counts.batches.Add(1)
	p.fans.send(m)
}

// reckon answers a question of a subscriber or a replay.
//
// A replay from number 0 asks for all events ever published. Its answer is empty, for two reasons:
// such a client has everything from its subscription, and some routers refuse an answer that does
// not begin with the requested number.
func (p *Publisher) reckon(q *question) answer {
	node := "kv@" + p.cfg.Pod + "@" + p.cfg.Model
	if q.to != nil {
		q.to.mu.Lock()
		q.to.behind = false
		topic, ok := q.to.topicOfLocked(node)
		wants := subscriber{topics: maps.Clone(q.to.topics)}
		q.to.mu.Unlock()
		if !ok {
			return answer{}
		}
		p.counts.snapshots.Add(1)
		return answer{snapshot: p.snapshot(topic, wants.wantsLocked)}
	}
	if list, ok := p.log.since(q.from); ok || q.from == 0 {
		p.counts.replays.Add(1)
		return answer{batches: list}
	}
	p.counts.snapshots.Add(1)
	return answer{snapshot: p.snapshot(node, func([]byte) bool { return true })}
}
