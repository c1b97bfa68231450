package wire

import (
	"math/rand/v2"
	"testing"
)

// match64 is the lookup that the figures in docs/protocol.md are for.
func match64() (*MatchRequest, []byte) {
	g := numbers{rand.New(rand.NewPCG(1, 2))}
	m := &MatchRequest{Profile: 1, Accept: AcceptExact, Positions: g.u32s(8), Prefixes: g.hashes(8), Keys: g.hashes(64)}
	h := sampleHeader(OpMatch, Request)
	frame, err := AppendFrame(nil, &h, m)
	if err != nil {
		panic(err)
	}
	return m, frame
}

func BenchmarkEncode(b *testing.B) {
	g := numbers{rand.New(rand.NewPCG(1, 2))}
	request, _ := match64()
	rows := []struct {
		name string
		m    Message
	}{
		{"match=64/request", request},
		{"match=64/reply", g.reply(OpMatch, 64)},
		{"acquire=64/reply", g.reply(OpAcquire, 64)},
		{"compose=64/request", g.request(OpCompose, 64)},
	}
	for _, row := range rows {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			h := sampleHeader(OpMatch, Request)
			buf := make([]byte, 0, MaxFrame)
			for b.Loop() {
				buf, _ = AppendFrame(buf[:0], &h, row.m)
			}
			b.SetBytes(int64(len(buf)))
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	g := numbers{rand.New(rand.NewPCG(1, 2))}
	request, _ := match64()
	rows := []struct {
		name string
		m    Message
		into Message
	}{
		{"match=64/request", request, &MatchRequest{}},
		{"match=64/reply", g.reply(OpMatch, 64), &MatchReply{}},
		{"acquire=64/reply", g.reply(OpAcquire, 64), &AcquireReply{}},
		{"compose=64/request", g.request(OpCompose, 64), &ComposeRequest{}},
	}
	for _, row := range rows {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			h := sampleHeader(OpMatch, Request)
			frame, err := AppendFrame(nil, &h, row.m)
			must(b, err)
			b.SetBytes(int64(len(frame)))
			for b.Loop() {
				_, body, err := ParseHeader(frame)
				if err == nil {
					err = row.into.Decode(body)
				}
				must(b, err)
			}
		})
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	request, frame := match64()
	h := sampleHeader(OpMatch, Request)
	buf := make([]byte, 0, MaxFrame)
	if n := testing.AllocsPerRun(100, func() { buf, _ = AppendFrame(buf[:0], &h, request) }); n != 0 {
		t.Errorf("encode: %v allocations", n)
	}
	var m MatchRequest
	n := testing.AllocsPerRun(100, func() {
		_, body, err := ParseHeader(frame)
		if err == nil {
			err = m.Decode(body)
		}
		must(t, err)
	})
	if n != 0 {
		t.Errorf("decode: %v allocations", n)
	}
}
