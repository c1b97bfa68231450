package hostile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// modelNamed is a small profile: a linear layer and one of attention, whose keys and
// values take rowBytes each for a token.
func modelNamed(name string) *profile.Profile {
	id := profiletest.TwoLayers(1)
	id.Model = name
	return profiletest.New(id)
}

const rowBytes = 2 * 16 * 2

// registered registers a profile and waits for the daemon.
func registered(t testing.TB, c *connector.Client, p *profile.Profile, b connector.Binding) *connector.Model {
	t.Helper()
	m, err := c.Register(p, b)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := m.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return m
}

// newSegment is one of n tokens that nobody has put before, all zeros.
func newSegment(n int) *connector.PutQuery {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rand.Uint32N(1 << 16)
	}
	zeros := connector.Source{Fill: func(_ profile.Part, _ int, _ int64, dst []byte) error { clear(dst); return nil }}
	return &connector.PutQuery{Spec: profile.FirstSpec(n), Tokens: tokens, Source: zeros}
}

// put publishes a new segment of n tokens.
func put(m *connector.Model, n int) (profile.SegmentKey, error) {
	q := newSegment(n)
	if _, err := m.Put(context.Background(), q); err != nil {
		return profile.SegmentKey{}, err
	}
	key, ok := m.SegmentKey(q.Spec, q.Tokens)
	if !ok {
		return key, errors.New("the daemon has gone")
	}
	return key, nil
}

// held leases a segment that put has published.
func held(t testing.TB, m *connector.Model, key profile.SegmentKey) *connector.Lease {
	t.Helper()
	got, err := m.Acquire(context.Background(), []profile.SegmentKey{key}, connector.AcquireOptions{})
	if err != nil || got[0].Err != nil {
		t.Fatalf("acquire: %v, %v", err, got)
	}
	return got[0].Lease
}

// sparse is a sealed memfd of one hole.
func sparse(t testing.TB, bytes int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("sparse", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "sparse")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(bytes); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatal(err)
	}
	return f
}

// inBlocks describes memory of which each token has a block: its keys at the
// beginning and its values in the middle.
func inBlocks(f *os.File, bytes, stride int64) *connector.Memory {
	return &connector.Memory{File: f, Bytes: bytes, Layers: []wire.MemoryLayer{{
		Layer: 1, VBase: uint64(stride / 2), BlockStride: uint64(stride),
		KTokenStride: rowBytes, KHeadStride: rowBytes / 2, VTokenStride: rowBytes, VHeadStride: rowBytes / 2,
	}}}
}

// neighbour is an engine that does what engines do while others attack.
type neighbour struct {
	t      testing.TB
	model  *connector.Model
	idle   time.Duration // p99 of its calls before the attack
	failed atomic.Bool   // a call has
}

const neighbourCalls = 300

func (v *victim) neighbour() *neighbour {
	v.t.Helper()
	n := &neighbour{t: v.t, model: registered(v.t, v.client(connector.Options{Name: "neighbour"}), modelNamed("neighbour"), connector.Binding{})}
	n.idle = p99(2*neighbourCalls, func() { n.call() })
	return n
}

// call publishes a segment, which must succeed.
func (n *neighbour) call() time.Duration {
	begun := time.Now()
	if n.failed.Load() {
		return 0 // said once
	}
	err := patiently(func() error {
		_, err := put(n.model, 64)
		return err
	})
	if err != nil && !n.failed.Swap(true) {
		n.t.Errorf("the neighbour's put: %v", err)
	}
	return time.Since(begun)
}

// patiently publishes again while that is busy: where there is a disk, memory may be
// full of what is still being written there. It is time felt.
func patiently(publish func() error) error {
	err := publish()
	for begun := time.Now(); errors.Is(err, connector.ErrBusy) && time.Since(begun) < patience; time.Sleep(time.Millisecond) {
		err = publish()
	}
	return err
}

// during runs an attack and says how the neighbour fares meanwhile, beside idle.
func (n *neighbour) during(attack func()) (felt string) {
	n.t.Helper()
	felt, _ = n.duringWorst(attack)
	return felt
}

// duringWorst also returns the longest call.
func (n *neighbour) duringWorst(attack func()) (felt string, worst time.Duration) {
	n.t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	var took []time.Duration
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				if len(took) >= neighbourCalls {
					return
				}
			default:
			}
			took = append(took, n.call())
		}
	}()
	end := func() { close(stop); <-done }
	defer func() { // an attack that fails the test does not return
		if end != nil {
			end()
		}
	}()
	attack()
	end()
	end = nil
	slices.Sort(took)
	return feltBy(took[(len(took)*99-1)/100], n.idle), took[len(took)-1]
}

func feltBy(now, idle time.Duration) string {
	return fmt.Sprintf("p99 of a publish %v, idle %v (%.1fx)", now.Round(time.Microsecond), idle.Round(time.Microsecond), float64(now)/float64(idle))
}

// usage is what a memory cgroup holds.
func usage(t testing.TB, dir string) int64 {
	t.Helper()
	for _, name := range []string{"memory.current", "memory.usage_in_bytes"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s does not tell what it holds", dir)
	return 0
}
