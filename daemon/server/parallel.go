package server

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// planSegments and watch are not served yet: a client computes by itself then.
func (t *task) planSegments() (wire.Message, error) {
	return nil, codes.Refuse(wire.Unsupported, "%v", t.header.Op)
}

func (t *task) watch() (wire.Message, error) {
	return nil, codes.Refuse(wire.Unsupported, "%v", t.header.Op)
}
