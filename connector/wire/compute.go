package wire

func (w *writer) plan(p *Plan) {
	put(w, p.Kinds)
	put(w, p.Leases)
	put(w, p.Starts)
	put(w, p.Counts)
	put(w, p.Inputs)
}

func (r *reader) plan(p *Plan) {
	p.Kinds = get[uint8](r, "plan kinds", MaxSpans)
	p.Leases = get[uint64](r, "plan leases", MaxSpans)
	p.Starts = get[uint32](r, "plan starts", MaxSpans)
	p.Counts = get[uint32](r, "plan counts", MaxSpans)
	p.Inputs = get[uint64](r, "plan inputs", MaxSpans)
	n := len(p.Kinds)
	r.same("plan leases", len(p.Leases), n)
	r.same("plan starts", len(p.Starts), n)
	r.same("plan counts", len(p.Counts), n)
	r.same("plan inputs", len(p.Inputs), n)
}

// Append implements Message.
func (m *ComposeRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u32(uint32(m.Layer))
	w.u32(m.Plan.Begin)
	w.u32(m.Plan.End)
	w.u8(m.From)
	w.u64(m.FromLease)
	w.u64(m.FromOff)
	w.u64(m.Into)
	w.plan(&m.Plan)
	return w.b
}

// Decode implements Message.
func (m *ComposeRequest) Decode(body []byte) error {
	r := reader{message: "compose request", body: body}
	m.Profile = r.u32("profile")
	m.Rank = r.u32("rank")
	m.Layer = int32(r.u32("layer"))
	m.Plan.Begin = r.u32("plan begin")
	m.Plan.End = r.u32("plan end")
	m.From = r.u8("from")
	m.FromLease = r.u64("from lease")
	m.FromOff = r.u64("from off")
	m.Into = r.u64("into")
	r.plan(&m.Plan)
	return r.end()
}

// Append implements Message.
func (m *ComposeReply) Append(b []byte) []byte {
	w := begin(b)
	w.u64(m.Lease)
	w.u64(m.Off)
	w.u64(m.Bytes)
	return w.b
}

// Decode implements Message.
func (m *ComposeReply) Decode(body []byte) error {
	r := reader{message: "compose reply", body: body}
	m.Lease = r.u64("lease")
	m.Off = r.u64("off")
	m.Bytes = r.u64("bytes")
	return r.end()
}

// Append implements Message.
func (m *RotateRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u32(uint32(m.Layer))
	w.u32(m.Memory)
	w.u32(m.Plan.Begin)
	w.u32(m.Plan.End)
	w.u8(m.Dest)
	w.u8(m.From)
	w.u64(m.FromLease)
	w.u64(m.Into)
	w.plan(&m.Plan)
	put(&w, m.Blocks)
	return w.b
}

// Decode implements Message.
func (m *RotateRequest) Decode(body []byte) error { return m.decode("rotate request", body) }

func (m *RotateRequest) decode(message string, body []byte) error {
	r := reader{message: message, body: body}
	m.Profile = r.u32("profile")
	m.Rank = r.u32("rank")
	m.Layer = int32(r.u32("layer"))
	m.Memory = r.u32("memory")
	m.Plan.Begin = r.u32("plan begin")
	m.Plan.End = r.u32("plan end")
	m.Dest = r.u8("dest")
	m.From = r.u8("from")
	m.FromLease = r.u64("from lease")
	m.Into = r.u64("into")
	r.plan(&m.Plan)
	m.Blocks = get[uint32](&r, "blocks", MaxBlocks)
	return r.end()
}

// Decode implements Message.
func (m *AssembleRequest) Decode(body []byte) error {
	return m.RotateRequest.decode("assemble request", body)
}

// Append implements Message.
func (m *RotateReply) Append(b []byte) []byte {
	w := begin(b)
	w.u64(m.Lease)
	w.u64(m.Off)
	w.u64(m.Bytes)
	w.u32(m.Rows)
	w.align(8)
	return w.b
}

// Decode implements Message.
func (m *RotateReply) Decode(body []byte) error {
	r := reader{message: "rotate reply", body: body}
	m.Lease = r.u64("lease")
	m.Off = r.u64("off")
	m.Bytes = r.u64("bytes")
	m.Rows = r.u32("rows")
	return r.end()
}
