package wire

// Append implements Message.
func (m *SaveRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u8(m.Kind)
	put(&w, m.Hashes)
	put(&w, m.Tokens)
	put(&w, m.Parents)
	return w.b
}

// Decode implements Message.
func (m *SaveRequest) Decode(body []byte) error {
	r := reader{message: "save request", body: body}
	m.Profile = r.u32("profile")
	m.Rank = r.u32("rank")
	m.Kind = r.u8("kind")
	m.Hashes = get[[32]byte](&r, "hashes", MaxKeys)
	m.Tokens = get[uint32](&r, "tokens", MaxKeys)
	m.Parents = get[[32]byte](&r, "parents", MaxKeys)
	n := len(m.Hashes)
	r.same("tokens", len(m.Tokens), n)
	r.same("parents", len(m.Parents), n)
	return r.end()
}

// Append implements Message.
func (m *LoadRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u32(m.TTLMs)
	w.u8(m.Accept)
	w.u8(m.Digests)
	w.align(8)
	w.hash(&m.Hash)
	return w.b
}

// Decode implements Message.
func (m *LoadRequest) Decode(body []byte) error { return m.decode("load request", body) }

func (m *LoadRequest) decode(message string, body []byte) error {
	r := reader{message: message, body: body}
	m.Profile = r.u32("profile")
	m.Rank = r.u32("rank")
	m.TTLMs = r.u32("ttl")
	m.Accept = r.u8("accept")
	m.Digests = r.u8("digests")
	r.align("hash", 8)
	m.Hash = r.hash("hash")
	return r.end()
}

// Append implements Message.
func (m *LoadReply) Append(b []byte) []byte {
	w := begin(b)
	w.u64(m.Lease)
	w.u32(m.Tokens)
	w.u8(m.Kind)
	put(&w, m.NodeBegin)
	put(&w, m.NodeEnd)
	put(&w, m.ExtentCount)
	put(&w, m.ExtentOff)
	put(&w, m.ExtentLen)
	put(&w, m.DigestCount)
	put(&w, m.Digest)
	return w.b
}

// Decode implements Message.
func (m *LoadReply) Decode(body []byte) error {
	r := reader{message: "load reply", body: body}
	m.Lease = r.u64("lease")
	m.Tokens = r.u32("tokens")
	m.Kind = r.u8("kind")
	m.NodeBegin = get[uint32](&r, "node begin", MaxNodes)
	m.NodeEnd = get[uint32](&r, "node end", MaxNodes)
	m.ExtentCount = get[uint32](&r, "extent count", MaxNodes)
	m.ExtentOff = get[uint64](&r, "extent off", MaxExtents)
	m.ExtentLen = get[uint64](&r, "extent len", MaxExtents)
	m.DigestCount = get[uint32](&r, "digest count", MaxNodes)
	m.Digest = get[uint64](&r, "digest", MaxDigests)
	n := len(m.NodeBegin)
	r.same("node end", len(m.NodeEnd), n)
	r.same("extent count", len(m.ExtentCount), n)
	r.same("extent len", len(m.ExtentLen), len(m.ExtentOff))
	r.same("digest count", len(m.DigestCount), n)
	r.sum("extent count", m.ExtentCount, len(m.ExtentOff))
	r.sum("digest count", m.DigestCount, len(m.Digest))
	return r.end()
}
