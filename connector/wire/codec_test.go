package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
	"unsafe"
)

func everyOp() []Op {
	var ops []Op
	for op := range Op(OpCount) {
		if op.Known() {
			ops = append(ops, op)
		}
	}
	return ops
}

// eachMessage runs f for the request and the reply of every op.
func eachMessage(t *testing.T, f func(t *testing.T, op Op, kind Kind)) {
	for _, op := range everyOp() {
		t.Run(op.String()+"/request", func(t *testing.T) { f(t, op, Request) })
		t.Run(op.String()+"/reply", func(t *testing.T) { f(t, op, Reply) })
	}
}

// eachSample is eachMessage with samples, and with those that have sections. bare is the length of a
// body where its section begins, 0 without one.
func eachSample(t *testing.T, f func(t *testing.T, op Op, kind Kind, body []byte, bare int)) {
	eachMessage(t, func(t *testing.T, op Op, kind Kind) { f(t, op, kind, sample(op, kind).Append(nil), 0) })
	for _, whole := range withSections() {
		t.Run(whole.name, func(t *testing.T) {
			f(t, whole.op, whole.kind, whole.m.Append(nil), len(without(t, whole.m).Append(nil)))
		})
	}
}

// difference names the first field in which two messages of one type differ; "" =
// in none.
func difference(got, want Message) string {
	g, w := reflect.ValueOf(got).Elem(), reflect.ValueOf(want).Elem()
	for i := range g.NumField() {
		if a, b := g.Field(i).Interface(), w.Field(i).Interface(); !reflect.DeepEqual(a, b) {
			return fmt.Sprintf("%s is %v, want %v", g.Type().Field(i).Name, a, b)
		}
	}
	return ""
}

func TestRoundTripKeepsEveryField(t *testing.T) {
	const seed = 11
	eachMessage(t, func(t *testing.T, op Op, kind Kind) {
		g := numbers{rand.New(rand.NewPCG(seed, uint64(op)))}
		for n := range 40 {
			want := g.message(op, kind, n)
			body := want.Append(nil)
			if len(body)%8 != 0 {
				t.Fatalf("%d rows: body of %d bytes is not padded", n, len(body))
			}
			got, _ := New(op, kind)
			if err := got.Decode(body); err != nil {
				t.Fatalf("seed %d, %d rows: %v", seed, n, err)
			}
			if d := difference(got, want); d != "" {
				t.Fatalf("seed %d, %d rows: %s", seed, n, d)
			}
		}
	})
}

func TestMisalignedBodyDecodesToTheSame(t *testing.T) {
	eachMessage(t, func(t *testing.T, op Op, kind Kind) {
		want := sample(op, kind)
		body := want.Append(nil)
		for shift := 1; shift < 8; shift++ {
			buf := make([]byte, len(body)+16)
			at := shift + int(-uintptr(unsafe.Pointer(&buf[0]))&7)
			copy(buf[at:], body)
			got, _ := New(op, kind)
			must(t, got.Decode(buf[at:at+len(body)]))
			if d := difference(got, want); d != "" {
				t.Fatalf("shift %d: %s", shift, d)
			}
		}
	})
}

func TestCutOrLengthenedBodyIsMalformed(t *testing.T) {
	eachSample(t, func(t *testing.T, op Op, kind Kind, body []byte, bare int) {
		for n := range len(body) {
			m, _ := New(op, kind)
			err := m.Decode(body[:n])
			if whole := n > 0 && n == bare; whole && err != nil || !whole && !errors.Is(err, ErrMalformed) {
				t.Fatalf("cut to %d of %d bytes: %v", n, len(body), err)
			}
		}
		for _, more := range []int{1, 7, 8, 16} {
			m, _ := New(op, kind)
			if err := m.Decode(append(bytes.Clone(body), make([]byte, more)...)); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%d bytes more: %v", more, err)
			}
		}
	})
}

// TestChangedBytesHaveOneMeaning changes every byte: the result must be refused
// or be the encoding of what it decodes to.
func TestChangedBytesHaveOneMeaning(t *testing.T) {
	eachSample(t, func(t *testing.T, op Op, kind Kind, body []byte, _ int) {
		for i := range body {
			for _, flip := range []byte{1, 0x80, 0xff} {
				changed := bytes.Clone(body)
				changed[i] ^= flip
				checkBody(t, op, kind, changed)
			}
		}
	})
}

// checkBody decodes any bytes and holds the codec to its promises.
func checkBody(t *testing.T, op Op, kind Kind, body []byte) {
	t.Helper()
	m, ok := New(op, kind)
	if !ok {
		t.Fatalf("no message for op %d kind %d", op, kind)
	}
	if err := m.Decode(body); err != nil {
		if !errors.Is(err, ErrMalformed) || Answer(err) != Invalid {
			t.Fatalf("op %v kind %d: %v", op, kind, err)
		}
		return
	}
	if again := m.Append(nil); !bytes.Equal(again, body) {
		t.Fatalf("op %v kind %d: %x decodes and encodes to %x", op, kind, body, again)
	}
}

func TestMalformedNamesFieldAndValue(t *testing.T) {
	match := &MatchRequest{Positions: []uint32{1, 2}, Prefixes: make([][32]byte, 2), Keys: make([][32]byte, 1)}
	// Offsets of MatchRequest: scalars 0-7, positions count 8, prefixes count 24,
	// keys count 96.
	rows := []struct {
		name string
		edit func(b []byte) []byte
		want string
	}{
		{"count over bound", func(b []byte) []byte { binary.LittleEndian.PutUint32(b[8:], MaxKeys+1); return b },
			"match request: positions: count 2049, at most 2048"},
		{"count over body", func(b []byte) []byte { binary.LittleEndian.PutUint32(b[96:], 2); return b },
			"match request: keys: 64 bytes at offset 104, 32 left"},
		{"huge count", func(b []byte) []byte { binary.LittleEndian.PutUint32(b[96:], 1<<32-1); return b },
			"match request: keys: count 4294967295, at most 2048"},
		{"rows differ", func(b []byte) []byte { binary.LittleEndian.PutUint32(b[8:], 1); b[20] = 0; return b },
			"match request: prefixes: 2 rows, want 1"},
		{"padding", func(b []byte) []byte { b[5] = 9; return b },
			"match request: positions: padding byte 9 before offset 8"},
		{"bytes after count", func(b []byte) []byte { b[12] = 1; return b },
			"match request: positions: bytes after the count are 0x1"},
		{"trailing", func(b []byte) []byte { return append(b, make([]byte, 16)...) },
			"match request: end: 16 bytes left"},
		{"empty", func([]byte) []byte { return nil },
			"match request: profile: 4 bytes at offset 0, 0 left"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			var m MatchRequest
			err := m.Decode(row.edit(match.Append(nil)))
			if want := row.want + ": malformed frame"; err == nil || err.Error() != want || !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want %s", err, want)
			}
		})
	}
}

func TestCountsMustAddUp(t *testing.T) {
	commit := &CommitRequest{
		Reservations: []uint64{1}, Parts: []uint32{0}, ChunkFirst: []uint32{0},
		ChunkCount: []uint32{3}, StagingOff: []uint64{0}, Digest: []uint64{5, 6},
	}
	var m CommitRequest
	err := m.Decode(commit.Append(nil))
	if err == nil || !strings.Contains(err.Error(), "chunk count: counts add up to 3, 2 elements") {
		t.Fatalf("got %v", err)
	}
}

func TestTextOverBoundIsMalformed(t *testing.T) {
	hello := &HelloRequest{Tenants: []TenantName{{Name: strings.Repeat("x", MaxName+1)}}}
	var m HelloRequest
	err := m.Decode(hello.Append(nil))
	if err == nil || !strings.Contains(err.Error(), "tenant names: text 0 has 257 bytes, at most 256") {
		t.Fatalf("got %v", err)
	}
}

func TestHeaderRefusesWhatItDoesNotKnow(t *testing.T) {
	good, err := AppendFrame(nil, &Header{Op: OpMatch, Request: 77}, &MatchRequest{})
	must(t, err)
	reply, err := AppendFrame(nil, &Header{Kind: Reply, Op: OpMatch, Request: 77}, &MatchReply{})
	must(t, err)
	set := func(frame []byte, at int, v byte) []byte {
		frame = bytes.Clone(frame)
		frame[at] = v
		return frame
	}
	rows := []struct {
		name    string
		frame   []byte
		want    string
		answer  Code
		request uint64
	}{
		{"empty", nil, "header: 0 bytes, want 40", Invalid, 0},
		{"short", good[:39], "header: 39 bytes, want 40", Invalid, 0},
		{"magic", set(good, 0, 'X'), "header: magic 0x434c5058", Invalid, 0},
		{"version", set(good, 4, 9), "header: version 9, want 1", Unsupported, 77},
		{"kind", set(good, 5, 2), "header: kind 2", Invalid, 77},
		{"after code", set(reply, 30, 1), "header: bytes after code 0x10000 are not zero", Invalid, 77},
		{"reserved", set(good, 36, 1), "header: reserved 0x1", Invalid, 77},
		{"length", set(good, 32, 1), "header: length 1, body 32 bytes", Invalid, 77},
		{"cut", good[:48], "header: length 32, body 8 bytes", Invalid, 77},
		{"long", append(bytes.Clone(good), make([]byte, MaxFrame)...), "header: frame of 131144 bytes, at most 131072", Invalid, 77},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h, body, err := ParseHeader(row.frame)
			if err == nil || !strings.HasPrefix(err.Error(), row.want) {
				t.Fatalf("got %v, want %s", err, row.want)
			}
			if Answer(err) != row.answer || h.Request != row.request || body != nil {
				t.Fatalf("answer %v for request %d, body %d bytes", Answer(err), h.Request, len(body))
			}
		})
	}
}

func TestErrorTextIsCutBetweenCharacters(t *testing.T) {
	h := Header{Op: OpMatch, Request: 5, Code: Invalid}
	frame := AppendError(nil, &h, strings.Repeat("a", MaxErrorText-1)+"é")
	got, body, err := ParseHeader(frame)
	if err != nil || got.Code != Invalid || got.Kind != Reply {
		t.Fatalf("code %v, kind %d, %v; want a reply of code invalid", got.Code, got.Kind, err)
	}
	if text := ErrorText(body); len(text) != MaxErrorText-1 || !utf8.ValidString(text) {
		t.Fatalf("%d bytes, valid %v", len(text), utf8.ValidString(text))
	}
	if text := ErrorText([]byte{'a', 0xff}); text != "a?" {
		t.Fatalf("got %q", text)
	}
}

func TestFrameOverMaxIsRefused(t *testing.T) {
	b := []byte("kept")
	b, err := AppendFrame(b, &Header{Op: OpMatch}, &MatchRequest{Prefixes: make([][32]byte, 2100), Keys: make([][32]byte, 2100)})
	if !errors.Is(err, ErrTooLarge) || string(b) != "kept" {
		t.Fatalf("%q, %v", b, err)
	}
}

func TestUnknownMessage(t *testing.T) {
	for _, op := range []Op{0, Op(OpCount), 0xffff} {
		if _, ok := New(op, Request); ok || op.Known() {
			t.Errorf("op %d is known", op)
		}
	}
	if _, ok := New(OpMatch, 2); ok {
		t.Error("kind 2 is known")
	}
}

func TestColumnsAreViews(t *testing.T) {
	body := (&MatchRequest{Keys: make([][32]byte, 4)}).Append(nil)
	var m MatchRequest
	must(t, m.Decode(body))
	body[len(body)-1] = 42
	if m.Keys[3][31] != 42 {
		t.Fatal("keys are a copy")
	}
}

func TestSwapTurnsElements(t *testing.T) {
	b := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	swap(b, 4)
	if want := []byte{4, 3, 2, 1, 8, 7, 6, 5}; !bytes.Equal(b, want) {
		t.Fatalf("got %v, want %v", b, want)
	}
	swap(b, 1)
	if b[0] != 4 {
		t.Fatal("single bytes moved")
	}
}

func FuzzDecode(f *testing.F) {
	for _, op := range everyOp() {
		for _, kind := range []Kind{Request, Reply} {
			h := sampleHeader(op, kind)
			frame, err := AppendFrame(nil, &h, sample(op, kind))
			must(f, err)
			f.Add(frame)
		}
	}
	for _, whole := range withSections() {
		h := sampleHeader(whole.op, whole.kind)
		frame, err := AppendFrame(nil, &h, whole.m)
		must(f, err)
		f.Add(frame)
	}
	f.Add(AppendError(nil, &Header{Op: OpMatch, Code: Stale}, "text"))
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, body, err := ParseHeader(frame)
		if err != nil {
			return
		}
		if again := AppendHeader(nil, &h); !bytes.Equal(again, frame[:HeaderBytes]) {
			t.Fatalf("header %x encodes to %x", frame[:HeaderBytes], again)
		}
		if h.Op.Known() {
			checkBody(t, h.Op, h.Kind, body)
		}
		// Bodies of other messages come along for free.
		ops := everyOp()
		checkBody(t, ops[h.Request%uint64(len(ops))], h.Kind, body)
	})
}
