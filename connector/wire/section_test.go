package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// without is the message of an earlier release: m with no section.
func without(t *testing.T, m Message) Message {
	t.Helper()
	switch m := m.(type) {
	case *MatchRequest:
		old := *m
		old.Prompt, old.Known, old.Primers = MatchPrompt{}, MatchKnownQuery{}, MatchPrimersQuery{}
		return &old
	case *MatchReply:
		old := *m
		old.Estimates, old.Known, old.Rows, old.Primers = MatchEstimates{}, MatchKnown{}, MatchRows{}, MatchPrimers{}
		return &old
	case *ReserveRequest:
		old := *m
		old.Primers = ReservePrimers{}
		return &old
	case *PlanRequest:
		old := *m
		old.Primers = PlanPrimers{}
		return &old
	case *WatchRequest:
		old := *m
		old.Primers = WatchPrimersQuery{}
		return &old
	case *WatchReply:
		old := *m
		old.Primers = WatchPrimers{}
		return &old
	case *LoadReply:
		old := *m
		old.Rows = LoadRows{}
		return &old
	case *SaveRequest:
		old := *m
		old.Buffered = SaveBuffered{}
		return &old
	case *AdviseRequest:
		old := *m
		old.Measured, old.Limit, old.Match = AdviseMeasured{}, AdviseLimit{}, AdviseMatch{}
		return &old
	case *AdviseReply:
		old := *m
		old.Splice, old.Loss, old.Match = AdviseSplice{}, AdviseLoss{}, AdviseMatched{}
		return &old
	case *ReportRequest:
		old := *m
		old.Losses = ReportLosses{}
		return &old
	case *ServedRequest:
		old := *m
		old.Loss = ServedLoss{}
		return &old
	case *AcquireReply:
		old := *m
		old.Packed = AcquirePacked{}
		return &old
	}
	t.Fatalf("%T has no section", m)
	return nil
}

func TestAbsentSectionsAreTheFramesOfAnEarlierRelease(t *testing.T) {
	for _, whole := range withSections() {
		t.Run(whole.name, func(t *testing.T) {
			old := without(t, whole.m)
			body, before := whole.m.Append(nil), old.Append(nil)
			if len(before) >= len(body) || !bytes.Equal(body[:len(before)], before) {
				t.Fatalf("the section changes what lies before it:\n%x\n%x", body, before)
			}
			got, _ := New(whole.op, whole.kind)
			// What an earlier message left behind must not read as present.
			must(t, got.Decode(body))
			if d := difference(got, whole.m); d != "" {
				t.Fatalf("with its section: %s", d)
			}
			must(t, got.Decode(before))
			if d := difference(got, old); d != "" {
				t.Fatalf("without its section: %s", d)
			}
		})
	}
}

func TestSectionsStandBehindEachOther(t *testing.T) {
	both := withSections()[0].m.(*MatchRequest)
	both.Known = withSections()[2].m.(*MatchRequest).Known
	var got MatchRequest
	must(t, got.Decode(both.Append(nil)))
	if d := difference(&got, both); d != "" {
		t.Error(d)
	}
}

func TestSectionsAreRefusedWhereTheyDoNotBelong(t *testing.T) {
	request, reply := without(t, withSections()[0].m).Append(nil), without(t, withSections()[1].m).Append(nil)
	section := func(bit uint32, content ...uint64) []byte {
		b := binary.LittleEndian.AppendUint64(nil, uint64(bit))
		for _, v := range content {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	prompt := section(2, 7, 8)
	for _, row := range []struct {
		name string
		m    Message
		body []byte
		want string
	}{
		{"another section", &MatchRequest{}, join(request, section(3, 7, 8)), "match request: end: 24 bytes left"},
		{"the same twice", &MatchRequest{}, join(request, prompt, prompt), "match request: end: 24 bytes left"},
		{"after a number, not zero", &MatchRequest{}, join(request, []byte{2, 0, 0, 0, 1, 0, 0, 0}, make([]byte, 16)), "match request: end: 24 bytes left"},
		{"of a request, in a reply", &MatchReply{}, join(reply, prompt), "match reply: end: 24 bytes left"},
		{"padding in it", &MatchRequest{}, join(request, section(2, 7|1<<32, 8)), "match request: prompt token off: padding byte 1 before offset"},
		{"other rows", &MatchReply{}, join(reply, section(3, 0, 0, 0, 0)), "match reply: estimates micros: 0 rows, want 3"},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := row.m.Decode(row.body)
			if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
}

func TestSectionsDoNotAllocate(t *testing.T) {
	for _, whole := range withSections() {
		body := whole.m.Append(nil)
		buf := make([]byte, 0, MaxFrame)
		if n := testing.AllocsPerRun(100, func() { buf = whole.m.Append(buf[:0]) }); n != 0 {
			t.Errorf("%s: encode: %v allocations", whole.name, n)
		}
		m, _ := New(whole.op, whole.kind)
		decode := func(body []byte) float64 {
			return testing.AllocsPerRun(100, func() { must(t, m.Decode(body)) })
		}
		// Texts of the message itself allocate, too.
		if n, before := decode(body), decode(without(t, whole.m).Append(nil)); n != before {
			t.Errorf("%s: decode: %v allocations, %v without the section", whole.name, n, before)
		}
	}
}
