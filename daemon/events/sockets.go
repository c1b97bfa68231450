package events

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/api/places"
)

// States of a connection, in the order in which a new connection displaces others.
const (
	pending = places.Pending // during the handshake, or without a subscription
	idle    = places.Idle    // requests replays
	settled = places.Settled // has a subscription
)

// Limits of connections. A router subscribes once, and requests a replay now and then.
const (
	maxSubscribers   = 32
	maxAskers        = 32
	subscribeTime    = 5 * time.Second // limit from the handshake to the first subscription
	replyTime        = 2 * time.Minute
	maxSubscriptions = 64 // topics of one subscriber
	maxTopic         = 256
	maxQueued        = 4096    // batches queued for one subscriber
	maxQueuedBytes   = 4 << 20 // bytes queued for one subscriber
	maxSnapshots     = 4       // sent without a pause to one that subscribes repeatedly; then one per snapshotPause
	snapshotPause    = time.Second
	sendTime         = 10 * time.Second
)

// accept serves as many connections at once as there are places, until the listener is closed.
func (p *Publisher) accept(ctx context.Context, l net.Listener, places *places.Set, serve func(context.Context, net.Conn)) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return err
			}
			select { // probably out of descriptors
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		lost, ok := places.Take(conn, pending, time.Now())
		if lost != nil {
			p.counts.displaced.Add(1)
			lost.Close()
		}
		if !ok {
			p.counts.refused.Add(1)
			conn.Close()
			continue
		}
		serving.Go(func() {
			defer places.Leave(conn)
			defer conn.Close()
			ended := context.AfterFunc(ctx, func() { conn.Close() })
			defer ended()
			serve(ctx, conn)
		})
	}
}

// fans is the set of subscribers.
type fans struct {
	counts *counts
	places *places.Set
	mu     sync.Mutex
	all    map[*subscriber]struct{}
}

// subscriber is one connection that receives batches.
//
// Invariant: while the field behind is true, the queue is empty. The snapshot that follows replaces
// all earlier batches.
type subscriber struct {
	counts *counts
	places *places.Set
	wire   *wire
	wake   chan struct{}
	mu     sync.Mutex
	topics map[string]int // number of subscriptions of each
	behind bool           // it needs a snapshot, since it has subscribed to more topics or has lost a batch
	queue  []*message
	bytes  int
	pongs  [][]byte
}

// send queues a batch for all subscribers of its topic. A subscriber that is too slow loses the
// batch, which is counted, and gets a snapshot instead.
func (f *fans) send(m *message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.all {
		if !s.enqueue(m) {
			f.counts.lost.Add(1)
		}
	}
}

func (s *subscriber) enqueue(m *message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.behind || !s.wantsLocked(m.topic) {
		return true
	}
	if len(s.queue) >= maxQueued || s.bytes+len(m.payload) > maxQueuedBytes && len(s.queue) > 0 {
		s.fallBehindLocked()
		return false
	}
	s.queue = append(s.queue, m)
	s.bytes += len(m.payload)
	s.poke()
	return true
}

// fallBehindLocked drops the subscriber's queue; a snapshot replaces it.
func (s *subscriber) fallBehindLocked() {
	s.behind, s.queue, s.bytes = true, nil, 0
	s.poke()
}

func (s *subscriber) wantsLocked(topic []byte) bool {
	for t := range s.topics {
		if strings.HasPrefix(string(topic), t) {
			return true
		}
	}
	return false
}

// topicOfLocked returns the topic under which the subscriber gets events about the whole node. It
// returns false if the subscriber wants no topic of this node.
func (s *subscriber) topicOfLocked(node string) (string, bool) {
	if s.wantsLocked([]byte(node)) {
		return node, true
	}
	for t := range s.topics { // a topic with a model, if the node's topic has none
		if strings.HasPrefix(t, node) {
			return t, true
		}
	}
	return "", false
}

func (s *subscriber) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// serve makes a connection a subscriber. It returns when the connection ends.
func (p *Publisher) serve(ctx context.Context, conn net.Conn) {
	f := p.fans
	w, err := handshake(conn, "PUB", "SUB", "XSUB")
	if err == nil {
		err = conn.SetReadDeadline(time.Now().Add(subscribeTime))
	}
	if err != nil {
		f.counts.refused.Add(1)
		return
	}
	s := &subscriber{counts: f.counts, places: f.places, wire: w, wake: make(chan struct{}, 1), topics: map[string]int{}}
	f.mu.Lock()
	f.all[s] = struct{}{}
	f.mu.Unlock()
	ctx, stop := context.WithCancel(ctx)
	var writing sync.WaitGroup
	writing.Go(func() {
		defer conn.Close()
		p.write(ctx, s)
	})
	s.read()
	stop()
	conn.Close()
	writing.Wait()
	f.mu.Lock()
	delete(f.all, s)
	f.mu.Unlock()
	if len(s.topics) > 0 {
		f.counts.subscribers.Add(-1)
	}
}

// read handles subscriptions. They are messages of one frame, or commands (ZMTP 3.1).
func (s *subscriber) read() {
	command := func(body []byte) {
		if answer, ok := pong(body); ok {
			s.mu.Lock()
			if len(s.pongs) < maxFrames {
				s.pongs = append(s.pongs, answer)
			}
			s.poke()
			s.mu.Unlock()
			return
		}
		if topic, ok := strings.CutPrefix(string(body), "\x09SUBSCRIBE"); ok {
			s.subscribe(topic)
		} else if topic, ok := strings.CutPrefix(string(body), "\x06CANCEL"); ok {
			s.cancel(topic)
		}
	}
	for {
		frames, err := s.wire.message(command)
		if err != nil {
			return
		}
		if len(frames) != 1 || len(frames[0]) == 0 {
			continue
		}
		switch topic := string(frames[0][1:]); frames[0][0] {
		case 1:
			s.subscribe(topic)
		case 0:
			s.cancel(topic)
		}
	}
}

func (s *subscriber) subscribe(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(topic) > maxTopic || s.topics[topic] == 0 && len(s.topics) >= maxSubscriptions {
		return
	}
	if len(s.topics) == 0 {
		s.counts.subscribers.Add(1)
		s.settleLocked(settled, time.Time{})
	}
	if !s.wantsLocked([]byte(topic)) {
		s.fallBehindLocked()
	}
	s.topics[topic]++
}

// settleLocked records whether the connection has a subscription. The parameter until is the
// deadline for the first or next subscription; zero = none.
func (s *subscriber) settleLocked(to places.State, until time.Time) {
	s.places.Set(s.wire.Conn, to, time.Now())
	_ = s.wire.SetReadDeadline(until) // an error appears at the next read too
}

func (s *subscriber) cancel(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[topic] == 0 {
		return
	}
	if s.topics[topic]--; s.topics[topic] == 0 {
		if delete(s.topics, topic); len(s.topics) == 0 {
			s.counts.subscribers.Add(-1)
			s.settleLocked(pending, time.Now().Add(subscribeTime))
		}
	}
}

// write sends the queued batches. If the subscriber is behind, it sends a snapshot.
func (p *Publisher) write(ctx context.Context, s *subscriber) {
	var paced pace
	for {
		s.mu.Lock()
		queue, behind := s.queue, s.behind
		s.queue, s.bytes = nil, 0
		s.mu.Unlock()
		if !s.sendPongs() {
			return
		}
		for _, m := range queue {
			if !s.send(m) {
				return
			}
		}
		var again <-chan time.Time
		if behind {
			now := time.Now()
			if wait := paced.wait(now); wait > 0 {
				again = time.After(wait)
			} else if mine := p.turns.take(s.wire, now); mine == nil {
				again = time.After(turnPoll)
			} else if paced.took(now); !p.sendSnapshot(ctx, s, mine) {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-again:
		}
	}
}

// pace limits the snapshots of one subscriber, since encoding a snapshot costs more than requesting
// it.
type pace struct{ paid time.Time }

// wait returns how long the next snapshot must wait; 0 or less = it may be sent now.
func (p *pace) wait(now time.Time) time.Duration {
	return p.paid.Add(-(maxSnapshots - 1) * snapshotPause).Sub(now)
}

// took records that a snapshot is sent now.
func (p *pace) took(now time.Time) {
	if p.paid.Before(now) {
		p.paid = now
	}
	p.paid = p.paid.Add(snapshotPause)
}

// sendSnapshot sends everything that is published now, and then ends the subscriber's turn. Batches
// published meanwhile are queued. It returns false if the connection must end.
func (p *Publisher) sendSnapshot(ctx context.Context, s *subscriber, mine *turn) bool {
	defer p.turns.leave(mine)
	a, ok := p.ask(ctx, &question{to: s})
	if !ok || a.snapshot == nil {
		return ok
	}
	p.turns.start(mine, time.Now())
	limit := time.Now().Add(replyTime)
	for i := range a.snapshot.len() {
		if time.Now().After(limit) || !s.sendPongs() || !s.send(a.snapshot.message(i)) {
			return false
		}
	}
	return true
}

// send sends a message. If that succeeds, it records that the subscriber reads.
func (s *subscriber) send(m *message) bool {
	ok := s.wire.sendAll(func() { s.wire.send(m.topic, m.seq[:], m.payload) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if ok && len(s.topics) > 0 { // a subscriber without subscriptions stays pending
		s.places.Set(s.wire.Conn, settled, time.Now())
	}
	return ok
}

// sendPongs answers the received heartbeats.
func (s *subscriber) sendPongs() bool {
	s.mu.Lock()
	pongs := s.pongs
	s.pongs = nil
	s.mu.Unlock()
	return len(pongs) == 0 || s.wire.sendAll(func() {
		for _, body := range pongs {
			s.wire.command(body)
		}
	})
}

// sendAll writes what the function put buffers, within sendTime. After false, the connection must
// end.
func (w *wire) sendAll(put func()) bool {
	if w.SetWriteDeadline(time.Now().Add(sendTime)) != nil {
		return false
	}
	put()
	return w.w.Flush() == nil
}

// question asks for missed batches: from a number on, or a snapshot of all that a subscriber wants.
type question struct {
	from   uint64
	to     *subscriber // nil = use from
	answer chan answer
}

// answer has kept batches, a snapshot, or neither.
type answer struct {
	batches  []*message
	snapshot *snapshot
}

// ask passes a question to Run and returns the answer; false = Run has ended.
func (p *Publisher) ask(ctx context.Context, q *question) (answer, bool) {
	q.answer = make(chan answer, 1)
	select {
	case p.asked <- q:
		return <-q.answer, true
	case <-ctx.Done():
		return answer{}, false
	}
}

// end is the number in the last message of a replay.
var end = [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// answer serves one connection of the ROUTER socket. A request consists of an empty frame and a
// frame with the first wanted number.
func (p *Publisher) answer(ctx context.Context, conn net.Conn) {
	w, err := handshake(conn, "ROUTER", "REQ", "DEALER", "ROUTER")
	if err != nil {
		p.counts.refused.Add(1)
		return
	}
	p.askers.Set(conn, idle, time.Now())
	for {
		ok := true
		frames, err := w.message(func(body []byte) {
			if answer, is := pong(body); is {
				ok = w.sendAll(func() { w.command(answer) })
			}
		})
		if err != nil || !ok {
			return
		}
		if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
			continue // vLLM ignores such a request too
		}
		if !p.reply(ctx, w, binary.BigEndian.Uint64(frames[1])) {
			return
		}
	}
}

// reply waits for a turn and answers one request. It returns false if the connection must end.
func (p *Publisher) reply(ctx context.Context, w *wire, from uint64) bool {
	p.askers.Set(w.Conn, idle, time.Now())
	mine := p.turns.take(w, time.Now())
	for ; mine == nil; mine = p.turns.take(w, time.Now()) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(turnPoll):
		}
	}
	defer p.turns.leave(mine)
	a, ok := p.ask(ctx, &question{from: from})
	if !ok {
		return false
	}
	p.turns.start(mine, time.Now())
	limit := time.Now().Add(replyTime)
	send := func(m *message) bool {
		defer func() { p.askers.Set(w.Conn, idle, time.Now()) }()
		return time.Now().Before(limit) && w.sendAll(func() {
			if p.cfg.Format == Maps {
				w.send(nil, m.topic, m.seq[:], m.payload)
			} else {
				w.send(nil, m.seq[:], m.payload)
			}
		})
	}
	for _, m := range a.batches {
		if !send(m) {
			return false
		}
	}
	if a.snapshot != nil {
		for i := range a.snapshot.len() {
			if !send(a.snapshot.message(i)) {
				return false
			}
		}
	}
	return send(&message{seq: end})
}
