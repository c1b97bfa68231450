package server

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// noDevice answers operations of a GPU that this daemon does not have.
func (t *task) noDevice() (wire.Message, error) {
	return nil, codes.Refuse(wire.Unsupported, "%v: this daemon lends no memory of a GPU", t.header.Op)
}
