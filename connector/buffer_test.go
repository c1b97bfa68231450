package connector

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
)

// ledger answers as a daemon does that keeps one buffer's numbers.
type ledger struct{ begin, accepted, end uint32 }

func (l *ledger) reply() *wire.AppendReply {
	return &wire.AppendReply{Buffer: 700, Begin: l.begin, Accepted: l.accepted, End: l.end}
}

func (l *ledger) append(r *request) {
	m := decode[wire.AppendRequest](r)
	if m.Buffer == 0 {
		*l = ledger{m.Begin, m.Begin, m.Begin}
	} else if m.Begin != l.end {
		refuse(wire.Invalid, "a gap")(r)
		return
	}
	l.end += m.Rows
	r.reply(l.reply())
}

func (l *ledger) serve(f *fake) {
	f.on(wire.OpAppend, l.append)
	f.on(wire.OpAccept, func(r *request) {
		l.accepted += decode[wire.AcceptRequest](r).Tokens
		l.end = l.accepted
		r.reply(l.reply())
	})
	f.on(wire.OpReplay, func(r *request) {
		if m := decode[wire.ReplayRequest](r); m.Flush == 1 {
			l.begin = m.Token
		}
		r.reply(&wire.ComposeReply{Lease: 900, Off: 64, Bytes: 128})
	})
}

func wantSpan(t *testing.T, b *Buffer, begin, accepted, end int) {
	t.Helper()
	if b.Begin() != begin || b.Accepted() != accepted || b.End() != end {
		t.Fatalf("buffer [%d, %d, %d], want [%d, %d, %d]", b.Begin(), b.Accepted(), b.End(), begin, accepted, end)
	}
}

func rows(t *testing.T, n int) []byte {
	return make([]byte, testProfile().BufferLayout(n).Bytes)
}

func TestABufferFollowsWhatTheDaemonSays(t *testing.T) {
	f := startFake(t)
	l := new(ledger)
	l.serve(f)
	m := register(t, open(t, f), Binding{})
	b, err := m.OpenBuffer(background, &OpenQuery{Begin: 0, Capacity: 8})
	must(t, err)
	wantSpan(t, b, 0, 0, 0)
	arrived := make(chan []byte, 1)
	f.on(wire.OpAppend, func(r *request) {
		q := decode[wire.AppendRequest](r)
		sent := make([]byte, len(rows(t, 3)))
		ref := gpuipc.Ref{Region: f.staging, Extents: []gpuipc.Extent{{Off: int64(q.StagingOff), Len: int64(len(sent))}}}
		if err := f.device.Load(background, sent, ref); err != nil {
			t.Error(err)
		}
		arrived <- sent
		l.append(r)
	})
	data := rows(t, 3)
	for i := range data {
		data[i] = byte(31*i + i>>8)
	}
	must(t, m.Append(background, b, 3, data))
	if string(<-arrived) != string(data) {
		t.Error("other rows than were given")
	}
	wantSpan(t, b, 0, 0, 3)
	must(t, m.Accept(background, b, 2))
	wantSpan(t, b, 0, 2, 2)
	slot, err := m.Replay(background, b, &ReplayQuery{Token: 1, Flush: true})
	if err != nil || len(slot.Bytes()) != 128 {
		t.Fatalf("replay: %v", err)
	}
	wantSpan(t, b, 1, 2, 2)
	if again, err := m.Replay(background, b, &ReplayQuery{Token: 2, Into: slot}); err != nil || again != slot {
		t.Fatalf("replay into a slot: %v", err)
	}
	slot.Release()
	b.Release()
	b.Release()
	if n := f.count(wire.OpRelease); n != 2 {
		t.Errorf("%d releases, want one for the slot and one for the buffer", n)
	}
	for what, err := range map[string]error{
		"append": m.Append(background, b, 1, rows(t, 1)), "accept": m.Accept(background, b, 0),
	} {
		if !errors.Is(err, ErrGone) {
			t.Errorf("%s after release: %v", what, err)
		}
	}
}

func TestBadBufferCallsAreNotSent(t *testing.T) {
	f := startFake(t)
	new(ledger).serve(f)
	m := register(t, open(t, f), Binding{})
	b, err := m.OpenBuffer(background, &OpenQuery{Capacity: 8})
	must(t, err)
	defer b.Release()
	slot, err := m.Compose(background, &ComposeQuery{})
	must(t, err)
	defer slot.Release()
	sent := f.count(wire.OpAppend) + f.count(wire.OpAccept) + f.count(wire.OpReplay)
	open := func(q OpenQuery) error { _, err := m.OpenBuffer(background, &q); return err }
	replay := func(q ReplayQuery) error { _, err := m.Replay(background, b, &q); return err }
	for what, err := range map[string]error{
		"no capacity":          open(OpenQuery{}),
		"before the prompt":    open(OpenQuery{Begin: -1, Capacity: 1}),
		"middle of a slot":     open(OpenQuery{Begin: 3, Capacity: 1, From: From{Slot: slot, SlotOff: 64}}),
		"no rows":              m.Append(background, b, 0, nil),
		"negative rows":        m.Append(background, b, -1, nil),
		"bytes of other rows":  m.Append(background, b, 2, rows(t, 3)),
		"accept less than 0":   m.Accept(background, b, -1),
		"replay before begin":  replay(ReplayQuery{Token: -1}),
		"replay of what is no": replay(ReplayQuery{Token: 1}),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := f.count(wire.OpAppend) + f.count(wire.OpAccept) + f.count(wire.OpReplay); n != sent {
		t.Errorf("%d requests were sent", n-sent)
	}
}

// Refusals that leave the buffer alone do; after anything else nobody knows.
func TestARefusedBufferGoesOnAnUnsureOneDoesNot(t *testing.T) {
	for code, lost := range map[wire.Code]bool{
		wire.Full: false, wire.Busy: false, wire.Invalid: false, wire.Quota: false, wire.Canceled: true, wire.Unavailable: true, wire.Late: true,
	} {
		t.Run(code.String(), func(t *testing.T) {
			f := startFake(t)
			l := new(ledger)
			l.serve(f)
			m := register(t, open(t, f), Binding{})
			b, err := m.OpenBuffer(background, &OpenQuery{Capacity: 8})
			must(t, err)
			f.on(wire.OpAppend, refuse(code, "no"))
			if err := m.Append(background, b, 1, rows(t, 1)); !errors.Is(err, link.Kind(code)) {
				t.Errorf("%v: %v", code, err)
			}
			f.on(wire.OpAppend, l.append)
			err = m.Append(background, b, 1, rows(t, 1))
			if lost != errors.Is(err, ErrGone) || !lost && err != nil || lost == b.Valid() {
				t.Errorf("%v: then %v, valid %v", code, err, b.Valid())
			}
			b.Release()
			f.await(wire.OpRelease)
		})
	}
}

// A buffer whose opening was given up is released when it comes after all, and a
// replay that failed spoils the slot that it was to write.
func TestLateBuffersAreGivenBack(t *testing.T) {
	f, _, m := opened(t)
	released := make(chan []uint64, 10)
	f.on(wire.OpRelease, func(r *request) {
		released <- append([]uint64(nil), decode[wire.ReleaseRequest](r).Leases...)
		standard(r)
	})
	var late []*request
	held := make(chan bool, 10)
	keep := func(r *request) {
		kept := *r
		kept.body = append([]byte(nil), r.body...)
		late = append(late, &kept)
		held <- true
	}
	f.on(wire.OpAppend, keep)
	if _, err := m.OpenBuffer(brief(t), &OpenQuery{Capacity: 8}); !errors.Is(err, ErrLate) {
		t.Fatalf("open: %v", err)
	}
	<-held
	late[0].reply((&ledger{}).reply())
	if got := <-released; fmt.Sprint(got) != "[700]" {
		t.Fatalf("gave back %v", got)
	}

	new(ledger).serve(f)
	b, err := m.OpenBuffer(context.Background(), &OpenQuery{Capacity: 8})
	must(t, err)
	slot, err := m.Replay(background, b, &ReplayQuery{})
	must(t, err)
	f.on(wire.OpReplay, keep)
	if _, err := m.Replay(brief(t), b, &ReplayQuery{Flush: true, Into: slot}); !errors.Is(err, ErrLate) {
		t.Fatalf("replay: %v", err)
	}
	<-held
	if slot.Valid() || b.Valid() {
		t.Errorf("after a flush that may still run: slot valid %v, buffer valid %v", slot.Valid(), b.Valid())
	}
	late[1].reply(&wire.ComposeReply{Lease: 900, Off: 64, Bytes: 128})
	slot.Release()
	b.Release()
	<-released
	<-released
}

func TestBufferRepliesThatMakeNoSenseEndTheConnection(t *testing.T) {
	for name, l := range map[string]wire.AppendReply{
		"no buffer":         {},
		"accepted past end": {Buffer: 700, Accepted: 2, End: 1},
		"begin past end":    {Buffer: 700, Begin: 3, Accepted: 2, End: 2},
		"a huge end":        {Buffer: 700, End: 1 << 31},
		"rows of nobody":    {Buffer: 700, End: 1},
		"another token":     {Buffer: 700, Begin: 4, Accepted: 4, End: 4},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.on(wire.OpAppend, func(r *request) { r.reply(&l) })
			c := open(t, f)
			m := register(t, c, Binding{})
			if _, err := m.OpenBuffer(background, &OpenQuery{Capacity: 8}); !errors.Is(err, ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// After each request a client knows what the buffer holds, whatever the daemon
// says.
func TestBufferRepliesThatAreNotWhatWasAskedForEndTheConnection(t *testing.T) {
	grow := func(m *Model, b *Buffer) error { return m.Append(background, b, 2, rows(t, 2)) }
	keep := func(m *Model, b *Buffer) error { return m.Accept(background, b, 2) }
	for name, c := range map[string]struct {
		op   wire.Op
		call func(m *Model, b *Buffer) error
		says wire.AppendReply
		good bool
	}{
		"appended":              {wire.OpAppend, grow, wire.AppendReply{Buffer: 700, Begin: 4, Accepted: 4, End: 9}, true},
		"appended elsewhere":    {wire.OpAppend, grow, wire.AppendReply{Buffer: 701, Begin: 4, Accepted: 4, End: 9}, false},
		"fewer appended":        {wire.OpAppend, grow, wire.AppendReply{Buffer: 700, Begin: 4, Accepted: 4, End: 8}, false},
		"appended and accepted": {wire.OpAppend, grow, wire.AppendReply{Buffer: 700, Begin: 4, Accepted: 5, End: 9}, false},
		"appended and flushed":  {wire.OpAppend, grow, wire.AppendReply{Buffer: 700, Begin: 3, Accepted: 4, End: 9}, false},
		"accepted":              {wire.OpAccept, keep, wire.AppendReply{Buffer: 700, Begin: 4, Accepted: 6, End: 6}, true},
		"accepted elsewhere":    {wire.OpAccept, keep, wire.AppendReply{Buffer: 701, Begin: 4, Accepted: 6, End: 6}, false},
		"fewer accepted":        {wire.OpAccept, keep, wire.AppendReply{Buffer: 700, Begin: 4, Accepted: 5, End: 5}, false},
		"drafts left":           {wire.OpAccept, keep, wire.AppendReply{Buffer: 700, Begin: 4, Accepted: 6, End: 7}, false},
		"accepted and flushed":  {wire.OpAccept, keep, wire.AppendReply{Buffer: 700, Begin: 6, Accepted: 6, End: 6}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			new(ledger).serve(f)
			m := register(t, open(t, f), Binding{})
			b, err := m.OpenBuffer(background, &OpenQuery{Begin: 4, Capacity: 8})
			must(t, err)
			must(t, m.Append(background, b, 3, rows(t, 3)))
			f.on(c.op, func(r *request) { r.reply(&c.says) })
			switch err := c.call(m, b); {
			case c.good && (err != nil || !b.Valid()):
				t.Errorf("%s: %v", name, err)
			case !c.good && (!errors.Is(err, ErrUnavailable) || b.Valid()):
				t.Errorf("%s: %v, valid %v", name, err, b.Valid())
			}
			b.Release()
		})
	}
}
