package peer

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// silence detects a member that has stopped answering altogether: its process is stopped,
// its machine hangs, or the network drops packets. Connections to it stay open, so each
// find would run into the timeout of the waiting engine. If a find is unanswered after
// SilentTime, the member is probed: it gets a request that it can answer from memory. If
// the probe brings no byte back either, the member is silent. The find then fails, and the
// member is not asked and appears in no hint until it answers a probe in the background.
//
//	answers ── a find and a probe unanswered ──► silent
//	   ▲                                           │
//	   └────────── a probe is answered ────────────┘
type silence struct {
	heard  atomic.Uint64 // grows whenever something is received from the member
	silent atomic.Bool

	ctx     context.Context // canceled by close
	end     context.CancelFunc
	shared  sync.Mutex // held during a probe, so that concurrent finds share its result
	running sync.WaitGroup
	starts  sync.Mutex // no goroutine is added to running after close
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

// start runs f in a goroutine that the method close waits for. After close, start does
// nothing.
func (s *silence) start(f func()) {
	s.starts.Lock()
	defer s.starts.Unlock()
	if s.ctx.Err() == nil {
		s.running.Go(f)
	}
}

// watch calls the function cancel if the member falls silent before the returned function
// is called.
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

// The function after waits for a duration. It returns false if the context ends earlier.
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

// fellSilent reports whether a member is silent. It probes the member, unless the answer
// is known without a probe.
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
	p.counts.silences.Add(1)
	m.silent.Store(true)
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
