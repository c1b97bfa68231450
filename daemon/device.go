package daemon

import "github.com/spliced-kv/spliced/connector/wire"

// noDevice answers operations of a GPU that this daemon does not have.
func (t *task) noDevice() (wire.Message, error) {
	return nil, refuse(wire.Unsupported, "%v: this daemon lends no memory of a GPU", t.header.Op)
}
