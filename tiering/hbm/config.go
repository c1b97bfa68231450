package hbm

import (
	"cmp"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

const (
	minPageBytes = 4 << 10
	maxPageBytes = 16 << 20
)

// Config describes the memory of one accelerator for copies. A zero field takes the
// default that its comment states, unless it is marked required. The arena in memory is
// registered with the device. That may pin the arena's pages, so that all of them take
// physical memory from the start.
type Config struct {
	Device gpuipc.Accelerator // required; closed by its owner, after the store
	Way    gpuipc.Way         // how clients map its region; 0 = the device's choice

	// Budgets in bytes, rounded down to whole pages: PublicBytes for segments,
	// PrivateBytes for checkpoints and the rows of buffers. One of them may be 0.
	PublicBytes  int64
	PrivateBytes int64
	PageBytes    int // a power of two from 4 KiB to 16 MiB; default 64 KiB

	Promotions int // concurrent promotions into HBM; default 2 (a guess: one copies while the other ends)
	Queue      int // promotions into HBM that wait or run; default 4096
	// AfterMatch promotes objects that a match finds in memory, for the ranks whose engines
	// are attached (see AttachEngine). Such a promotion is a guess and uses only free room.
	AfterMatch bool

	// OpenTimeout is the time within which the device must grant its region and register the
	// arena in memory. The default is 1 minute.
	OpenTimeout time.Duration
	// Lost is called once, with the reason, when the device turns out to be unusable; nil
	// = no listener. It is called without a lock and must not block.
	Lost func(why error)
}

// WithDefaults sets zero fields to their defaults.
func (h Config) WithDefaults() Config {
	h.PageBytes = cmp.Or(h.PageBytes, 64<<10)
	h.Promotions = cmp.Or(h.Promotions, 2)
	h.Queue = cmp.Or(h.Queue, 4096)
	h.OpenTimeout = cmp.Or(h.OpenTimeout, time.Minute)
	return h
}

// budgets returns the budgets in whole pages.
func (h *Config) budgets() (public, private int64) {
	page := int64(h.PageBytes)
	return h.PublicBytes / page * page, h.PrivateBytes / page * page
}

// Validate calls check for each bound.
func (h *Config) Validate(check func(ok bool, format string, args ...any)) {
	page := h.PageBytes
	check(h.Device != nil, "HBM without a device")
	check(page >= minPageBytes && page <= maxPageBytes && page&(page-1) == 0,
		"HBM: page of %d bytes is not a power of two from %d to %d", page, minPageBytes, maxPageBytes)
	check(h.PublicBytes >= 0 && h.PrivateBytes >= 0 && max(h.PublicBytes, h.PrivateBytes) >= int64(page),
		"HBM: pools of %d and %d bytes in pages of %d", h.PublicBytes, h.PrivateBytes, page)
	check(h.Promotions > 0 && h.Queue > 0, "HBM: %d promotions at once, %d in the queue", h.Promotions, h.Queue)
	check(h.OpenTimeout > 0, "HBM: %v to open a device", h.OpenTimeout)
}
