package hub

import (
	"encoding/binary"
	"testing"
)

// header of a frame between hosts 1, 2, ...; host 0 = all.
func header(to, from uint32) []byte {
	b := make([]byte, headerBytes)
	host := func(b []byte, n uint32) {
		if n == 0 {
			copy(b, "\xff\xff\xff\xff\xff\xff")
			return
		}
		b[0] = 2
		binary.BigEndian.PutUint32(b[2:], n)
	}
	host(b, to)
	host(b[6:], from)
	return b
}

func TestFramesGoWhereTheirAddressWasSeen(t *testing.T) {
	table := table{}
	for i, c := range []struct {
		port     int
		frame    []byte
		to       int
		isAFrame bool
	}{
		{0, header(2, 1), -1, true}, // nobody has heard of 2
		{1, header(1, 2), 0, true},
		{0, header(2, 1), 1, true},
		{0, header(0, 1), -1, true}, // for all
		{2, header(2, 1), 1, true},  // 1 has moved
		{1, header(1, 2), 2, true},
		{1, header(1, 0), 2, true}, // from an address of a group, which is not learnt
		{0, header(0, 3), -1, true},
		{0, header(1, 3)[:13], 0, false},
	} {
		to, ok := table.learn(c.port, c.frame)
		if ok != c.isAFrame || ok && to != c.to {
			t.Errorf("frame %d goes to %d, %v; want %d, %v", i, to, ok, c.to, c.isAFrame)
		}
	}
}

func TestTheTableIsBounded(t *testing.T) {
	table := table{}
	for n := range uint32(2 * maxAddresses) {
		table.learn(1, header(0, n+1))
	}
	if len(table) != maxAddresses {
		t.Errorf("%d addresses", len(table))
	}
	if to, ok := table.learn(0, header(2*maxAddresses, 1)); to != -1 || !ok {
		t.Errorf("a frame for an address that was not learnt goes to %d, %v", to, ok)
	}
	table.learn(0, header(0, 1))
	if to, _ := table.learn(1, header(1, 2)); to != 0 {
		t.Error("an address that is in a full table cannot move")
	}
}
