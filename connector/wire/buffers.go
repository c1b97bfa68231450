package wire

// AppendRequest adds rows to a buffer, or opens one. The rows lie in staging, as
// profile.BufferLayout(Rows) has them.
type AppendRequest struct {
	Profile    uint32
	Rank       uint32
	Buffer     uint64 // 0 = open one
	Base       uint64 // of a new one: lease of a loaded checkpoint or a slot; 0 = zero state
	Begin      uint32 // prompt position of the first row
	Capacity   uint32 // of a new one: most rows it holds
	Rows       uint32 // 0 is allowed when a buffer is opened
	StagingOff uint64
}

// AppendReply answers append and accept: what the buffer holds now, in prompt
// positions.
type AppendReply struct {
	Buffer   uint64
	Begin    uint32 // of the state under the first row
	Accepted uint32 // tokens before it are certain
	End      uint32
}

// AcceptRequest keeps the first Tokens rows that are not accepted yet, and drops
// the others.
type AcceptRequest struct {
	Profile uint32
	Rank    uint32
	Buffer  uint64
	Tokens  uint32
}

// ReplayRequest writes the states and convolution tails after the tokens before
// Token into a slot, laid out as profile.CheckpointLayout(0).
type ReplayRequest struct {
	Profile uint32
	Rank    uint32
	Buffer  uint64
	Token   uint32
	Flush   uint8  // 1 = the rows before Token are merged into the buffer's base
	Into    uint64 // slot lease to write into, 0 = a new one
}

// Append implements Message.
func (m *AppendRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u64(m.Buffer)
	w.u64(m.Base)
	w.u32(m.Begin)
	w.u32(m.Capacity)
	w.u32(m.Rows)
	w.u64(m.StagingOff)
	return w.b
}

// Decode implements Message.
func (m *AppendRequest) Decode(body []byte) error {
	r := reader{message: "append request", body: body}
	m.Profile = r.u32("profile")
	m.Rank = r.u32("rank")
	m.Buffer = r.u64("buffer")
	m.Base = r.u64("base")
	m.Begin = r.u32("begin")
	m.Capacity = r.u32("capacity")
	m.Rows = r.u32("rows")
	m.StagingOff = r.u64("staging off")
	return r.end()
}

// Append implements Message.
func (m *AppendReply) Append(b []byte) []byte {
	w := begin(b)
	w.u64(m.Buffer)
	w.u32(m.Begin)
	w.u32(m.Accepted)
	w.u32(m.End)
	w.align(8)
	return w.b
}

// Decode implements Message.
func (m *AppendReply) Decode(body []byte) error {
	r := reader{message: "append reply", body: body}
	m.Buffer = r.u64("buffer")
	m.Begin = r.u32("begin")
	m.Accepted = r.u32("accepted")
	m.End = r.u32("end")
	return r.end()
}

// Append implements Message.
func (m *AcceptRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u64(m.Buffer)
	w.u32(m.Tokens)
	w.align(8)
	return w.b
}

// Decode implements Message.
func (m *AcceptRequest) Decode(body []byte) error {
	r := reader{message: "accept request", body: body}
	m.Profile = r.u32("profile")
	m.Rank = r.u32("rank")
	m.Buffer = r.u64("buffer")
	m.Tokens = r.u32("tokens")
	return r.end()
}

// Append implements Message.
func (m *ReplayRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u64(m.Buffer)
	w.u32(m.Token)
	w.u8(m.Flush)
	w.u64(m.Into)
	return w.b
}

// Decode implements Message.
func (m *ReplayRequest) Decode(body []byte) error {
	r := reader{message: "replay request", body: body}
	m.Profile = r.u32("profile")
	m.Rank = r.u32("rank")
	m.Buffer = r.u64("buffer")
	m.Token = r.u32("token")
	m.Flush = r.u8("flush")
	m.Into = r.u64("into")
	return r.end()
}
