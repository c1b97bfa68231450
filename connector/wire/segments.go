package wire

// Append implements Message.
func (m *MatchRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u8(m.Accept)
	put(&w, m.Positions)
	put(&w, m.Prefixes)
	put(&w, m.Keys)
	return w.b
}

// Decode implements Message.
func (m *MatchRequest) Decode(body []byte) error {
	r := reader{message: "match request", body: body}
	m.Profile = r.u32("profile")
	m.Accept = r.u8("accept")
	m.Positions = get[uint32](&r, "positions", MaxKeys)
	m.Prefixes = get[[32]byte](&r, "prefixes", MaxKeys)
	m.Keys = get[[32]byte](&r, "keys", MaxKeys)
	r.same("prefixes", len(m.Prefixes), len(m.Positions))
	return r.end()
}

// Append implements Message.
func (m *MatchReply) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.PrefixTokens)
	w.u32(m.PrefixIndex)
	w.u8(m.PrefixFlags)
	w.u8(m.PrefixReason)
	w.u8(m.PrefixTier)
	put(&w, m.Status)
	put(&w, m.Tier)
	put(&w, m.Reason)
	put(&w, m.Tokens)
	return w.b
}

// Decode implements Message.
func (m *MatchReply) Decode(body []byte) error {
	r := reader{message: "match reply", body: body}
	m.PrefixTokens = r.u32("prefix tokens")
	m.PrefixIndex = r.u32("prefix index")
	m.PrefixFlags = r.u8("prefix flags")
	m.PrefixReason = r.u8("prefix reason")
	m.PrefixTier = r.u8("prefix tier")
	m.Status = get[uint8](&r, "status", MaxKeys)
	m.Tier = get[uint8](&r, "tier", MaxKeys)
	m.Reason = get[uint8](&r, "reason", MaxKeys)
	m.Tokens = get[uint32](&r, "tokens", MaxKeys)
	n := len(m.Status)
	r.same("tier", len(m.Tier), n)
	r.same("reason", len(m.Reason), n)
	r.same("tokens", len(m.Tokens), n)
	return r.end()
}

// Append implements Message.
func (m *AcquireRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u32(m.TTLMs)
	w.u32(m.BlockTokens)
	w.u8(m.Digests)
	w.u8(m.All)
	put(&w, m.Keys)
	return w.b
}

// Decode implements Message.
func (m *AcquireRequest) Decode(body []byte) error {
	r := reader{message: "acquire request", body: body}
	m.Profile = r.u32("profile")
	m.Rank = r.u32("rank")
	m.TTLMs = r.u32("ttl")
	m.BlockTokens = r.u32("block tokens")
	m.Digests = r.u8("digests")
	m.All = r.u8("all")
	m.Keys = get[[32]byte](&r, "keys", MaxKeys)
	return r.end()
}

// Append implements Message.
func (m *AcquireReply) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Codes)
	put(&w, m.Leases)
	put(&w, m.Bytes)
	put(&w, m.Begins)
	put(&w, m.Tokens)
	put(&w, m.ExtentCount)
	put(&w, m.ExtentOff)
	put(&w, m.ExtentLen)
	put(&w, m.DigestCount)
	put(&w, m.Digest)
	put(&w, m.BlockCount)
	put(&w, m.Block)
	return w.b
}

// Decode implements Message.
func (m *AcquireReply) Decode(body []byte) error {
	r := reader{message: "acquire reply", body: body}
	m.Codes = get[uint16](&r, "codes", MaxKeys)
	m.Leases = get[uint64](&r, "leases", MaxKeys)
	m.Bytes = get[uint64](&r, "bytes", MaxKeys)
	m.Begins = get[uint32](&r, "begins", MaxKeys)
	m.Tokens = get[uint32](&r, "tokens", MaxKeys)
	m.ExtentCount = get[uint32](&r, "extent count", MaxKeys)
	m.ExtentOff = get[uint64](&r, "extent off", MaxExtents)
	m.ExtentLen = get[uint64](&r, "extent len", MaxExtents)
	m.DigestCount = get[uint32](&r, "digest count", MaxKeys)
	m.Digest = get[uint64](&r, "digest", MaxDigests)
	m.BlockCount = get[uint32](&r, "block count", MaxKeys)
	m.Block = get[uint64](&r, "block", MaxTable)
	n := len(m.Codes)
	r.same("leases", len(m.Leases), n)
	r.same("bytes", len(m.Bytes), n)
	r.same("begins", len(m.Begins), n)
	r.same("tokens", len(m.Tokens), n)
	r.same("extent count", len(m.ExtentCount), n)
	r.same("extent len", len(m.ExtentLen), len(m.ExtentOff))
	r.same("digest count", len(m.DigestCount), n)
	r.sum("extent count", m.ExtentCount, len(m.ExtentOff))
	r.sum("digest count", m.DigestCount, len(m.Digest))
	if len(m.BlockCount) > 0 {
		r.same("block count", len(m.BlockCount), n)
	}
	r.sum("block count", m.BlockCount, len(m.Block))
	return r.end()
}

// Append implements Message.
func (m *ReserveRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	put(&w, m.Keys)
	put(&w, m.Roles)
	put(&w, m.Heads)
	put(&w, m.Tails)
	put(&w, m.Tokens)
	put(&w, m.TokenOff)
	return w.b
}

// Decode implements Message.
func (m *ReserveRequest) Decode(body []byte) error {
	r := reader{message: "reserve request", body: body}
	m.Profile = r.u32("profile")
	m.Rank = r.u32("rank")
	m.Keys = get[[32]byte](&r, "keys", MaxKeys)
	m.Roles = get[uint8](&r, "roles", MaxKeys)
	m.Heads = get[uint32](&r, "heads", MaxKeys)
	m.Tails = get[uint32](&r, "tails", MaxKeys)
	m.Tokens = get[uint32](&r, "tokens", MaxKeys)
	m.TokenOff = get[uint64](&r, "token off", MaxKeys)
	n := len(m.Keys)
	r.same("roles", len(m.Roles), n)
	r.same("heads", len(m.Heads), n)
	r.same("tails", len(m.Tails), n)
	r.same("tokens", len(m.Tokens), n)
	r.same("token off", len(m.TokenOff), n)
	return r.end()
}

// Append implements Message.
func (m *ReserveReply) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Codes)
	put(&w, m.Reservations)
	put(&w, m.Bytes)
	return w.b
}

// Decode implements Message.
func (m *ReserveReply) Decode(body []byte) error {
	r := reader{message: "reserve reply", body: body}
	m.Codes = get[uint16](&r, "codes", MaxKeys)
	m.Reservations = get[uint64](&r, "reservations", MaxKeys)
	m.Bytes = get[uint64](&r, "bytes", MaxKeys)
	n := len(m.Codes)
	r.same("reservations", len(m.Reservations), n)
	r.same("bytes", len(m.Bytes), n)
	return r.end()
}

// Append implements Message.
func (m *CommitRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u8(m.Level)
	put(&w, m.Reservations)
	put(&w, m.Parts)
	put(&w, m.ChunkFirst)
	put(&w, m.ChunkCount)
	put(&w, m.StagingOff)
	put(&w, m.Digest)
	return w.b
}

// Decode implements Message.
func (m *CommitRequest) Decode(body []byte) error {
	r := reader{message: "commit request", body: body}
	m.Level = r.u8("level")
	m.Reservations = get[uint64](&r, "reservations", MaxCommitRows)
	m.Parts = get[uint32](&r, "parts", MaxCommitRows)
	m.ChunkFirst = get[uint32](&r, "chunk first", MaxCommitRows)
	m.ChunkCount = get[uint32](&r, "chunk count", MaxCommitRows)
	m.StagingOff = get[uint64](&r, "staging off", MaxCommitRows)
	m.Digest = get[uint64](&r, "digest", MaxDigests)
	n := len(m.Reservations)
	r.same("parts", len(m.Parts), n)
	r.same("chunk first", len(m.ChunkFirst), n)
	r.same("chunk count", len(m.ChunkCount), n)
	r.same("staging off", len(m.StagingOff), n)
	r.sum("chunk count", m.ChunkCount, len(m.Digest))
	return r.end()
}

// Append implements Message.
func (m *CommitReply) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Codes)
	put(&w, m.Published)
	put(&w, m.Levels)
	return w.b
}

// Decode implements Message.
func (m *CommitReply) Decode(body []byte) error {
	r := reader{message: "commit reply", body: body}
	m.Codes = get[uint16](&r, "codes", MaxCommitRows)
	m.Published = get[uint8](&r, "published", MaxCommitRows)
	m.Levels = get[uint8](&r, "levels", MaxCommitRows)
	r.same("published", len(m.Published), len(m.Codes))
	r.same("levels", len(m.Levels), len(m.Codes))
	return r.end()
}
