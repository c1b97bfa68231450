package peer

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// ownSet is what a node says that it holds itself.
type ownSet map[uint64]bool

func (s ownSet) Has(tag uint64) bool { return s[tag] }

// newcomer is a node that knows the members and none of their sets.
func newcomer(t *testing.T, s *subject, members ...Node) *Peers {
	t.Helper()
	cfg := s.cfg
	cfg.Index, cfg.Learning = &holders{}, func() bool { return true }
	now := time.Now()
	cfg.Now = func() time.Time { return now } // what was asked is remembered for a second
	p := must(New(cfg))
	for _, n := range members {
		noError(t, p.Set(s.member(n).Member))
	}
	t.Cleanup(p.Close)
	return p
}

func TestANewcomerLearnsFromOneNeighbourWhoHoldsWhat(t *testing.T) {
	s := opened(t, options{sources: 3})
	there, own, absent := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40), tiertest.Segment(tiertest.Small, loneTenant[0], 2, 40), tiertest.Segment(tiertest.Small, loneTenant[0], 3, 40)
	s.put(t, 0, there)
	s.put(t, 2, own)
	wants := []tier.Want{tiertest.WantOf(there), tiertest.WantOf(own), tiertest.WantOf(absent)}
	tag, _ := s.names.Tag(&wants[1])
	s.index.mu.Lock()
	delete(s.index.at, tag) // nobody indexes itself
	s.index.mu.Unlock()
	s.sources[2].server.cfg.Known = &Known{Own: ownSet{tag: true}, Peers: s.Peers}

	p := newcomer(t, s, 2) // it can ask only who knows
	noError(t, p.Set(s.member(0).Member))
	s.sources[0].server.cfg.Known = &Known{Own: ownSet{}, Peers: newcomer(t, s)} // knows nothing itself
	// A question has LearnTime, which a busy machine may exceed.
	if !tiertest.Wait(time.Minute, func() bool {
		p.Learn(context.Background(), wants)
		_, ok := p.Hint(&wants[1])
		return ok
	}) {
		t.Fatal("it learns nothing")
	}
	for i, want := range []bool{true, true, false} {
		if _, ok := p.Hint(&wants[i]); ok != want {
			t.Errorf("object %d is hinted: %v", i, ok)
		}
	}
	rows, err := p.Find(context.Background(), wants)
	if err != nil || rows[0] == nil || rows[1] == nil || rows[2] != nil {
		t.Fatalf("%v, %v", rows, err)
	}
	rows[0].Close()
	rows[1].Close()

	before := p.Counters().Learns
	p.Learn(context.Background(), wants)
	if got := p.Counters(); got.Learns != before || got.Learnt != 2 {
		t.Errorf("%d questions after %d, %d learnt", got.Learns, before, got.Learnt)
	}
	p.cfg.Learning = nil
	if p.Learning() {
		t.Error("it is learning although the sets are known")
	}
}

// What a member tells is of members that this node knows, or is nothing.
func TestOnlyMembersAreBelievedToHoldAnything(t *testing.T) {
	s := opened(t, options{sources: 2})
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	s.put(t, 0, o)
	s.sources[1].server.cfg.Known = &Known{Own: ownSet{}, Peers: s.Peers}
	p := newcomer(t, s, 1) // not 0, which holds it
	want := tiertest.WantOf(o)
	p.Learn(context.Background(), []tier.Want{want})
	if _, ok := p.Hint(&want); ok {
		t.Error("a stranger is believed to hold it")
	}
}

func TestWhoDoesNotTellCostsABoundedWait(t *testing.T) {
	s := opened(t, options{})
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	mend, err := s.Disturb(0, o, tiertest.Stalled)
	noError(t, err)
	defer mend()
	p := newcomer(t, s, 0)
	began := time.Now()
	p.Learn(context.Background(), []tier.Want{tiertest.WantOf(o)})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if m := p.member(0); !m.open(time.Now()) || m.failures != [2]int{} {
		t.Errorf("a slow answer to a question of %v counts as a failure", LearnTime)
	}
}

func TestTheOldestThatWasLearntIsForgottenFirst(t *testing.T) {
	var l learnt
	now := time.Unix(1, 0)
	for tag := range uint64(maxLearnt + 1) {
		l.note(tag, []Node{7}, now.Add(learntTTL))
	}
	if got := l.holders(0, make([]Node, 0, 4), now); len(got) > 0 || int(l.n.Load()) != maxLearnt {
		t.Errorf("%v, of %d", got, l.n.Load())
	}
	if got := l.holders(maxLearnt, make([]Node, 0, 4), now); !slices.Equal(got, []Node{7}) {
		t.Error(got)
	}
	if got := l.holders(maxLearnt, make([]Node, 0, 4), now.Add(learntTTL)); len(got) > 0 {
		t.Error(got)
	}
	l.note(5, nil, now.Add(askedTTL))
	if !l.asked(5, now) || l.asked(5, now.Add(askedTTL)) {
		t.Error("nobody is asked again for what nobody had, or never again")
	}
}

func FuzzHolders(f *testing.F) {
	f.Add((&holdersAnswer{knows: true, members: []string{"10.0.0.1:7947", ""}, rows: [][]uint16{{0, tellSelf}, {1}}}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeHolders(b, 2)
		if err != nil {
			return
		}
		if !bytes.Equal(a.append(nil), b) {
			t.Fatalf("%x became %x", b, a.append(nil))
		}
	})
}

func FuzzTags(f *testing.F) {
	s := open(f, loneTenant, options{})
	f.Cleanup(func() {
		if err := s.Close(); err != nil {
			f.Error(err)
		}
	})
	s.sources[0].server.cfg.Known = &Known{Own: ownSet{}, Peers: s.Peers}
	f.Add(appendTags(nil, []uint64{1, 2}))
	f.Fuzz(func(t *testing.T, body []byte) {
		var ctx fasthttp.RequestCtx
		var q fasthttp.Request
		q.Header.SetMethod("POST")
		q.SetRequestURI(HoldersPath)
		q.SetBody(body)
		ctx.Init(&q, nil, nil)
		s.sources[0].server.Handler(&ctx)
		tags, err := decodeTags(body)
		if ok := ctx.Response.StatusCode() == fasthttp.StatusOK; ok != (err == nil) {
			t.Fatalf("%d tags, %v: status %d", len(tags), err, ctx.Response.StatusCode())
		}
	})
}

// What a member tells by itself comes first, and for a while.
func TestWhatWasToldComesFirst(t *testing.T) {
	s := opened(t, options{sources: 3})
	o := tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40)
	s.put(t, 0, o)
	s.put(t, 1, o)
	now := time.Now()
	s.Peers.cfg.Now = func() time.Time { return now }
	w := tiertest.WantOf(o)
	holders := func(room int) []Node {
		dst := make([]Node, room)
		return dst[:s.Holders(&w, dst)]
	}
	if got := holders(4); !slices.Equal(got, []Node{0, 1}) {
		t.Errorf("%v before anything was told", got)
	}
	s.Tell(&w, 2)
	for room, want := range [][]Node{{}, {2}, {2, 0}, {2, 0, 1}, {2, 0, 1}} {
		if got := holders(room); !slices.Equal(got, want) {
			t.Errorf("room for %d: %v, want %v", room, got, want)
		}
	}
	s.Tell(&w, 1)
	if got := holders(4); !slices.Equal(got, []Node{1, 0}) {
		t.Errorf("%v: told last is what counts, once", got)
	}
	now = now.Add(toldTTL)
	if got := holders(4); !slices.Equal(got, []Node{0, 1}) {
		t.Errorf("%v after its time", got)
	}
}
