package events

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/spliced-kv/spliced/api/places"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/tier"
)

const (
	patience    = time.Minute
	blockTokens = 4
	theTopic    = "kv@pod-1@org/model"
)

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// node is a publisher and what it publishes of.
type node struct {
	*Publisher
	set     *held.Set
	profile *profile.Profile
	stop    func()

	mu       sync.Mutex
	segments map[profile.SegmentKey][]uint32
}

func newNode(t testing.TB, change func(*Config)) *node {
	t.Helper()
	before := runtime.NumGoroutine()
	n := &node{profile: profiletest.New(profiletest.Hybrid(1)), segments: map[profile.SegmentKey][]uint32{}}
	cfg := Config{
		Bind: "127.0.0.1:0", Replay: "127.0.0.1:0", Pod: "pod-1", Model: "org/model", BlockTokens: blockTokens, Memory: 1 << 20,
		Salts: map[tier.TenantID][]byte{1: nil}, Now: time.Now, Log: zerolog.Nop(),
		Profile: func(f profile.Fingerprint) (*profile.Profile, bool) { return n.profile, f == n.profile.Fingerprint() },
		Segment: func(key profile.SegmentKey) (profile.SegmentSpec, []uint32, bool) {
			n.mu.Lock()
			defer n.mu.Unlock()
			ids, ok := n.segments[key]
			return profile.FirstSpec(len(ids)), ids, ok
		},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if n.Publisher, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	n.set = held.New(n)
	must(t, n.Listen(n.set))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("it does not end")
		}
	})
	t.Cleanup(func() {
		n.stop()
		if !t.Failed() {
			eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
		}
	})
	return n
}

// checkpoint names one of a prompt.
func (n *node) checkpoint(kind tier.CheckpointKind, tokens []uint32) tier.Want {
	h := n.profile.PrefixHashes(nil, 16, tokens, []int{len(tokens)})[0]
	return tier.Want{Name: tier.Name{Kind: kind, Key: h}, Fingerprint: n.profile.Fingerprint(), Tenant: 1}
}

func (n *node) serve(tokens []uint32, positions ...int) {
	n.Served(&Prompt{Profile: n.profile, Tenant: 1, BlockTokens: 16, Tokens: tokens, Positions: positions})
}

// first holds a segment that begins prompts.
func (n *node) first(tokens []uint32) tier.Want {
	key := n.profile.SegmentKey(nil, profile.FirstSpec(len(tokens)), tokens)
	n.mu.Lock()
	n.segments[key] = tokens
	n.mu.Unlock()
	w := tier.Want{Name: tier.Name{Key: key}, Fingerprint: n.profile.Fingerprint(), Tenant: 1}
	n.set.Add(w)
	return w
}

func prompt(seed, n int) []uint32 {
	rng := rand.New(rand.NewPCG(uint64(seed), 2))
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = rng.Uint32N(200_000)
	}
	return ids
}

// reader is a router that reads the stream as one in Go does.
type reader struct {
	*router
	sub, dealer zmq4.Socket
	first, last uint64
	n           *node
}

func newReader(t *testing.T, n *node, topic string) *reader {
	t.Helper()
	silent := zmq4.WithLogger(log.New(io.Discard, "", 0))
	pub, rep := n.Addrs()
	ctx, cancel := context.WithCancel(context.Background())
	before := n.subscriptions()
	r := &reader{&router{t: t, groups: map[int]map[uint64][]uint32{}}, zmq4.NewSub(ctx, silent), zmq4.NewDealer(ctx, silent), 0, 0, n}
	t.Cleanup(func() { cancel(); r.sub.Close(); r.dealer.Close() })
	for s, addr := range map[zmq4.Socket]net.Addr{r.sub: pub, r.dealer: rep} {
		must(t, s.Dial("tcp://"+addr.String()))
	}
	must(t, r.sub.SetOption(zmq4.OptionSubscribe, topic))
	eventually(t, "it has subscribed", func() bool { return n.subscriptions() > before })
	return r
}

func (p *Publisher) subscriptions() (n int) {
	p.fans.mu.Lock()
	defer p.fans.mu.Unlock()
	for s := range p.fans.all {
		s.mu.Lock()
		n += len(s.topics)
		s.mu.Unlock()
	}
	return n
}

// receive takes one message.
func receive(t *testing.T, s zmq4.Socket) [][]byte {
	t.Helper()
	return receiveWithin(t, s, patience)
}

func receiveWithin(t *testing.T, s zmq4.Socket, limit time.Duration) [][]byte {
	t.Helper()
	type result struct {
		m   zmq4.Msg
		err error
	}
	got := make(chan result, 1)
	go func() {
		m, err := s.Recv()
		got <- result{m, err}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			t.Fatal(r.err)
		}
		return r.m.Frames
	case <-time.After(limit):
		t.Fatal("no message")
		return nil
	}
}

// next hears one batch of the stream.
func (r *reader) next() uint64 {
	r.t.Helper()
	frames := receive(r.t, r.sub)
	if len(frames) != 3 || len(frames[1]) != 8 {
		r.t.Fatalf("%d frames", len(frames))
	}
	r.hear(decode(r.t, frames[2]))
	r.last = binary.BigEndian.Uint64(frames[1])
	if r.first == 0 {
		r.first = r.last
	}
	return r.last
}

// replay asks for what came since a number, and hears it.
func (r *reader) replay(from uint64) (seqs []uint64) {
	r.t.Helper()
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], from)
	if err := r.dealer.SendMulti(zmq4.NewMsgFrom(nil, number[:])); err != nil {
		r.t.Fatal(err)
	}
	r.catchingUp = true
	defer func() { r.catchingUp = false }()
	for {
		frames := receive(r.t, r.dealer)
		if r.n.cfg.Format == Maps {
			if len(frames) != 4 {
				r.t.Fatalf("%d frames", len(frames))
			}
			frames = slices.Delete(frames, 1, 2)
		}
		if len(frames) != 3 || len(frames[0]) > 0 || len(frames[1]) != 8 {
			r.t.Fatalf("frames %q", frames)
		}
		seq := binary.BigEndian.Uint64(frames[1])
		if len(frames[2]) == 0 {
			if seq != 1<<64-1 {
				r.t.Fatalf("the answer ends with %d", seq)
			}
			return seqs
		}
		r.hear(decode(r.t, frames[2]))
		seqs = append(seqs, seq)
	}
}

// decode reads both formats.
func decode(t testing.TB, payload []byte) (list []event) {
	t.Helper()
	var batch []any
	must(t, msgpack.Unmarshal(payload, &batch))
	if len(batch) != 3 || batch[0].(float64) < 1.7e9 {
		t.Fatalf("batch %v", batch)
	}
	for _, item := range batch[1].([]any) {
		fields, ok := item.(map[string]any)
		if !ok {
			array := item.([]any)
			fields = map[string]any{"type": array[0]}
			names := []string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"}
			if array[0] == removed {
				names = []string{"block_hashes", "medium", "group_idx"}
			}
			for i, v := range array[1:] {
				fields[names[i]] = v
			}
		}
		v := event{tag: fields["type"].(string)}
		if v.tag == cleared {
			list = append(list, v)
			continue
		}
		for _, h := range fields["block_hashes"].([]any) {
			v.hashes = append(v.hashes, number(h))
		}
		v.group = int(number(fields["group_idx"]))
		if fields["medium"] != "CPU" {
			t.Fatalf("medium %v", fields["medium"])
		}
		if v.tag == stored {
			if p := fields["parent_block_hash"]; p != nil {
				v.parent = number(p)
			}
			for _, id := range fields["token_ids"].([]any) {
				v.tokens = append(v.tokens, uint32(number(id)))
			}
			v.block, v.kind = int(number(fields["block_size"])), fields["kv_cache_spec_kind"].(string)
		}
		list = append(list, v)
	}
	return list
}

func number(v any) uint64 {
	switch n := v.(type) {
	case int8:
		return uint64(n)
	case int64:
		return uint64(n)
	case uint8:
		return uint64(n)
	case uint16:
		return uint64(n)
	case uint32:
		return uint64(n)
	case uint64:
		return n
	}
	panic(fmt.Sprintf("%T is no number", v))
}

// believe hears batches until a router believes that so many blocks of rows and of states are held.
func (r *reader) believe(rows, states int) {
	r.t.Helper()
	for limit := time.Now().Add(patience); len(r.groups[0]) != rows || len(r.groups[1]) != states; {
		if time.Now().After(limit) {
			r.t.Fatalf("%d rows and %d states are believed, want %d and %d", len(r.groups[0]), len(r.groups[1]), rows, states)
		}
		r.next()
	}
}

func TestRoutersHearOfCheckpointsAndFirstSegments(t *testing.T) {
	for _, format := range []Format{Maps, Arrays} {
		t.Run(fmt.Sprint(format), func(t *testing.T) {
			n := newNode(t, func(c *Config) { c.Format = format })
			r := newReader(t, n, "kv@")
			ids := prompt(1, 100)

			// Advised, then stored; and stored before the publisher looks at the prompt.
			n.serve(ids, 32, 64, 100)
			n.set.Add(n.checkpoint(tier.Exact, ids[:32]))
			r.believe(8, 1)
			n.set.Add(n.checkpoint(tier.Spliced, ids[:64]))
			r.believe(16, 2)
			other := slices.Concat(ids[:48], prompt(2, 20))
			n.set.Add(n.checkpoint(tier.Exact, other))
			n.serve(other, len(other))
			r.believe(16+5, 3) // 48 of 68 are the same
			head := n.first(slices.Concat(ids[:64], []uint32{1, 2, 3}))
			n.first(prompt(3, 8))
			r.believe(21+2, 4) // the head ends behind the checkpoint of 64

			n.set.Remove(n.checkpoint(tier.Spliced, ids[:64]))
			n.set.Add(n.checkpoint(tier.Exact, ids[:100])) // of the prompt that was advised
			r.believe(23+25-16, 5)
			n.set.Remove(n.checkpoint(tier.Exact, ids[:100]))
			n.set.Remove(head)
			r.believe(8+(17-8)+2, 3)
			if _, ok := r.groups[0][n.told.chain(newScopeOf(n), other)[16]]; !ok {
				t.Error("a block has another hash than its prefix has")
			}
			// Batches are sent before they are counted.
			eventually(t, "all is counted", func() bool { c := n.Counters(); return c.Blocks == 19 && c.Objects == 3 })
			if c := n.Counters(); c.Subscribers != 1 || c.Lost+c.Resyncs+c.Untold+c.Unheard > 0 || c.Stored == 0 || c.Removed == 0 {
				t.Errorf("%+v", c)
			}
		})
	}
}

func newScopeOf(n *node) *scope { return &scope{profile: n.profile} }

// What is of another tenant, of a profile that is not registered, or of a prompt that was
// not seen, is not told; the last is, once it is seen.
func TestOnlyWhatMayBeAndCanBeToldIsTold(t *testing.T) {
	n := newNode(t, nil)
	r := newReader(t, n, theTopic)
	ids := prompt(1, 64)
	secret := n.checkpoint(tier.Exact, ids)
	secret.Tenant = 2
	strange := n.checkpoint(tier.Exact, ids)
	strange.Fingerprint[0]++
	n.set.Add(secret)
	n.set.Add(strange)
	n.Served(&Prompt{Profile: n.profile, Tenant: 2, BlockTokens: 16, Tokens: ids, Positions: []int{64}})
	unseen := prompt(2, 48)
	n.set.Add(n.checkpoint(tier.Exact, unseen))
	n.first(prompt(3, 4))
	r.believe(1, 1)
	n.serve(unseen, 16, 48)
	r.believe(1+12, 2)
}

// Who missed something gets it again by its number; who asks for what is not kept any more
// gets all that is told, and agrees with who heard everything.
func TestWhoMissedSomethingCatchesUp(t *testing.T) {
	for _, format := range []Format{Maps, Arrays} {
		t.Run(fmt.Sprint(format), func(t *testing.T) {
			n := newNode(t, func(c *Config) { c.Format = format })
			r := newReader(t, n, "")
			var held []tier.Want
			for i := range 40 {
				held = append(held, n.first(prompt(i, 8+4*i)))
			}
			for _, w := range held[:20] {
				n.set.Remove(w)
			}
			blocks := 0
			for i := 20; i < 40; i++ {
				blocks += 2 + i
			}
			r.believe(blocks, 20)
			last := r.last

			late := newReader(t, n, "")
			seqs := late.replay(last)
			if len(seqs) != 1 || seqs[0] != last {
				t.Errorf("numbers %v, want the last one, %d", seqs, last)
			}
			for what, from := range map[string]uint64{"nothing has come since": last + 1, "a subscription begins with all": 0} {
				if got := late.replay(from); len(got) > 0 {
					t.Errorf("%s, and %v was sent", what, got)
				}
			}
			for _, from := range []uint64{1, last - 1000, last + 1000} {
				fresh := newReader(t, n, "")
				fresh.groups[0] = map[uint64][]uint32{5: nil} // of a former run
				seqs = fresh.replay(from)
				for i, seq := range seqs {
					if seq != last+1-uint64(len(seqs)-i) {
						t.Errorf("from %d: number %d is %d of %d, and the last batch %d", from, i, seq, len(seqs), last)
					}
				}
				if len(seqs) < 2 || !slices.Equal(fresh.believes(0), r.believes(0)) || !slices.Equal(fresh.believes(1), r.believes(1)) {
					t.Errorf("from %d: numbers %v, %d blocks", from, seqs, len(fresh.groups[0]))
				}
			}
			eventually(t, "all is counted", func() bool { // subscriptions, too
				c := n.Counters()
				return c.Replays == 3 && c.Snapshots == 3+5
			})
		})
	}
}

// Each subscription begins with a clear and all that is told, and those of a later run with
// lower numbers, so that nothing of a former run is believed any more.
func TestASubscriptionBeginsWithAllThatIsTold(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { now = now.Add(time.Second); return now }
	first := newNode(t, func(c *Config) { c.Now = clock })
	r := newReader(t, first, "")
	for i := range 50 {
		first.first(prompt(i, 8))
	}
	r.believe(100, 50)
	lowest := r.first
	late := newReader(t, first, "")
	for late.last != r.last {
		late.next()
	}
	if !slices.Equal(late.believes(0), r.believes(0)) || !slices.Equal(late.believes(1), r.believes(1)) {
		t.Errorf("a late subscriber believes in %d rows, an early one in %d", len(late.groups[0]), len(r.groups[0]))
	}
	first.first(prompt(50, 8)) // both go on with the same batch
	if a, b := r.next(), late.next(); a != b || a != r.last {
		t.Errorf("the next batch is %d for one and %d for the other", a, b)
	}
	first.stop()
	again := newNode(t, func(c *Config) { c.Now = clock })
	again.first(prompt(100, 8))
	later := newReader(t, again, "")
	later.groups = r.groups // and all that it believed
	for i := range 10 {
		again.first(prompt(101+i, 8))
	}
	later.believe(22, 11)
	if later.last >= lowest {
		t.Errorf("the second run goes up to %d, the first began with %d", later.last, lowest)
	}
}

// A subscriber that had the number of the clear before it lost its connection drops the clear,
// and is cleared all the same.
func TestASnapshotClearsBehindItsFirstNumber(t *testing.T) {
	n := newNode(t, nil)
	n.first(prompt(1, 8))
	r := newReader(t, n, "")
	r.believe(2, 1)
	c := newReader(t, n, "")
	var tags []string
	for c.last != r.last {
		frames := receive(t, c.sub)
		c.last = binary.BigEndian.Uint64(frames[1])
		tags = append(tags, decode(t, frames[2])[0].tag)
	}
	if !slices.Equal(tags, []string{cleared, cleared}) {
		t.Errorf("the messages begin with %v", tags)
	}
}

// All that is told is walked once for those who ask before the next batch.
func TestSnapshotsAreSharedUntilTheNextBatch(t *testing.T) {
	n := newNode(t, nil)
	ask := func(topic string) *snapshot {
		a, ok := n.ask(t.Context(), &question{to: &subscriber{topics: map[string]int{topic: 1}}})
		if !ok || a.snapshot == nil {
			t.Fatalf("no answer for topic %q", topic)
		}
		return a.snapshot
	}
	n.first(prompt(1, 8))
	eventually(t, "it is told", func() bool { return n.Counters().Batches == 1 })
	a, b, none := ask(""), ask("kv@pod-1"), ask("kv@pod-1@org/model@another")
	if len(a.parts) != 1 || len(b.parts) != 1 || &a.parts[0] != &b.parts[0] || len(none.parts) != 0 {
		t.Errorf("%+v and %+v are not shared, or %+v is wanted", a.parts, b.parts, none.parts)
	}
	n.first(prompt(2, 8))
	eventually(t, "more is told", func() bool { return n.Counters().Batches == 2 })
	if c := ask(""); len(c.parts) != 1 || len(c.parts[0].runs) != 2 || len(a.parts[0].runs) != 1 {
		t.Errorf("%+v after %+v", c.parts, a.parts)
	}
}

// One that subscribes again and again gets a few snapshots at once, then one a second.
func TestSnapshotsOfOneSubscriberArePaced(t *testing.T) {
	var p pace
	now := time.Unix(1e9, 0)
	for i := range maxSnapshots {
		if wait := p.wait(now); wait > 0 {
			t.Errorf("snapshot %d waits %v", i, wait)
		}
		p.took(now)
	}
	for range 3 {
		if wait := p.wait(now); wait != snapshotPause {
			t.Errorf("the next one waits %v", wait)
		}
		now = now.Add(snapshotPause)
		p.took(now)
	}
	if now = now.Add(time.Hour); p.wait(now) > 0 {
		t.Error("it waits after an hour")
	}
}

// What is still sent to one that has cancelled all its topics does not settle it.
func TestWithoutATopicASubscriberStaysPending(t *testing.T) {
	set := places.NewSet(2)
	open := func(state places.State, topics map[string]int) *subscriber {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		go io.Copy(io.Discard, theirs)
		w := &wire{Conn: ours}
		w.w = bufio.NewWriter(counted{w})
		if _, ok := set.Take(ours, state, time.Unix(1, 0)); !ok {
			t.Fatal("no place")
		}
		return &subscriber{places: set, wire: w, topics: topics}
	}
	open(settled, map[string]int{"kv@": 1})
	cancelled := open(pending, map[string]int{})
	if !cancelled.send(newMessage(Maps, 0, "kv@", 1, []event{{tag: cleared}})) {
		t.Fatal("not sent")
	}
	next, far := net.Pipe()
	defer next.Close()
	defer far.Close()
	if lost, _ := set.Take(next, pending, time.Now()); lost != cancelled.wire.Conn {
		t.Error("a subscriber lost its place to one without a topic")
	}
}

// More changes at once than are queued are not lost: all that is held is compared.
func TestMoreChangesThanAreQueuedAreCaughtUp(t *testing.T) {
	n := newNode(t, nil)
	r := newReader(t, n, "")
	gone := n.first(prompt(1, 8))
	r.believe(2, 1)
	n.mu.Lock() // hold the publisher up when it looks for a segment
	blocked := n.profile.SegmentKey(nil, profile.FirstSpec(1), prompt(99, 1))
	w := tier.Want{Name: tier.Name{Key: blocked}, Fingerprint: n.profile.Fingerprint(), Tenant: 1}
	n.set.Add(w)
	eventually(t, "the publisher looks for it", func() bool {
		n.Publisher.mu.Lock()
		defer n.Publisher.mu.Unlock()
		return len(n.Publisher.mu.changes) == 0
	})
	for range maxChanges/2 + 1 {
		n.set.Remove(w)
		n.set.Add(w)
	}
	n.set.Remove(gone) // not queued any more
	tokens := prompt(2, 12)
	key := n.profile.SegmentKey(nil, profile.FirstSpec(12), tokens)
	n.segments[key] = tokens
	n.set.Add(tier.Want{Name: tier.Name{Key: key}, Fingerprint: n.profile.Fingerprint(), Tenant: 1})
	n.mu.Unlock()
	r.believe(3, 1)
	if _, ok := r.groups[1][n.told.chain(newScopeOf(n), tokens)[2]]; !ok || n.Counters().Resyncs != 1 {
		t.Errorf("what came last is not believed, or %+v", n.Counters())
	}
}

// One that does not read loses batches, which is counted, and keeps nobody else waiting.
func TestASlowSubscriberLosesWhatOthersGet(t *testing.T) {
	n := newNode(t, func(c *Config) { c.Memory = 64 << 20 })
	pub, _ := n.Addrs()
	slow, err := net.Dial("tcp", pub.String())
	must(t, err)
	defer slow.Close()
	subscribeRaw(t, slow)
	eventually(t, "it has subscribed", func() bool { return n.subscriptions() == 1 })
	r := newReader(t, n, "")
	eventually(t, "both have", func() bool { return n.subscriptions() == 2 })
	heard := make(chan uint64, 1<<12)
	go func() {
		defer close(heard)
		for {
			m, err := r.sub.Recv()
			if err != nil {
				return
			}
			heard <- binary.BigEndian.Uint64(m.Frames[1])
		}
	}()
	ids, before, batches := prompt(1, 1<<17), uint64(0), uint64(0)
	for range 40 { // a MiB each
		done := n.Counters().Removed + 1<<15
		n.set.Remove(n.first(ids))
		eventually(t, "it is told", func() bool { return n.Counters().Removed >= done })
		for ; batches < n.Counters().Batches+1; batches++ { // the clear of its subscription first; it does not wait for long either
			select {
			case seq := <-heard:
				if before > 0 && seq != before+1 {
					t.Fatalf("batch %d behind %d", seq, before)
				}
				before = seq
			case <-time.After(patience):
				t.Fatalf("%d batches of %d came", batches, n.Counters().Batches+1)
			}
		}
	}
	// It has lost something, or took nothing for so long that its connection was ended.
	if c := n.Counters(); c.Lost == 0 && c.Subscribers == 2 {
		t.Error("nothing was lost")
	}
}

// subscribeRaw is all that a subscriber has to send.
func subscribeRaw(t testing.TB, c net.Conn) {
	t.Helper()
	if _, err := c.Write(slices.Concat(greeting("SUB"), []byte{0, 1, 1})); err != nil {
		t.Fatal(err)
	}
}

// Who connects and sends anything at all costs a connection and nothing else.
func TestStrangersAreRefused(t *testing.T) {
	n := newNode(t, nil)
	pub, rep := n.Addrs()
	hello, sub := greeting("SUB")[:greetingSize], readyCommand("SUB")
	curve := slices.Clone(hello)
	copy(curve[12:], "CURVE")
	huge := []byte{flagLong, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for name, b := range map[string][]byte{
		"http":           []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + string(make([]byte, 64))),
		"curve":          curve,
		"no command":     slices.Concat(hello, []byte{0, 1, 1}),
		"another socket": greeting("PUSH"),
		"cut metadata":   slices.Concat(hello, []byte{flagCommand, 10}, sub[:10]),
		"no type":        slices.Concat(hello, []byte{flagCommand, 6}, sub[:6]),
		"huge command":   slices.Concat(hello, huge),
		"huge frame":     slices.Concat(greeting("SUB"), huge),
		"huge question":  slices.Concat(greeting("REQ"), huge),
		"many frames":    slices.Concat(greeting("REQ"), slices.Repeat([]byte{flagMore, 0}, maxFrames+1)),
		"odd flags":      slices.Concat(greeting("REQ"), []byte{0x80, 0}),
	} {
		for _, addr := range []net.Addr{pub, rep} {
			c, err := net.Dial("tcp", addr.String())
			must(t, err)
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
			must(t, c.SetReadDeadline(time.Now().Add(patience)))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s at %v: the connection stays open", name, addr)
			}
			c.Close()
		}
	}
	r := newReader(t, n, "")
	n.first(prompt(1, 8))
	r.believe(2, 1)
}

// silence opens connections that send the same and read nothing.
func silence(t *testing.T, addr net.Addr, n int, says ...[]byte) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", addr.String())
		must(t, err)
		t.Cleanup(func() { c.Close() })
		must(t, c.(*net.TCPConn).SetReadBuffer(4<<10))
		_, _ = c.Write(slices.Concat(says...)) // it may be closed already
	}
}

// greeting is what a socket of a type sends at first.
func greeting(socket string) []byte {
	var hello [greetingSize]byte
	hello[0], hello[9], hello[10] = 0xff, 0x7f, 3
	copy(hello[12:], "NULL")
	ready := readyCommand(socket)
	return slices.Concat(hello[:], []byte{flagCommand, byte(len(ready))}, ready)
}

// Whoever connects and never subscribes loses his places to who does.
func TestSilentConnectionsKeepNoSubscriberOut(t *testing.T) {
	for what, says := range map[string][]byte{"nothing": nil, "a greeting": greeting("SUB")} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t, nil)
			pub, _ := n.Addrs()
			r := newReader(t, n, "")
			silence(t, pub, 2*maxSubscribers, says)
			late := newReader(t, n, "")
			eventually(t, "both have subscribed", func() bool { return n.Counters().Subscribers == 2 })
			n.first(prompt(1, 8))
			r.believe(2, 1)
			late.believe(2, 1)
			if c := n.Counters(); c.Displaced == 0 || n.Trouble() != "" {
				t.Errorf("%+v, %q", c, n.Trouble())
			}
		})
	}
}

// Those of other addresses that have subscribed keep their places, and whoever finds none is
// in the readiness.
func TestSubscribersOfOtherAddressesKeepTheirPlaces(t *testing.T) {
	n := newNode(t, nil)
	pub, _ := n.Addrs()
	var hello = slices.Concat(greeting("SUB"), []byte{0, 1, 1})
	from := func(i int) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i))}}
		c, err := d.Dial("tcp", pub.String())
		must(t, err)
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write(hello); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for i := range maxSubscribers {
		from(i)
	}
	eventually(t, "all have subscribed", func() bool { return n.Counters().Subscribers == maxSubscribers })
	from(maxSubscribers)
	eventually(t, "one more is refused, and it shows", func() bool { return n.Counters().Refused == 1 && n.Trouble() != "" })
	again := from(1) // came back, before its old connection was seen to have ended
	eventually(t, "it has its place", func() bool { return n.Counters().Displaced == 1 })
	again.Close()
	eventually(t, "there is a place", func() bool { return n.Trouble() == "" })
}

// Whoever asks for everything and does not read keeps a turn for a moment only.
func TestAskersThatDoNotReadKeepNobodyWaiting(t *testing.T) {
	n := newNode(t, func(c *Config) { c.Memory = 64 << 20 })
	_, rep := n.Addrs()
	for i := range 4 { // more than sockets take, where the reader's is small
		n.first(prompt(i, 1<<17))
	}
	eventually(t, "all is told", func() bool { return n.Counters().Objects == 4 })
	question := []byte{flagMore, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1}
	for range maxTurns {
		silence(t, rep, 1, greeting("DEALER"), question)
	}
	eventually(t, "all turns are taken", func() bool {
		n.turns.mu.Lock()
		defer n.turns.mu.Unlock()
		return len(n.turns.held) == maxTurns
	})
	silent := zmq4.WithLogger(log.New(io.Discard, "", 0))
	dealer := zmq4.NewDealer(t.Context(), silent)
	defer dealer.Close()
	must(t, dealer.Dial("tcp://"+rep.String()))
	must(t, dealer.SendMulti(zmq4.NewMsgFrom(nil, question[4:])))
	var seqs []uint64
	for {
		frames := receiveWithin(t, dealer, 4*patience) // all of it is made for each of them
		seq := binary.BigEndian.Uint64(frames[2])
		if seq == 1<<64-1 {
			break
		}
		seqs = append(seqs, seq)
	}
	if len(seqs) < 2 || seqs[len(seqs)-1]-seqs[0] != uint64(len(seqs)-1) {
		t.Errorf("%d messages came", len(seqs))
	}
}

func TestPromptsAreForgottenInTheirOrder(t *testing.T) {
	r := newRecent()
	p := profiletest.New(profiletest.Hybrid(1))
	f := p.Fingerprint()
	for i := range 3 * maxRecentPrompts {
		ids := prompt(i%(2*maxRecentPrompts), 16) // each comes twice, long after the first time
		r.remember(f, &Prompt{Profile: p, Tenant: 1, BlockTokens: 16, Tokens: ids, Positions: []int{16}}, p.PrefixHashes(nil, 16, ids, []int{16}))
		if len(r.prompts) > maxRecentPrompts || len(r.names) > maxRecentPrompts || r.bytes > maxRecentBytes {
			t.Fatalf("%d prompts, %d names, %d bytes", len(r.prompts), len(r.names), r.bytes)
		}
	}
	long := make([]uint32, maxRecentBytes/4)
	r.remember(f, &Prompt{Profile: p, Tenant: 1, BlockTokens: 16, Tokens: long, Positions: []int{16}}, p.PrefixHashes(nil, 16, long, []int{16}))
	if len(r.prompts) != 1 || len(r.names) != 1 {
		t.Errorf("beside a long one %d prompts with %d names stay", len(r.prompts), len(r.names))
	}
}

// sent is a connection that somebody has written to and closed, and that takes anything.
type sent struct {
	net.Conn
	*bytes.Reader
}

func (s *sent) Read(b []byte) (int, error)    { return s.Reader.Read(b) }
func (*sent) Write(b []byte) (int, error)     { return len(b), nil }
func (*sent) SetDeadline(time.Time) error     { return nil }
func (*sent) SetReadDeadline(time.Time) error { return nil }

func FuzzHandshake(f *testing.F) {
	hello, ready := greeting("SUB")[:greetingSize], readyCommand("SUB")
	f.Add(slices.Concat(greeting("SUB"), []byte{0, 1, 1}))
	f.Add(slices.Concat(hello, []byte{flagCommand | flagLong, 0, 0, 0, 0, 0, 0, 0, byte(len(ready))}, ready, []byte{flagMore, 2, 1, 1, flagCommand, 7, 4, 'P', 'I', 'N', 'G', 0, 0}))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := handshake(&sent{Reader: bytes.NewReader(b)}, "PUB", "SUB", "XSUB")
		if err != nil {
			return
		}
		s := &subscriber{counts: &counts{}, places: places.NewSet(1), wire: w, wake: make(chan struct{}, 1), topics: map[string]int{}}
		s.read()
		if len(s.topics) > maxSubscriptions || len(s.pongs) > maxFrames || s.counts.subscribers.Load() != int64(min(1, len(s.topics))) {
			t.Fatalf("%d topics, %d answers", len(s.topics), len(s.pongs))
		}
	})
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
