package peer

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// silence suspects a member that has stopped answering altogether: a stopped process, a
// hung machine, a network that drops packets. Its connections stay open, so each find
// would run into the waiting engine's timeout. A find that is unanswered after SilentTime
// has the member probed by a question that it can answer from memory. If that also gets no
// byte back, the member is silent: the find fails, and the member is no candidate and
// appears in no hint until a probe in the background is answered.
//
//	answers ── a find and a probe unanswered ──► silent
//	   ▲                                           │
//	   └────────── a probe is answered ────────────┘
type silence struct {
	heard  atomic.Uint64 // grows whenever something is received from the member
	silent atomic.Bool

	ctx     context.Context // ended by close
	end     context.CancelFunc
	shared  sync.Mutex // held during a probe: concurrent finds share its result
	running sync.WaitGroup
	starts  sync.Mutex // guards running against close
}

// silentPause is the time between probes of a silent member.
const silentPause = time.Second

func newSilence() *silence {
	s := &silence{}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

func (m *member) close() {
	m.silence.starts.Lock()
	m.silence.end()
	m.silence.starts.Unlock()
	m.pool.close()
	m.silence.running.Wait()
}

// start runs f in a goroutine that close waits for; after close it does nothing.
func (s *silence) start(f func()) {
	s.starts.Lock()
	defer s.starts.Unlock()
	if s.ctx.Err() == nil {
		s.running.Go(f)
	}
}

// watch calls cancel if the member falls silent before stop is called.
func (p *Peers) watch(m *member, cancel func()) (stop func()) {
	ctx, done := context.WithCancel(m.silence.ctx)
	m.silence.start(func() {
		for after(ctx, p.cfg.SilentTime) {
			if p.fellSilent(m) {
				cancel()
				return
			}
		}
	})
	return done
}

// after waits; it returns false if the context ends before.
func after(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// fellSilent probes a member unless it is known to be silent.
func (p *Peers) fellSilent(m *member) bool {
	before := m.heard.Load()
	m.shared.Lock()
	defer m.shared.Unlock()
	switch {
	case m.silent.Load():
		return true
	case m.heard.Load() != before, m.probe(), m.silence.ctx.Err() != nil:
		return false
	}
	m.silent.Store(true)
	p.counts.silences.Add(1)
	p.cfg.Log.Warn().Uint16("peer", uint16(m.Node)).Str("address", m.Addr).Msg("a peer does not answer: nothing is fetched from it until it does")
	m.silence.start(func() {
		for after(m.silence.ctx, silentPause) {
			if m.probe() {
				m.silent.Store(false)
				p.cfg.Log.Info().Uint16("peer", uint16(m.Node)).Str("address", m.Addr).Msg("a peer answers again")
				return
			}
		}
	})
	return true
}

// probe asks a member for the holders of one tag and reports whether anything was received
// from it meanwhile, on any connection. An error status is an answer too.
func (m *member) probe() bool {
	ctx, cancel := context.WithTimeout(m.silence.ctx, m.cfg.SilentTime)
	defer cancel()
	before := m.heard.Load()
	_ = m.exchange(ctx, &request{
		path: HoldersPath, body: appendTags(nil, []uint64{1}), time: m.cfg.SilentTime,
		consume: func(_ context.Context, l *link, n int) error {
			if n > maxTelled {
				return fmt.Errorf("%w: node %d answers a probe with %d bytes, at most %d", errFailed, m.Node, n, maxTelled)
			}
			_, err := io.CopyN(io.Discard, l.br, int64(n))
			return err
		},
	})
	return m.heard.Load() != before
}
