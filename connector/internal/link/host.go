package link

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
)

// Host is the part of a client that its attachments need. It does not change.
type Host struct {
	Context context.Context // ends when the client is closed

	DaemonUID    *uint32 // the only user trusted as the daemon; see package trust
	Name         string
	Tenants      []wire.TenantName
	StagingBytes int64 // requested; 0 = the daemon's default
	SlotBytes    int64
	Device       gpuipc.Accelerator // nil = no device memory is requested

	AttachTimeout  time.Duration // for connecting and the setup requests
	ReleaseTimeout time.Duration // for returning leases
	Log            zerolog.Logger

	Counters *Counters
	Lost     func(a *Attachment, cause error) // is called once, when a has ended
	Spawn    func(work func())                // runs work unless the client is closed
}
