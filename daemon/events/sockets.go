package events

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Bounds of connections. A router subscribes once and asks again now and then.
const (
	maxSubscribers   = 32
	maxAskers        = 32
	maxReplies       = 2 // that are made or sent at once: each may have all that is told
	replyTime        = 2 * time.Minute
	maxSubscriptions = 64 // topics of one
	maxTopic         = 256
	maxQueued        = 4096    // batches that wait for one subscriber
	maxQueuedBytes   = 4 << 20 // and their bytes
	sendTime         = 30 * time.Second
)

// accept serves connections, so many at once, until the listener is closed.
func accept(ctx context.Context, l net.Listener, most int, counts *counts, serve func(context.Context, net.Conn)) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	places := make(chan struct{}, most)
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return err
			}
			select { // out of descriptors, and the like
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		select {
		case places <- struct{}{}:
		default:
			counts.refused.Add(1)
			conn.Close()
			continue
		}
		serving.Go(func() {
			defer func() { <-places }()
			defer conn.Close()
			ended := context.AfterFunc(ctx, func() { conn.Close() })
			defer ended()
			serve(ctx, conn)
		})
	}
}

// fans are the subscribers.
type fans struct {
	counts *counts
	log    zerolog.Logger
	mu     sync.Mutex
	all    map[*subscriber]struct{}
}

// subscriber is one connection that is sent to.
type subscriber struct {
	counts *counts
	wire   *wire
	wake   chan struct{}
	mu     sync.Mutex
	topics map[string]int // how often each was subscribed to
	queue  []*message
	bytes  int
	pongs  [][]byte
}

// send queues a batch for all who subscribed to its topic. Who is too slow for it loses
// it, which is counted and which it sees by the numbers.
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
	if !s.wants(m.topic) {
		return true
	}
	if len(s.queue) >= maxQueued || s.bytes+len(m.payload) > maxQueuedBytes && len(s.queue) > 0 {
		return false
	}
	s.queue = append(s.queue, m)
	s.bytes += len(m.payload)
	s.poke()
	return true
}

func (s *subscriber) wants(topic []byte) bool {
	for t := range s.topics {
		if strings.HasPrefix(string(topic), t) {
			return true
		}
	}
	return false
}

func (s *subscriber) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// serve has one connection be a subscriber until it ends.
func (f *fans) serve(ctx context.Context, conn net.Conn) {
	w, err := handshake(conn, "PUB", "SUB", "XSUB")
	if err != nil {
		f.counts.refused.Add(1)
		return
	}
	s := &subscriber{counts: f.counts, wire: w, wake: make(chan struct{}, 1), topics: map[string]int{}}
	f.mu.Lock()
	f.all[s] = struct{}{}
	f.mu.Unlock()
	ctx, stop := context.WithCancel(ctx)
	var writing sync.WaitGroup
	writing.Go(func() {
		defer conn.Close()
		s.write(ctx)
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

// read follows subscriptions: messages of one frame, or commands since ZMTP 3.1.
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
	}
	s.topics[topic]++
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
		}
	}
}

// write sends what is queued.
func (s *subscriber) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		s.mu.Lock()
		queue, pongs := s.queue, s.pongs
		s.queue, s.bytes, s.pongs = nil, 0, nil
		s.mu.Unlock()
		if !s.wire.sendAll(func() {
			for _, body := range pongs {
				s.wire.command(body)
			}
		}) {
			return
		}
		for _, m := range queue {
			if !s.wire.sendAll(func() { s.wire.send(m.topic, m.seq[:], m.payload) }) {
				return
			}
		}
	}
}

// sendAll writes in sendTime, or ends the connection.
func (w *wire) sendAll(put func()) bool {
	if w.SetWriteDeadline(time.Now().Add(sendTime)) != nil {
		return false
	}
	put()
	return w.w.Flush() == nil
}

// question is a subscriber's for what it missed.
type question struct {
	from     uint64
	messages chan []*message
}

// end is the number of the last frame of an answer.
var end = [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// answer serves one connection of the ROUTER socket: an empty frame and the number to
// begin at, from a REQ or DEALER socket.
func (p *Publisher) answer(ctx context.Context, conn net.Conn) {
	w, err := handshake(conn, "ROUTER", "REQ", "DEALER", "ROUTER")
	if err != nil {
		p.counts.refused.Add(1)
		return
	}
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
			continue // as vLLM does
		}
		if !p.reply(ctx, w, binary.BigEndian.Uint64(frames[1])) {
			return
		}
	}
}

// reply waits for its turn and answers one question; false ends the connection.
func (p *Publisher) reply(ctx context.Context, w *wire, from uint64) bool {
	select {
	case p.replies <- struct{}{}:
		defer func() { <-p.replies }()
	case <-ctx.Done():
		return false
	}
	q := &question{from, make(chan []*message, 1)}
	select {
	case p.asked <- q:
	case <-ctx.Done():
		return false
	}
	limit := time.Now().Add(replyTime)
	for _, m := range <-q.messages {
		if time.Now().After(limit) || !w.sendAll(func() {
			if p.cfg.Format == Maps {
				w.send(nil, m.topic, m.seq[:], m.payload)
			} else {
				w.send(nil, m.seq[:], m.payload)
			}
		}) {
			return false
		}
	}
	return w.sendAll(func() {
		if p.cfg.Format == Maps {
			w.send(nil, nil, end[:], nil)
		} else {
			w.send(nil, end[:], nil)
		}
	})
}
