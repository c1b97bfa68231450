package wire

import "fmt"

// FeatureDevice is the second feature bit of hello: the daemon has memory of a
// GPU to lend, and takes the operations from OpAttachDevice on.
const FeatureDevice uint64 = 1 << 1

// Ways in which device memory crosses the process border; bits of a set in an
// AttachDeviceRequest.
const (
	WayDescriptor uint8 = 1 // one descriptor for each chunk, with the frame
	WayHandle     uint8 = 2 // one CUDA IPC handle for each chunk, in the frame
)

// UUIDBytes and HandleBytes are the sizes of a device's UUID and of a CUDA IPC
// handle of memory or of an event.
const (
	UUIDBytes   = 16
	HandleBytes = 64
)

// AttachDeviceRequest asks for device memory: the public arena and a chunk of
// this connection's own. It is answered once on a connection.
type AttachDeviceRequest struct {
	Ways         uint8  // what the client is able to map
	PrivateBytes uint64 // wanted; 0 = the daemon's default
	UUID         []byte // the client's device, UUIDBytes long; empty = any
}

// AttachDeviceReply says what to map, in the order of Chunks: those of the
// public arena laid end to end, then those of the private one. Descriptors:
// first a sealed memfd with the kernels' PTX text, then one for each chunk where
// Way is WayDescriptor.
type AttachDeviceReply struct {
	Way          uint8
	Epoch        uint64 // of the device's pools; other numbers after a restart
	PublicBytes  uint64 // of the chunks of the arena; AcquireDevice answers extents in it
	PrivateBytes uint64 // of the private chunks; slots of device requests lie in them
	OrderOff     uint64 // of the order page, in the private chunks
	OrderSlots   uint32 // of 64 bytes each
	// StagingOff and StagingBytes are the part of the private chunks that the
	// client writes: inputs of a compose of device leases are offsets in it.
	StagingOff   uint64
	StagingBytes uint64
	PublicChunks uint32 // how many of the chunks are the arena's
	UUID         []byte // the daemon's device
	ChunkBytes   []uint64
	Handles      []byte   // HandleBytes for each chunk; WayHandle only
	Offsets      []uint64 // where in its allocation each chunk begins; WayHandle only
	// Events are handles of a pair of events where the device has no memory
	// operations on streams: recorded by the client, recorded by the daemon.
	Events []byte
}

// RegisterDeviceRequest registers device memory that the engine owns, as
// ProfileRequest does for memory of the host. Chunks are taken as one run, which
// the layers' offsets count from. Descriptors: one for each chunk where Way is
// WayDescriptor.
type RegisterDeviceRequest struct {
	Profile    uint32
	Way        uint8
	Epoch      uint64 // the client's: what it registers again under the same number is the same memory
	ChunkBytes []uint64
	Handles    []byte
	Offsets    []uint64
	Memory     []MemoryLayer
}

// RegisterDeviceReply names the memory for rotate and assemble.
type RegisterDeviceReply struct{ Memory uint32 }

// AcquireDeviceRequest leases segments in device memory. What is not there yet
// is copied there: with Wait 1 the reply waits for that, else it is a miss.
type AcquireDeviceRequest struct {
	Profile uint32
	Rank    uint32
	TTLMs   uint32
	Digests uint8
	All     uint8
	Wait    uint8
	Keys    [][32]byte
}

// OrderRequest ties leases to the client's stream: when the client's slot of the
// order page has reached After, the leases are released, and then Signal, if it
// is not 0, is written to the daemon's slot.
type OrderRequest struct {
	After  uint64
	Signal uint64
	Leases []uint64
}

// LoadDeviceRequest is a LoadRequest whose reply has extents in device memory.
type LoadDeviceRequest struct {
	LoadRequest
}

// Append implements Message.
func (m *AttachDeviceRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u8(m.Ways)
	w.u64(m.PrivateBytes)
	put(&w, m.UUID)
	return w.b
}

// Decode implements Message.
func (m *AttachDeviceRequest) Decode(body []byte) error {
	r := reader{message: "attach-device request", body: body}
	m.Ways = r.u8("ways")
	m.PrivateBytes = r.u64("private bytes")
	m.UUID = get[uint8](&r, "uuid", UUIDBytes)
	if len(m.UUID) > 0 {
		r.same("uuid", len(m.UUID), UUIDBytes)
	}
	return r.end()
}

// Append implements Message.
func (m *AttachDeviceReply) Append(b []byte) []byte {
	w := begin(b)
	w.u8(m.Way)
	w.u64(m.Epoch)
	w.u64(m.PublicBytes)
	w.u64(m.PrivateBytes)
	w.u64(m.OrderOff)
	w.u32(m.OrderSlots)
	w.u32(m.PublicChunks)
	w.u64(m.StagingOff)
	w.u64(m.StagingBytes)
	put(&w, m.UUID)
	w.chunks(m.ChunkBytes, m.Handles, m.Offsets)
	put(&w, m.Events)
	return w.b
}

// Decode implements Message.
func (m *AttachDeviceReply) Decode(body []byte) error {
	r := reader{message: "attach-device reply", body: body}
	m.Way = r.u8("way")
	m.Epoch = r.u64("epoch")
	m.PublicBytes = r.u64("public bytes")
	m.PrivateBytes = r.u64("private bytes")
	m.OrderOff = r.u64("order off")
	m.OrderSlots = r.u32("order slots")
	m.PublicChunks = r.u32("public chunks")
	m.StagingOff = r.u64("staging off")
	m.StagingBytes = r.u64("staging bytes")
	m.UUID = get[uint8](&r, "uuid", UUIDBytes)
	r.same("uuid", len(m.UUID), UUIDBytes)
	m.ChunkBytes, m.Handles, m.Offsets = r.chunks(m.Way)
	if int64(m.PublicChunks) > int64(len(m.ChunkBytes)) {
		r.fail("public chunks", "%d of %d", m.PublicChunks, len(m.ChunkBytes))
	}
	m.Events = get[uint8](&r, "events", 2*HandleBytes)
	if len(m.Events) > 0 {
		r.same("events", len(m.Events), 2*HandleBytes)
	}
	return r.end()
}

// chunks writes the columns that describe shared memory.
func (w *writer) chunks(bytes []uint64, handles []byte, offsets []uint64) {
	put(w, bytes)
	put(w, handles)
	put(w, offsets)
}

func (r *reader) chunks(way uint8) (bytes []uint64, handles []byte, offsets []uint64) {
	bytes = get[uint64](r, "chunk bytes", MaxChunks)
	handles = get[uint8](r, "handles", MaxChunks*HandleBytes)
	offsets = get[uint64](r, "offsets", MaxChunks)
	n := 0
	switch way {
	case WayHandle:
		n = len(bytes)
	case WayDescriptor:
	default:
		r.fail("way", "%d", way)
	}
	r.same("handles", len(handles), n*HandleBytes)
	r.same("offsets", len(offsets), n)
	return bytes, handles, offsets
}

// Append implements Message.
func (m *RegisterDeviceRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u8(m.Way)
	w.u64(m.Epoch)
	w.chunks(m.ChunkBytes, m.Handles, m.Offsets)
	w.memory(m.Memory)
	return w.b
}

// Decode implements Message.
func (m *RegisterDeviceRequest) Decode(body []byte) error {
	r := reader{message: "register-device request", body: body}
	m.Profile = r.u32("profile")
	m.Way = r.u8("way")
	m.Epoch = r.u64("epoch")
	m.ChunkBytes, m.Handles, m.Offsets = r.chunks(m.Way)
	m.Memory = r.memory()
	return r.end()
}

// Append implements Message.
func (m *RegisterDeviceReply) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Memory)
	w.align(8)
	return w.b
}

// Decode implements Message.
func (m *RegisterDeviceReply) Decode(body []byte) error {
	r := reader{message: "register-device reply", body: body}
	m.Memory = r.u32("memory")
	return r.end()
}

// Append implements Message.
func (m *AcquireDeviceRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u32(m.TTLMs)
	w.u8(m.Digests)
	w.u8(m.All)
	w.u8(m.Wait)
	put(&w, m.Keys)
	return w.b
}

// Decode implements Message.
func (m *AcquireDeviceRequest) Decode(body []byte) error {
	r := reader{message: "acquire-device request", body: body}
	m.Profile = r.u32("profile")
	m.Rank = r.u32("rank")
	m.TTLMs = r.u32("ttl")
	m.Digests = r.u8("digests")
	m.All = r.u8("all")
	m.Wait = r.u8("wait")
	m.Keys = get[[32]byte](&r, "keys", MaxKeys)
	return r.end()
}

// Append implements Message.
func (m *OrderRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u64(m.After)
	w.u64(m.Signal)
	put(&w, m.Leases)
	return w.b
}

// Decode implements Message.
func (m *OrderRequest) Decode(body []byte) error {
	r := reader{message: "order request", body: body}
	m.After = r.u64("after")
	m.Signal = r.u64("signal")
	m.Leases = get[uint64](&r, "leases", MaxIDs)
	return r.end()
}

// Decode implements Message.
func (m *LoadDeviceRequest) Decode(body []byte) error {
	return m.decode("load-device request", body)
}

// Descriptors is how many descriptors come with a message that names chunks:
// one for each with WayDescriptor, and extra ones of its own.
func Descriptors(way uint8, chunks, extra int) (int, error) {
	if chunks > MaxChunks {
		return 0, fmt.Errorf("%d chunks, most %d: %w", chunks, MaxChunks, ErrTooLarge)
	}
	if way == WayDescriptor {
		return chunks + extra, nil
	}
	return extra, nil
}
