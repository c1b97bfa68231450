package server

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
)

func TestEveryOperationIsServed(t *testing.T) {
	for op := range wire.Op(wire.OpCount) {
		if op.Known() != served(op) {
			t.Errorf("%v: known to the protocol %v, served %v", op, op.Known(), served(op))
		}
	}
	for _, op := range []wire.Op{0, wire.Op(wire.OpCount), 0xffff} {
		if served(op) {
			t.Errorf("op %d is served", op)
		}
	}
}
