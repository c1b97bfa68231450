package index

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// FuzzParse is the decoder alone: what it takes is well formed and bounded.
func FuzzParse(f *testing.F) {
	o := NewOwn(5)
	f.Add(o.Delta(nil, Position{}))
	for i := range uint64(20) {
		o.Add(i * 0x9e3779b97f4a7c15)
	}
	f.Add(o.Delta(nil, Position{}))
	f.Add(o.Delta(nil, Position{Incarnation: 5, Version: 7}))
	piece := message{kind: kindPiece, more: true, from: Position{7, 9, 40}, end: 1 << 20, rows: []uint64{40, 45, 1<<20 - 1}}
	f.Add(piece.appendTo(nil))
	f.Fuzz(func(t *testing.T, delta []byte) {
		m, err := parse(delta, nil)
		if err != nil {
			return
		}
		if len(m.rows) > maxMessageKeys || len(m.rows) > 8*len(delta) {
			t.Fatalf("%d rows of %d bytes", len(m.rows), len(delta))
		}
		checkMessage(t, &m)
	})
}

// FuzzApply feeds an index whatever a peer may send. What is taken is well formed and
// bounded, what another peer told stays, and the index counts what it holds.
func FuzzApply(f *testing.F) {
	o := NewOwn(5)
	f.Add(o.Delta(nil, Position{}), []byte{})
	for i := range uint64(300) {
		o.Add(i * 0x9e3779b97f4a7c15)
	}
	whole := o.Delta(nil, Position{})
	at := Position{5, o.Version(), 0}
	for i := range uint64(40) {
		o.Remove(i * 0x9e3779b97f4a7c15)
		o.Add(i*0x9e3779b97f4a7c15 + 1<<63)
	}
	f.Add(whole, o.Delta(nil, at))
	piece := message{kind: kindPiece, more: true, from: Position{7, 9, 0}, end: 1 << 20, rows: []uint64{0, 5, 1<<20 - 1}}
	rest := message{kind: kindPiece, from: Position{7, 9, 1 << 20}, end: keyEnd, rows: []uint64{1 << 20, keyEnd - 1}}
	f.Add(piece.appendTo(nil), rest.appendTo(nil))
	dense := message{kind: kindPiece, from: Position{Incarnation: 7}, end: keyEnd}
	for i := range uint64(3000) {
		dense.rows = append(dense.rows, i)
	}
	f.Add(dense.appendTo(nil), whole)
	f.Fuzz(func(t *testing.T, one, two []byte) {
		x := New(Config{MaxKeys: 4096})
		honest := NewOwn(1)
		for i := range uint64(50) {
			honest.Add(^(i * 0x9e3779b97f4a7c15))
		}
		follow(t, x, 1, honest)
		for _, delta := range [][]byte{one, two, one} {
			before := x.Position(2)
			if _, err := x.Apply(2, delta); err != nil {
				if x.Position(2) != before {
					t.Fatalf("after %v the position is %v, it was %v", err, x.Position(2), before)
				}
				continue
			}
			m, err := parse(delta, nil)
			if err != nil {
				t.Fatalf("applied, though %v", err)
			}
			checkMessage(t, &m)
		}
		for i := range x.shards {
			x.mergeLocked(i)
		}
		for i := range uint64(50) {
			if !slices.Contains(holders(x, ^(i*0x9e3779b97f4a7c15)), 1) {
				t.Fatal("what another peer told is gone")
			}
		}
		x.Forget(2)
		checkCounts(t, x, model{1: keysOf(honest)})
	})
}

// checkMessage wants rows in order, within their span, and the same message when it is
// encoded again. A foreign encoder may choose another k: then only the rows are the same.
func checkMessage(t *testing.T, m *message) {
	t.Helper()
	from, to := m.span()
	last := int64(from) - 1
	for _, row := range m.rows {
		key := row >> m.changeBits()
		if int64(key) <= last || key >= to {
			t.Fatalf("key %d after %d, up to %d", key, last, to)
		}
		last = int64(key)
	}
	again, err := parse(m.appendTo(nil), nil)
	if err != nil || !slices.Equal(again.rows, m.rows) || again.from != m.from || again.end != m.end || again.more != m.more {
		t.Fatalf("encoded again: %v", err)
	}
}

func keysOf(o *Own) map[uint64]bool {
	keys, _ := o.keys.from(0, maxOwn)
	set := map[uint64]bool{}
	for _, k := range keys {
		set[k] = true
	}
	return set
}

// FuzzSet compares an Own, and what follows it, with a map.
func FuzzSet(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0x83, 1}, uint64(1))
	f.Fuzz(func(t *testing.T, ops []byte, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		tags := make([]uint64, 128)
		for i := range tags {
			tags[i] = r.Uint64() >> (seed % 30)
		}
		o, x, want := NewOwn(1), New(Config{}), map[uint64]bool{}
		for i, op := range ops {
			if tag := tags[op&0x7f]; op&0x80 == 0 {
				o.Add(tag)
				want[keyOf(tag)] = true
			} else {
				o.Remove(tag)
				delete(want, keyOf(tag))
			}
			if i%7 == 0 {
				follow(t, x, 0, o)
			}
		}
		follow(t, x, 0, o)
		for _, tag := range tags {
			if o.Has(tag) != want[keyOf(tag)] || (x.Holders(tag, nil) == 1) != want[keyOf(tag)] {
				t.Fatalf("tag %x: own %v, index %d, want %v", tag, o.Has(tag), x.Holders(tag, nil), want[keyOf(tag)])
			}
		}
	})
}

// The format is between nodes of one cluster, of two versions during a rolling upgrade.
func TestTheFormatStays(t *testing.T) {
	changes := message{kind: kindChanges, more: true, from: Position{Incarnation: 0x0102030405060708, Version: 300}, end: 303,
		rows: []uint64{3<<1 | 1, 1 << 33 << 1}}
	piece := message{kind: kindPiece, from: Position{Incarnation: 1, Version: 2, Cursor: 100}, end: keyEnd, rows: []uint64{100, 101, keyEnd - 1}}
	for _, c := range []struct {
		m    message
		want []byte
	}{
		{changes, []byte{0x11, 8, 7, 6, 5, 4, 3, 2, 1, 0xac, 2, 3, 2, 32, 7, 0, 0, 0, 202, 255, 255, 255, 15}},
		{piece, []byte{0x12, 1, 0, 0, 0, 0, 0, 0, 0, 2, 100, 128, 128, 128, 128, 64, 3, 31, 1, 0, 0, 0, 1, 0, 0, 0, 128, 153, 255, 255, 127}},
	} {
		got := c.m.appendTo(nil)
		m, err := parse(got, nil)
		if err != nil || !slices.Equal(m.rows, c.m.rows) || m.from != c.m.from || m.end != c.m.end || m.more != c.m.more {
			t.Errorf("%+v comes back as %+v, %v", c.m, m, err)
		}
		if !bytes.Equal(got, c.want) {
			t.Errorf("%+v:\n%v, want\n%v", c.m, got, c.want)
		}
	}
}
