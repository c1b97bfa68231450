package coding

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"testing"
)

type message struct {
	a, b    uint8
	c       uint16
	d       int
	e       int64
	f       float64
	yes     bool
	name    string
	raw     [3]byte
	list    []uint16
	numbers []uint32
	rows    [][]uint64
	rest    string
}

func (m *message) Fields(c *Cursor) {
	U8(c, &m.a, &m.b)
	U16(c, &m.c)
	U32(c, &m.d)
	U64(c, &m.e)
	F64(c, &m.f)
	c.Flag(&m.yes)
	Text(c, &m.name, 1, 20)
	c.Raw(m.raw[:])
	List(c, &m.list, 2, 2, 10)
	for i := range m.list {
		U16(c, &m.list[i])
	}
	c.U32s(&m.numbers, 10)
	c.Rows(&m.rows, 2)
	Rest(c, &m.rest, 5)
}

var example = message{
	a: 1, b: 2, c: 0x304, d: 0x5060708, e: -2, f: 1.5, yes: true, name: "no", raw: [3]byte{7, 8, 9}, list: []uint16{1, 2},
	numbers: []uint32{math.MaxUint32}, rows: [][]uint64{{1}, {2}}, rest: "rest",
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	b := Append([]byte{}, &example)
	want := "01020403" + "08070605" + "feffffffffffffff" + "000000000000f83f" + "01" + "026e6f" + "070809" + "020001000200" +
		"01000000ffffffff" + "0100000001000000000000000200000000000000" + "72657374"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var m message
	if err := Parse(b, &m); err != nil || !reflect.DeepEqual(m, example) {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestMessagesOfAnotherLengthAreRefused(t *testing.T) {
	b := Append(nil, &example)
	for n := range len(b) - len(example.rest) {
		var m message
		c := Reader(b[:n])
		if m.Fields(&c); c.End() == nil || c.Left() > n {
			t.Errorf("%d of %d bytes are read as %+v, %d left", n, len(b), m, c.Left())
		}
	}
	if err := Parse(append(bytes.Clone(b), "more"...), new(message)); err == nil {
		t.Error("bytes behind a message are not noticed")
	}
}

func TestLengthsAreBounded(t *testing.T) {
	for what, b := range map[string][]byte{
		"above the limit":      append([]byte{11, 0}, make([]byte, 100)...),
		"more than there is":   {2, 0, 1, 0, 2},
		"the length cut short": {2},
	} {
		list := []uint16{1}
		c := Reader(b)
		if List(&c, &list, 2, 2, 10); c.Err() == nil || list != nil {
			t.Errorf("%s: %v", what, list)
		}
	}
}

func TestTheFirstFailureIsKept(t *testing.T) {
	c := Reader([]byte{2, 0, 0, 0})
	var flag bool
	c.Flag(&flag)
	n := 7
	if U8(&c, &n); n != 0 || c.Left() != 3 {
		t.Errorf("%d is read after a failure, %d bytes left", n, c.Left())
	}
	c.Fail("another")
	if err := c.End(); err == nil || err.Error() != "flag 2" {
		t.Error(err)
	}
	w := Writer(nil)
	if w.Fail("of a writer"); w.Err() != nil {
		t.Error(w.Err())
	}
}

func TestAppendingToWhatWasTakenLeavesTheRestAsItWas(t *testing.T) {
	b := []byte{1, 2, 3}
	c := Reader(b)
	_ = append(c.Take(1), 9)
	if rest := c.Take(2); !bytes.Equal(rest, []byte{2, 3}) || b[1] != 2 {
		t.Errorf("%v, of %v", rest, b)
	}
}
