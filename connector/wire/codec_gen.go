// Code generated from connector/wire/schema by wiregen; DO NOT EDIT.

package wire

import "math"

// Append implements Message.
func (m *HelloRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u16(m.MinVersion)
	w.u16(m.MaxVersion)
	w.u64(m.Features)
	w.u64(m.StagingBytes)
	w.u64(m.SlotBytes)
	w.text(m.Client)
	w.texts(len(m.Tenants), func(i int) string { return m.Tenants[i].Name })
	w.texts(len(m.Tenants), func(i int) string { return m.Tenants[i].Token })
	return w.b
}

// Decode implements Message.
func (m *HelloRequest) Decode(body []byte) error {
	r := reader{message: "hello request", body: body}
	m.MinVersion = r.u16("min version")
	m.MaxVersion = r.u16("max version")
	m.Features = r.u64("features")
	m.StagingBytes = r.u64("staging bytes")
	m.SlotBytes = r.u64("slot bytes")
	m.Client = r.text("client", MaxName)
	tenantsName := r.texts("tenant names", MaxTenants, MaxName)
	tenantsToken := r.texts("tenant tokens", MaxTenants, MaxToken)
	r.same("tenant tokens", len(tenantsToken), len(tenantsName))
	if err := r.end(); err != nil {
		return err
	}
	m.Tenants = nil
	if n := len(tenantsName); n > 0 {
		m.Tenants = make([]TenantName, n)
	}
	for i := range m.Tenants {
		m.Tenants[i] = TenantName{
			Name:  tenantsName[i],
			Token: tenantsToken[i],
		}
	}
	return nil
}

// Append implements Message.
func (m *HelloReply) Append(b []byte) []byte {
	w := begin(b)
	w.u16(m.Version)
	w.u64(m.Features)
	w.u64(m.Connection)
	w.u64(m.BootEpoch)
	w.u64(m.ArenaBytes)
	w.u64(m.SlotBytes)
	w.u64(m.StagingBytes)
	w.u32(m.MaxFrame)
	w.u32(m.MaxInFlight)
	w.text(m.Server)
	w.count(len(m.Tenants))
	for i := range m.Tenants {
		w.u32(m.Tenants[i].ID)
	}
	w.align(8)
	w.texts(len(m.Tenants), func(i int) string { return string(m.Tenants[i].Salt) })
	return w.b
}

// Decode implements Message.
func (m *HelloReply) Decode(body []byte) error {
	r := reader{message: "hello reply", body: body}
	m.Version = r.u16("version")
	m.Features = r.u64("features")
	m.Connection = r.u64("connection")
	m.BootEpoch = r.u64("boot epoch")
	m.ArenaBytes = r.u64("arena bytes")
	m.SlotBytes = r.u64("slot bytes")
	m.StagingBytes = r.u64("staging bytes")
	m.MaxFrame = r.u32("max frame")
	m.MaxInFlight = r.u32("max in flight")
	m.Server = r.text("server", MaxName)
	tenantsID := get[uint32](&r, "tenant ids", MaxTenants)
	tenantsSalt := r.texts("tenant salts", MaxTenants, MaxSalt)
	r.same("tenant salts", len(tenantsSalt), len(tenantsID))
	if err := r.end(); err != nil {
		return err
	}
	m.Tenants = nil
	if n := len(tenantsID); n > 0 {
		m.Tenants = make([]TenantGrant, n)
	}
	for i := range m.Tenants {
		m.Tenants[i] = TenantGrant{
			ID:   tenantsID[i],
			Salt: []byte(tenantsSalt[i]),
		}
	}
	return nil
}

// Append implements Message.
func (m *ProfileRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.BlockTokens)
	w.u32(m.ProbeTokens)
	w.u64(m.SegmentBytes)
	w.u64(m.CheckpointBytes)
	w.u64(m.MemoryBytes)
	put(&w, m.Identity)
	w.text(m.Connector)
	w.text(m.Engine)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u32(m.Memory[i].Layer)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].KBase)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].VBase)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].BlockStride)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].KTokenStride)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].KHeadStride)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].VTokenStride)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].VHeadStride)
	}
	w.align(8)
	return w.b
}

// Decode implements Message.
func (m *ProfileRequest) Decode(body []byte) error {
	r := reader{message: "profile request", body: body}
	m.BlockTokens = r.u32("block tokens")
	m.ProbeTokens = r.u32("probe tokens")
	m.SegmentBytes = r.u64("segment bytes")
	m.CheckpointBytes = r.u64("checkpoint bytes")
	m.MemoryBytes = r.u64("memory bytes")
	m.Identity = get[uint8](&r, "identity", MaxIdentity)
	m.Connector = r.text("connector", MaxName)
	m.Engine = r.text("engine", MaxName)
	memoryLayer := get[uint32](&r, "memory layer", MaxMemoryLayers)
	memoryKBase := get[uint64](&r, "memory k base", MaxMemoryLayers)
	r.same("memory k base", len(memoryKBase), len(memoryLayer))
	memoryVBase := get[uint64](&r, "memory v base", MaxMemoryLayers)
	r.same("memory v base", len(memoryVBase), len(memoryLayer))
	memoryBlockStride := get[uint64](&r, "memory block stride", MaxMemoryLayers)
	r.same("memory block stride", len(memoryBlockStride), len(memoryLayer))
	memoryKTokenStride := get[uint64](&r, "memory k token stride", MaxMemoryLayers)
	r.same("memory k token stride", len(memoryKTokenStride), len(memoryLayer))
	memoryKHeadStride := get[uint64](&r, "memory k head stride", MaxMemoryLayers)
	r.same("memory k head stride", len(memoryKHeadStride), len(memoryLayer))
	memoryVTokenStride := get[uint64](&r, "memory v token stride", MaxMemoryLayers)
	r.same("memory v token stride", len(memoryVTokenStride), len(memoryLayer))
	memoryVHeadStride := get[uint64](&r, "memory v head stride", MaxMemoryLayers)
	r.same("memory v head stride", len(memoryVHeadStride), len(memoryLayer))
	if err := r.end(); err != nil {
		return err
	}
	m.Memory = nil
	if n := len(memoryLayer); n > 0 {
		m.Memory = make([]MemoryLayer, n)
	}
	for i := range m.Memory {
		m.Memory[i] = MemoryLayer{
			Layer:        memoryLayer[i],
			KBase:        memoryKBase[i],
			VBase:        memoryVBase[i],
			BlockStride:  memoryBlockStride[i],
			KTokenStride: memoryKTokenStride[i],
			KHeadStride:  memoryKHeadStride[i],
			VTokenStride: memoryVTokenStride[i],
			VHeadStride:  memoryVHeadStride[i],
		}
	}
	return nil
}

// Append implements Message.
func (m *ProfileReply) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Memory)
	w.hash(&m.Fingerprint)
	return w.b
}

// Decode implements Message.
func (m *ProfileReply) Decode(body []byte) error {
	r := reader{message: "profile reply", body: body}
	m.Profile = r.u32("profile")
	m.Memory = r.u32("memory")
	m.Fingerprint = r.hash("fingerprint")
	return r.end()
}

// Append implements Message.
func (m *AbortRequest) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Reservations)
	return w.b
}

// Decode implements Message.
func (m *AbortRequest) Decode(body []byte) error {
	r := reader{message: "abort request", body: body}
	m.Reservations = get[uint64](&r, "reservations", MaxIDs)
	return r.end()
}

// Append implements Message.
func (m *CodesReply) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Codes)
	return w.b
}

// Decode implements Message.
func (m *CodesReply) Decode(body []byte) error {
	r := reader{message: "codes reply", body: body}
	m.Codes = get[uint16](&r, "codes", MaxIDs)
	return r.end()
}

// Append implements Message.
func (m *CancelRequest) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Requests)
	return w.b
}

// Decode implements Message.
func (m *CancelRequest) Decode(body []byte) error {
	r := reader{message: "cancel request", body: body}
	m.Requests = get[uint64](&r, "requests", MaxIDs)
	return r.end()
}

// Append implements Message.
func (m *CancelReply) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Outcomes)
	return w.b
}

// Decode implements Message.
func (m *CancelReply) Decode(body []byte) error {
	r := reader{message: "cancel reply", body: body}
	m.Outcomes = get[uint8](&r, "outcomes", MaxIDs)
	return r.end()
}

// Append implements Message.
func (m *ReleaseRequest) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Leases)
	return w.b
}

// Decode implements Message.
func (m *ReleaseRequest) Decode(body []byte) error {
	r := reader{message: "release request", body: body}
	m.Leases = get[uint64](&r, "leases", MaxIDs)
	return r.end()
}

// Append implements Message.
func (m *StatsRequest) Append(b []byte) []byte {
	w := begin(b)
	return w.b
}

// Decode implements Message.
func (m *StatsRequest) Decode(body []byte) error {
	r := reader{message: "stats request", body: body}
	return r.end()
}

// Append implements Message.
func (m *StatsReply) Append(b []byte) []byte {
	w := begin(b)
	put(&w, m.Values)
	w.texts(len(m.Names), func(i int) string { return m.Names[i] })
	return w.b
}

// Decode implements Message.
func (m *StatsReply) Decode(body []byte) error {
	r := reader{message: "stats reply", body: body}
	m.Values = get[float64](&r, "values", MaxStats)
	m.Names = r.texts("names", MaxStats, MaxName)
	r.same("names", len(m.Names), len(m.Values))
	return r.end()
}

// Append implements Message.
func (m *ReportRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Compared)
	w.u32(m.Failed)
	w.u64(math.Float64bits(m.Worst))
	w.u64(math.Float64bits(m.Bound))
	w.u8(m.Off)
	w.text(m.Text)
	if m.Losses.Present {
		w.section(10)
		w.u8(m.Losses.Offline)
		put(&w, m.Losses.Compared)
		put(&w, m.Losses.Changed)
	}
	return w.b
}

// Decode implements Message.
func (m *ReportRequest) Decode(body []byte) error {
	r := reader{message: "report request", body: body}
	m.Profile = r.u32("profile")
	m.Compared = r.u32("compared")
	m.Failed = r.u32("failed")
	m.Worst = math.Float64frombits(r.u64("worst"))
	m.Bound = math.Float64frombits(r.u64("bound"))
	m.Off = r.u8("off")
	m.Text = r.text("text", MaxErrorText)
	if m.Losses.Present {
		m.Losses = ReportLosses{}
	}
	if r.more() && r.section(10) {
		m.Losses.Present = true
		m.Losses.Offline = r.u8("losses offline")
		m.Losses.Compared = get[uint32](&r, "losses compared", LossWays)
		m.Losses.Changed = get[uint32](&r, "losses changed", LossWays)
		r.same("losses compared", len(m.Losses.Compared), LossWays)
		r.same("losses changed", len(m.Losses.Changed), len(m.Losses.Compared))
	}
	return r.end()
}

// Append implements Message.
func (m *ReportReply) Append(b []byte) []byte {
	w := begin(b)
	w.u8(m.Off)
	w.align(8)
	return w.b
}

// Decode implements Message.
func (m *ReportReply) Decode(body []byte) error {
	r := reader{message: "report reply", body: body}
	m.Off = r.u8("off")
	return r.end()
}

// Append implements Message.
func (m *MatchRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u8(m.Accept)
	put(&w, m.Positions)
	put(&w, m.Prefixes)
	put(&w, m.Keys)
	if m.Prompt.Present {
		w.section(2)
		w.u32(m.Prompt.Tokens)
		w.u64(m.Prompt.TokenOff)
	}
	if m.Known.Present {
		w.section(4)
		w.u32(m.Known.Begin)
		w.u32(m.Known.SeamTokens)
	}
	if m.Primers.Present {
		w.section(9)
		w.hash(&m.Primers.Primer)
		w.u32(m.Primers.PrimedFrom)
		w.u8(m.Primers.Either)
		put(&w, m.Primers.Others)
	}
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
	if m.Prompt.Present {
		m.Prompt = MatchPrompt{}
	}
	if r.more() && r.section(2) {
		m.Prompt.Present = true
		m.Prompt.Tokens = r.u32("prompt tokens")
		m.Prompt.TokenOff = r.u64("prompt token off")
	}
	if m.Known.Present {
		m.Known = MatchKnownQuery{}
	}
	if r.more() && r.section(4) {
		m.Known.Present = true
		m.Known.Begin = r.u32("known begin")
		m.Known.SeamTokens = r.u32("known seam tokens")
	}
	if m.Primers.Present {
		m.Primers = MatchPrimersQuery{}
	}
	if r.more() && r.section(9) {
		m.Primers.Present = true
		m.Primers.Primer = r.hash("primers primer")
		m.Primers.PrimedFrom = r.u32("primers primed from")
		m.Primers.Either = r.u8("primers either")
		m.Primers.Others = get[[32]byte](&r, "primers others", MaxKeys)
	}
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
	if m.Estimates.Present {
		w.section(3)
		w.u32(m.Estimates.PrefixMicros)
		w.u64(math.Float64bits(m.Estimates.PrefixError))
		put(&w, m.Estimates.Micros)
		put(&w, m.Estimates.Error)
	}
	if m.Known.Present {
		w.section(4)
		w.u32(m.Known.Untried)
		w.u8(m.Known.Reason)
		put(&w, m.Known.Starts)
		put(&w, m.Known.Lengths)
		put(&w, m.Known.Keys)
		put(&w, m.Known.Tiers)
		put(&w, m.Known.Interiors)
	}
	if m.Rows.Present {
		w.section(5)
		w.u32(m.Rows.PrefixStates)
		w.align(8)
	}
	if m.Primers.Present {
		w.section(9)
		put(&w, m.Primers.Variants)
		put(&w, m.Primers.Primed)
	}
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
	r.same("tier", len(m.Tier), len(m.Status))
	r.same("reason", len(m.Reason), len(m.Status))
	r.same("tokens", len(m.Tokens), len(m.Status))
	if m.Estimates.Present {
		m.Estimates = MatchEstimates{}
	}
	if r.more() && r.section(3) {
		m.Estimates.Present = true
		m.Estimates.PrefixMicros = r.u32("estimates prefix micros")
		m.Estimates.PrefixError = math.Float64frombits(r.u64("estimates prefix error"))
		m.Estimates.Micros = get[uint32](&r, "estimates micros", MaxKeys)
		m.Estimates.Error = get[float64](&r, "estimates error", MaxKeys)
		r.same("estimates micros", len(m.Estimates.Micros), len(m.Status))
		r.same("estimates error", len(m.Estimates.Error), len(m.Status))
	}
	if m.Known.Present {
		m.Known = MatchKnown{}
	}
	if r.more() && r.section(4) {
		m.Known.Present = true
		m.Known.Untried = r.u32("known untried")
		m.Known.Reason = r.u8("known reason")
		m.Known.Starts = get[uint32](&r, "known starts", MaxKeys)
		m.Known.Lengths = get[uint32](&r, "known lengths", MaxKeys)
		m.Known.Keys = get[[32]byte](&r, "known keys", MaxKeys)
		m.Known.Tiers = get[uint8](&r, "known tiers", MaxKeys)
		m.Known.Interiors = get[uint32](&r, "known interiors", MaxKeys)
		r.same("known lengths", len(m.Known.Lengths), len(m.Known.Starts))
		r.same("known keys", len(m.Known.Keys), len(m.Known.Starts))
		r.same("known tiers", len(m.Known.Tiers), len(m.Known.Starts))
		r.same("known interiors", len(m.Known.Interiors), len(m.Known.Starts))
	}
	if m.Rows.Present {
		m.Rows = MatchRows{}
	}
	if r.more() && r.section(5) {
		m.Rows.Present = true
		m.Rows.PrefixStates = r.u32("rows prefix states")
		r.align("section", 8)
	}
	if m.Primers.Present {
		m.Primers = MatchPrimers{}
	}
	if r.more() && r.section(9) {
		m.Primers.Present = true
		m.Primers.Variants = get[uint8](&r, "primers variants", MaxKeys)
		m.Primers.Primed = get[uint8](&r, "primers primed", MaxKeys)
		r.same("primers variants", len(m.Primers.Variants), len(m.Status))
	}
	return r.end()
}

// Append implements Message.
func (m *AcquireRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u32(m.TTLMs)
	w.u32(m.Reserved)
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
	m.TTLMs = r.u32("ttl ms")
	m.Reserved = r.u32("reserved")
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
	put(&w, m.ReservedCount)
	put(&w, m.Reserved)
	if m.Packed.Present {
		w.section(6)
		put(&w, m.Packed.Count)
		put(&w, m.Packed.Layout)
	}
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
	m.ReservedCount = get[uint32](&r, "reserved count", MaxKeys)
	m.Reserved = get[uint64](&r, "reserved", MaxKeys)
	r.same("leases", len(m.Leases), len(m.Codes))
	r.same("bytes", len(m.Bytes), len(m.Codes))
	r.same("begins", len(m.Begins), len(m.Codes))
	r.same("tokens", len(m.Tokens), len(m.Codes))
	r.same("extent count", len(m.ExtentCount), len(m.Codes))
	r.same("extent len", len(m.ExtentLen), len(m.ExtentOff))
	r.same("digest count", len(m.DigestCount), len(m.Codes))
	r.sum("extent count", m.ExtentCount, len(m.ExtentOff))
	r.sum("digest count", m.DigestCount, len(m.Digest))
	if len(m.ReservedCount) > 0 {
		r.same("reserved count", len(m.ReservedCount), len(m.Codes))
	}
	r.sum("reserved count", m.ReservedCount, len(m.Reserved))
	if m.Packed.Present {
		m.Packed = AcquirePacked{}
	}
	if r.more() && r.section(6) {
		m.Packed.Present = true
		m.Packed.Count = get[uint32](&r, "packed count", MaxKeys)
		m.Packed.Layout = get[uint8](&r, "packed layout", MaxPacked)
		r.same("packed count", len(m.Packed.Count), len(m.Codes))
		r.sum("packed count", m.Packed.Count, len(m.Packed.Layout))
	}
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
	if m.Primers.Present {
		w.section(9)
		put(&w, m.Primers.IDs)
	}
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
	r.same("roles", len(m.Roles), len(m.Keys))
	r.same("heads", len(m.Heads), len(m.Keys))
	r.same("tails", len(m.Tails), len(m.Keys))
	r.same("tokens", len(m.Tokens), len(m.Keys))
	r.same("token off", len(m.TokenOff), len(m.Keys))
	if m.Primers.Present {
		m.Primers = ReservePrimers{}
	}
	if r.more() && r.section(9) {
		m.Primers.Present = true
		m.Primers.IDs = get[[32]byte](&r, "primers ids", MaxKeys)
		r.same("primers ids", len(m.Primers.IDs), len(m.Keys))
	}
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
	r.same("reservations", len(m.Reservations), len(m.Codes))
	r.same("bytes", len(m.Bytes), len(m.Codes))
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
	r.same("parts", len(m.Parts), len(m.Reservations))
	r.same("chunk first", len(m.ChunkFirst), len(m.Reservations))
	r.same("chunk count", len(m.ChunkCount), len(m.Reservations))
	r.same("staging off", len(m.StagingOff), len(m.Reservations))
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

// Append implements Message.
func (m *SaveRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Rank)
	w.u8(m.Kind)
	put(&w, m.Hashes)
	put(&w, m.Tokens)
	put(&w, m.Parents)
	if m.Buffered.Present {
		w.section(7)
		w.u64(m.Buffered.Buffer)
	}
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
	r.same("tokens", len(m.Tokens), len(m.Hashes))
	r.same("parents", len(m.Parents), len(m.Hashes))
	if m.Buffered.Present {
		m.Buffered = SaveBuffered{}
	}
	if r.more() && r.section(7) {
		m.Buffered.Present = true
		m.Buffered.Buffer = r.u64("buffered buffer")
	}
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
	m.TTLMs = r.u32("ttl ms")
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
	if m.Rows.Present {
		w.section(5)
		put(&w, m.Rows.Kinds)
	}
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
	r.same("node end", len(m.NodeEnd), len(m.NodeBegin))
	r.same("extent count", len(m.ExtentCount), len(m.NodeBegin))
	r.same("extent len", len(m.ExtentLen), len(m.ExtentOff))
	r.same("digest count", len(m.DigestCount), len(m.NodeBegin))
	r.sum("extent count", m.ExtentCount, len(m.ExtentOff))
	r.sum("digest count", m.DigestCount, len(m.Digest))
	if m.Rows.Present {
		m.Rows = LoadRows{}
	}
	if r.more() && r.section(5) {
		m.Rows.Present = true
		m.Rows.Kinds = get[uint8](&r, "rows kinds", MaxNodes)
		r.same("rows kinds", len(m.Rows.Kinds), len(m.NodeBegin))
	}
	return r.end()
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
	put(&w, m.Plan.Kinds)
	put(&w, m.Plan.Leases)
	put(&w, m.Plan.Starts)
	put(&w, m.Plan.Counts)
	put(&w, m.Plan.Inputs)
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
	m.Plan.Kinds = get[uint8](&r, "plan kinds", MaxSpans)
	m.Plan.Leases = get[uint64](&r, "plan leases", MaxSpans)
	m.Plan.Starts = get[uint32](&r, "plan starts", MaxSpans)
	m.Plan.Counts = get[uint32](&r, "plan counts", MaxSpans)
	m.Plan.Inputs = get[uint64](&r, "plan inputs", MaxSpans)
	r.same("plan leases", len(m.Plan.Leases), len(m.Plan.Kinds))
	r.same("plan starts", len(m.Plan.Starts), len(m.Plan.Kinds))
	r.same("plan counts", len(m.Plan.Counts), len(m.Plan.Kinds))
	r.same("plan inputs", len(m.Plan.Inputs), len(m.Plan.Kinds))
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
	put(&w, m.Plan.Kinds)
	put(&w, m.Plan.Leases)
	put(&w, m.Plan.Starts)
	put(&w, m.Plan.Counts)
	put(&w, m.Plan.Inputs)
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
	m.Plan.Kinds = get[uint8](&r, "plan kinds", MaxSpans)
	m.Plan.Leases = get[uint64](&r, "plan leases", MaxSpans)
	m.Plan.Starts = get[uint32](&r, "plan starts", MaxSpans)
	m.Plan.Counts = get[uint32](&r, "plan counts", MaxSpans)
	m.Plan.Inputs = get[uint64](&r, "plan inputs", MaxSpans)
	r.same("plan leases", len(m.Plan.Leases), len(m.Plan.Kinds))
	r.same("plan starts", len(m.Plan.Starts), len(m.Plan.Kinds))
	r.same("plan counts", len(m.Plan.Counts), len(m.Plan.Kinds))
	r.same("plan inputs", len(m.Plan.Inputs), len(m.Plan.Kinds))
	m.Blocks = get[uint32](&r, "blocks", MaxBlocks)
	return r.end()
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

// Decode implements Message.
func (m *AssembleRequest) Decode(body []byte) error {
	return m.RotateRequest.decode("assemble request", body)
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

// Append implements Message.
func (m *AdviseRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u8(m.Record)
	w.u32(m.BlockTokens)
	w.u32(m.MaxCheckpoints)
	w.u32(m.Tokens)
	w.u64(m.TokenOff)
	w.u32(m.Output)
	w.u32(m.PrefixTokens)
	w.u8(m.PrefixTier)
	w.u32(m.BufferTokens)
	w.u32(m.SeamTokens)
	put(&w, m.Cuts)
	put(&w, m.SegmentBegin)
	put(&w, m.SegmentTokens)
	put(&w, m.SegmentStatus)
	put(&w, m.SegmentTier)
	put(&w, m.SampleBegin)
	put(&w, m.SampleEnd)
	put(&w, m.SampleMicros)
	if m.Measured.Present {
		w.section(8)
		put(&w, m.Measured.WalkRows)
		put(&w, m.Measured.WalkPlaced)
		put(&w, m.Measured.WalkMicros)
		put(&w, m.Measured.CaptureTokens)
		put(&w, m.Measured.CaptureMicros)
	}
	if m.Limit.Present {
		w.section(10)
		w.u64(math.Float64bits(m.Limit.MaxLoss))
		w.u8(m.Limit.Primed)
		w.u8(m.Limit.Refreshed)
		w.align(8)
	}
	if m.Match.Present {
		w.section(11)
		w.u8(m.Match.Accept)
		put(&w, m.Match.Positions)
		put(&w, m.Match.Prefixes)
		put(&w, m.Match.Keys)
		put(&w, m.Match.Others)
		put(&w, m.Match.Primed)
	}
	return w.b
}

// Decode implements Message.
func (m *AdviseRequest) Decode(body []byte) error {
	r := reader{message: "advise request", body: body}
	m.Profile = r.u32("profile")
	m.Record = r.u8("record")
	m.BlockTokens = r.u32("block tokens")
	m.MaxCheckpoints = r.u32("max checkpoints")
	m.Tokens = r.u32("tokens")
	m.TokenOff = r.u64("token off")
	m.Output = r.u32("output")
	m.PrefixTokens = r.u32("prefix tokens")
	m.PrefixTier = r.u8("prefix tier")
	m.BufferTokens = r.u32("buffer tokens")
	m.SeamTokens = r.u32("seam tokens")
	m.Cuts = get[uint32](&r, "cuts", MaxKeys)
	m.SegmentBegin = get[uint32](&r, "segment begin", MaxKeys)
	m.SegmentTokens = get[uint32](&r, "segment tokens", MaxKeys)
	m.SegmentStatus = get[uint8](&r, "segment status", MaxKeys)
	m.SegmentTier = get[uint8](&r, "segment tier", MaxKeys)
	m.SampleBegin = get[uint32](&r, "sample begin", MaxSamples)
	m.SampleEnd = get[uint32](&r, "sample end", MaxSamples)
	m.SampleMicros = get[uint32](&r, "sample micros", MaxSamples)
	r.same("segment tokens", len(m.SegmentTokens), len(m.SegmentBegin))
	r.same("segment status", len(m.SegmentStatus), len(m.SegmentBegin))
	r.same("segment tier", len(m.SegmentTier), len(m.SegmentBegin))
	r.same("sample end", len(m.SampleEnd), len(m.SampleBegin))
	r.same("sample micros", len(m.SampleMicros), len(m.SampleBegin))
	if m.Measured.Present {
		m.Measured = AdviseMeasured{}
	}
	if r.more() && r.section(8) {
		m.Measured.Present = true
		m.Measured.WalkRows = get[uint32](&r, "measured walk rows", MaxSamples)
		m.Measured.WalkPlaced = get[uint32](&r, "measured walk placed", MaxSamples)
		m.Measured.WalkMicros = get[uint32](&r, "measured walk micros", MaxSamples)
		m.Measured.CaptureTokens = get[uint32](&r, "measured capture tokens", MaxSamples)
		m.Measured.CaptureMicros = get[uint32](&r, "measured capture micros", MaxSamples)
		r.same("measured walk placed", len(m.Measured.WalkPlaced), len(m.Measured.WalkRows))
		r.same("measured walk micros", len(m.Measured.WalkMicros), len(m.Measured.WalkRows))
		r.same("measured capture micros", len(m.Measured.CaptureMicros), len(m.Measured.CaptureTokens))
	}
	if m.Limit.Present {
		m.Limit = AdviseLimit{}
	}
	if r.more() && r.section(10) {
		m.Limit.Present = true
		m.Limit.MaxLoss = math.Float64frombits(r.u64("limit max loss"))
		m.Limit.Primed = r.u8("limit primed")
		m.Limit.Refreshed = r.u8("limit refreshed")
		r.align("section", 8)
	}
	if m.Match.Present {
		m.Match = AdviseMatch{}
	}
	if r.more() && r.section(11) {
		m.Match.Present = true
		m.Match.Accept = r.u8("match accept")
		m.Match.Positions = get[uint32](&r, "match positions", MaxKeys)
		m.Match.Prefixes = get[[32]byte](&r, "match prefixes", MaxKeys)
		m.Match.Keys = get[[32]byte](&r, "match keys", MaxKeys)
		m.Match.Others = get[[32]byte](&r, "match others", MaxKeys)
		m.Match.Primed = get[uint8](&r, "match primed", MaxKeys)
		r.same("match prefixes", len(m.Match.Prefixes), len(m.Match.Positions))
		r.same("match primed", len(m.Match.Primed), len(m.Match.Keys))
	}
	return r.end()
}

// Append implements Message.
func (m *AdviseReply) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.SeenTokens)
	w.u8(m.Way)
	put(&w, m.WayMicros)
	put(&w, m.Positions)
	put(&w, m.Why)
	put(&w, m.Admit)
	put(&w, m.Reason)
	put(&w, m.Value)
	put(&w, m.SegmentAdmit)
	put(&w, m.SegmentReason)
	if m.Splice.Present {
		w.section(8)
		w.u32(m.Splice.Segments)
		w.align(8)
	}
	if m.Loss.Present {
		w.section(10)
		w.u64(math.Float64bits(m.Loss.Asked))
		w.u64(math.Float64bits(m.Loss.Refreshed))
		w.u8(m.Loss.Splicing)
		w.align(8)
	}
	if m.Match.Present {
		w.section(11)
		w.u32(m.Match.PrefixTokens)
		w.u32(m.Match.PrefixIndex)
		w.u8(m.Match.PrefixFlags)
		w.u8(m.Match.PrefixReason)
		w.u8(m.Match.PrefixTier)
		w.u32(m.Match.PrefixStates)
		put(&w, m.Match.Status)
		put(&w, m.Match.Tier)
		put(&w, m.Match.Reason)
		put(&w, m.Match.Tokens)
		put(&w, m.Match.Error)
		put(&w, m.Match.Variants)
	}
	return w.b
}

// Decode implements Message.
func (m *AdviseReply) Decode(body []byte) error {
	r := reader{message: "advise reply", body: body}
	m.SeenTokens = r.u32("seen tokens")
	m.Way = r.u8("way")
	m.WayMicros = get[float64](&r, "way micros", MaxWays)
	m.Positions = get[uint32](&r, "positions", MaxPositions)
	m.Why = get[uint8](&r, "why", MaxPositions)
	m.Admit = get[uint8](&r, "admit", MaxPositions)
	m.Reason = get[uint8](&r, "reason", MaxPositions)
	m.Value = get[float64](&r, "value", MaxPositions)
	m.SegmentAdmit = get[uint8](&r, "segment admit", MaxKeys)
	m.SegmentReason = get[uint8](&r, "segment reason", MaxKeys)
	r.same("why", len(m.Why), len(m.Positions))
	r.same("admit", len(m.Admit), len(m.Positions))
	r.same("reason", len(m.Reason), len(m.Positions))
	r.same("value", len(m.Value), len(m.Positions))
	r.same("segment reason", len(m.SegmentReason), len(m.SegmentAdmit))
	if m.Splice.Present {
		m.Splice = AdviseSplice{}
	}
	if r.more() && r.section(8) {
		m.Splice.Present = true
		m.Splice.Segments = r.u32("splice segments")
		r.align("section", 8)
	}
	if m.Loss.Present {
		m.Loss = AdviseLoss{}
	}
	if r.more() && r.section(10) {
		m.Loss.Present = true
		m.Loss.Asked = math.Float64frombits(r.u64("loss asked"))
		m.Loss.Refreshed = math.Float64frombits(r.u64("loss refreshed"))
		m.Loss.Splicing = r.u8("loss splicing")
		r.align("section", 8)
	}
	if m.Match.Present {
		m.Match = AdviseMatched{}
	}
	if r.more() && r.section(11) {
		m.Match.Present = true
		m.Match.PrefixTokens = r.u32("match prefix tokens")
		m.Match.PrefixIndex = r.u32("match prefix index")
		m.Match.PrefixFlags = r.u8("match prefix flags")
		m.Match.PrefixReason = r.u8("match prefix reason")
		m.Match.PrefixTier = r.u8("match prefix tier")
		m.Match.PrefixStates = r.u32("match prefix states")
		m.Match.Status = get[uint8](&r, "match status", MaxKeys)
		m.Match.Tier = get[uint8](&r, "match tier", MaxKeys)
		m.Match.Reason = get[uint8](&r, "match reason", MaxKeys)
		m.Match.Tokens = get[uint32](&r, "match tokens", MaxKeys)
		m.Match.Error = get[float64](&r, "match error", MaxKeys)
		m.Match.Variants = get[uint8](&r, "match variants", MaxKeys)
		r.same("match tier", len(m.Match.Tier), len(m.Match.Status))
		r.same("match reason", len(m.Match.Reason), len(m.Match.Status))
		r.same("match tokens", len(m.Match.Tokens), len(m.Match.Status))
		r.same("match error", len(m.Match.Error), len(m.Match.Status))
		r.same("match variants", len(m.Match.Variants), len(m.Match.Status))
	}
	return r.end()
}

// Append implements Message.
func (m *ServedRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u8(m.Way)
	w.u32(m.Tokens)
	w.u32(m.Engine)
	w.u32(m.Prefix)
	w.u8(m.PrefixTier)
	w.u8(m.PrefixReason)
	w.u64(m.ReadBytes)
	w.u32(m.MatchMicros)
	w.u32(m.WaitMicros)
	w.u32(m.FirstMicros)
	put(&w, m.WayMicros)
	put(&w, m.Begins)
	put(&w, m.Counts)
	put(&w, m.At)
	put(&w, m.Reused)
	put(&w, m.Tiers)
	put(&w, m.Reasons)
	put(&w, m.Keys)
	w.text(m.Request)
	w.text(m.Trace)
	if m.Loss.Present {
		w.section(10)
		w.u64(math.Float64bits(m.Loss.Expected))
	}
	return w.b
}

// Decode implements Message.
func (m *ServedRequest) Decode(body []byte) error {
	r := reader{message: "served request", body: body}
	m.Profile = r.u32("profile")
	m.Way = r.u8("way")
	m.Tokens = r.u32("tokens")
	m.Engine = r.u32("engine")
	m.Prefix = r.u32("prefix")
	m.PrefixTier = r.u8("prefix tier")
	m.PrefixReason = r.u8("prefix reason")
	m.ReadBytes = r.u64("read bytes")
	m.MatchMicros = r.u32("match micros")
	m.WaitMicros = r.u32("wait micros")
	m.FirstMicros = r.u32("first micros")
	m.WayMicros = get[float64](&r, "way micros", MaxWays)
	m.Begins = get[uint32](&r, "begins", MaxKeys)
	m.Counts = get[uint32](&r, "counts", MaxKeys)
	m.At = get[uint32](&r, "at", MaxKeys)
	m.Reused = get[uint32](&r, "reused", MaxKeys)
	m.Tiers = get[uint8](&r, "tiers", MaxKeys)
	m.Reasons = get[uint8](&r, "reasons", MaxKeys)
	m.Keys = get[[32]byte](&r, "keys", MaxKeys)
	m.Request = r.text("request", MaxName)
	m.Trace = r.text("trace", MaxName)
	r.same("counts", len(m.Counts), len(m.Begins))
	r.same("at", len(m.At), len(m.Begins))
	r.same("reused", len(m.Reused), len(m.Begins))
	r.same("tiers", len(m.Tiers), len(m.Begins))
	r.same("reasons", len(m.Reasons), len(m.Begins))
	r.same("keys", len(m.Keys), len(m.Begins))
	if m.Loss.Present {
		m.Loss = ServedLoss{}
	}
	if r.more() && r.section(10) {
		m.Loss.Present = true
		m.Loss.Expected = math.Float64frombits(r.u64("loss expected"))
	}
	return r.end()
}

// Append implements Message.
func (m *ServedReply) Append(b []byte) []byte {
	w := begin(b)
	w.u64(m.Number)
	w.u64(math.Float64bits(m.CanaryShare))
	return w.b
}

// Decode implements Message.
func (m *ServedReply) Decode(body []byte) error {
	r := reader{message: "served reply", body: body}
	m.Number = r.u64("number")
	m.CanaryShare = math.Float64frombits(r.u64("canary share"))
	return r.end()
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
	put(&w, m.ChunkBytes)
	put(&w, m.Handles)
	put(&w, m.Offsets)
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
	m.ChunkBytes = get[uint64](&r, "chunk bytes", MaxChunks)
	m.Handles = get[uint8](&r, "handles", MaxChunks*HandleBytes)
	m.Offsets = get[uint64](&r, "offsets", MaxChunks)
	switch m.Way {
	case WayDescriptor, WayHandle:
	default:
		r.fail("way", "%d", m.Way)
	}
	r.same("handles", len(m.Handles), only(m.Way == WayHandle, len(m.ChunkBytes)*HandleBytes))
	r.same("offsets", len(m.Offsets), only(m.Way == WayHandle, len(m.ChunkBytes)))
	if int64(m.PublicChunks) > int64(len(m.ChunkBytes)) {
		r.fail("public chunks", "%d of %d", m.PublicChunks, len(m.ChunkBytes))
	}
	m.Events = get[uint8](&r, "events", 2*HandleBytes)
	if len(m.Events) > 0 {
		r.same("events", len(m.Events), 2*HandleBytes)
	}
	return r.end()
}

// Append implements Message.
func (m *RegisterDeviceRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u8(m.Way)
	w.u64(m.Epoch)
	put(&w, m.ChunkBytes)
	put(&w, m.Handles)
	put(&w, m.Offsets)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u32(m.Memory[i].Layer)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].KBase)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].VBase)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].BlockStride)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].KTokenStride)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].KHeadStride)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].VTokenStride)
	}
	w.align(8)
	w.count(len(m.Memory))
	for i := range m.Memory {
		w.u64(m.Memory[i].VHeadStride)
	}
	w.align(8)
	return w.b
}

// Decode implements Message.
func (m *RegisterDeviceRequest) Decode(body []byte) error {
	r := reader{message: "register-device request", body: body}
	m.Profile = r.u32("profile")
	m.Way = r.u8("way")
	m.Epoch = r.u64("epoch")
	m.ChunkBytes = get[uint64](&r, "chunk bytes", MaxChunks)
	m.Handles = get[uint8](&r, "handles", MaxChunks*HandleBytes)
	m.Offsets = get[uint64](&r, "offsets", MaxChunks)
	switch m.Way {
	case WayDescriptor, WayHandle:
	default:
		r.fail("way", "%d", m.Way)
	}
	r.same("handles", len(m.Handles), only(m.Way == WayHandle, len(m.ChunkBytes)*HandleBytes))
	r.same("offsets", len(m.Offsets), only(m.Way == WayHandle, len(m.ChunkBytes)))
	memoryLayer := get[uint32](&r, "memory layer", MaxMemoryLayers)
	memoryKBase := get[uint64](&r, "memory k base", MaxMemoryLayers)
	r.same("memory k base", len(memoryKBase), len(memoryLayer))
	memoryVBase := get[uint64](&r, "memory v base", MaxMemoryLayers)
	r.same("memory v base", len(memoryVBase), len(memoryLayer))
	memoryBlockStride := get[uint64](&r, "memory block stride", MaxMemoryLayers)
	r.same("memory block stride", len(memoryBlockStride), len(memoryLayer))
	memoryKTokenStride := get[uint64](&r, "memory k token stride", MaxMemoryLayers)
	r.same("memory k token stride", len(memoryKTokenStride), len(memoryLayer))
	memoryKHeadStride := get[uint64](&r, "memory k head stride", MaxMemoryLayers)
	r.same("memory k head stride", len(memoryKHeadStride), len(memoryLayer))
	memoryVTokenStride := get[uint64](&r, "memory v token stride", MaxMemoryLayers)
	r.same("memory v token stride", len(memoryVTokenStride), len(memoryLayer))
	memoryVHeadStride := get[uint64](&r, "memory v head stride", MaxMemoryLayers)
	r.same("memory v head stride", len(memoryVHeadStride), len(memoryLayer))
	if err := r.end(); err != nil {
		return err
	}
	m.Memory = nil
	if n := len(memoryLayer); n > 0 {
		m.Memory = make([]MemoryLayer, n)
	}
	for i := range m.Memory {
		m.Memory[i] = MemoryLayer{
			Layer:        memoryLayer[i],
			KBase:        memoryKBase[i],
			VBase:        memoryVBase[i],
			BlockStride:  memoryBlockStride[i],
			KTokenStride: memoryKTokenStride[i],
			KHeadStride:  memoryKHeadStride[i],
			VTokenStride: memoryVTokenStride[i],
			VHeadStride:  memoryVHeadStride[i],
		}
	}
	return nil
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
	m.TTLMs = r.u32("ttl ms")
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
	return m.LoadRequest.decode("load-device request", body)
}

// Append implements Message.
func (m *PlanRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u8(m.Pieces)
	w.u32(m.QueuedMicros)
	w.u32(m.WithinMs)
	w.u64(m.TokenOff)
	put(&w, m.Keys)
	put(&w, m.Roles)
	put(&w, m.Heads)
	put(&w, m.Tails)
	put(&w, m.Tokens)
	if m.Primers.Present {
		w.section(9)
		put(&w, m.Primers.IDs)
	}
	return w.b
}

// Decode implements Message.
func (m *PlanRequest) Decode(body []byte) error {
	r := reader{message: "plan request", body: body}
	m.Profile = r.u32("profile")
	m.Pieces = r.u8("pieces")
	m.QueuedMicros = r.u32("queued micros")
	m.WithinMs = r.u32("within ms")
	m.TokenOff = r.u64("token off")
	m.Keys = get[[32]byte](&r, "keys", MaxPlanRows)
	m.Roles = get[uint8](&r, "roles", MaxPlanRows)
	m.Heads = get[uint32](&r, "heads", MaxPlanRows)
	m.Tails = get[uint32](&r, "tails", MaxPlanRows)
	m.Tokens = get[uint32](&r, "tokens", MaxPlanRows)
	r.same("roles", len(m.Roles), len(m.Keys))
	r.same("heads", len(m.Heads), len(m.Keys))
	r.same("tails", len(m.Tails), len(m.Keys))
	r.same("tokens", len(m.Tokens), len(m.Keys))
	if m.Primers.Present {
		m.Primers = PlanPrimers{}
	}
	if r.more() && r.section(9) {
		m.Primers.Present = true
		m.Primers.IDs = get[[32]byte](&r, "primers ids", MaxPlanRows)
		r.same("primers ids", len(m.Primers.IDs), len(m.Keys))
	}
	return r.end()
}

// Append implements Message.
func (m *PlanReply) Append(b []byte) []byte {
	w := begin(b)
	w.u64(m.Plan)
	w.u8(m.Alone)
	w.u32(m.Micros)
	w.u32(m.AloneMicros)
	put(&w, m.Workers)
	put(&w, m.RowMicros)
	put(&w, m.OwnRows)
	put(&w, m.OwnBegins)
	put(&w, m.OwnEnds)
	w.text(m.Combine)
	return w.b
}

// Decode implements Message.
func (m *PlanReply) Decode(body []byte) error {
	r := reader{message: "plan reply", body: body}
	m.Plan = r.u64("plan")
	m.Alone = r.u8("alone")
	m.Micros = r.u32("micros")
	m.AloneMicros = r.u32("alone micros")
	m.Workers = get[uint32](&r, "workers", MaxPlanRows)
	m.RowMicros = get[uint32](&r, "row micros", MaxPlanRows)
	m.OwnRows = get[uint32](&r, "own rows", MaxPlanRows)
	m.OwnBegins = get[uint32](&r, "own begins", MaxPlanRows)
	m.OwnEnds = get[uint32](&r, "own ends", MaxPlanRows)
	m.Combine = r.text("combine", MaxName)
	r.same("row micros", len(m.RowMicros), len(m.Workers))
	r.same("own begins", len(m.OwnBegins), len(m.OwnRows))
	r.same("own ends", len(m.OwnEnds), len(m.OwnRows))
	return r.end()
}

// Append implements Message.
func (m *WatchRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.WaitMs)
	w.u64(m.Plan)
	w.u8(m.End)
	w.u8(m.Pieces)
	w.u32(m.Jobs)
	w.u32(m.QueuedMicros)
	put(&w, m.Declined)
	if m.Primers.Present {
		w.section(9)
		put(&w, m.Primers.IDs)
	}
	return w.b
}

// Decode implements Message.
func (m *WatchRequest) Decode(body []byte) error {
	r := reader{message: "watch request", body: body}
	m.Profile = r.u32("profile")
	m.WaitMs = r.u32("wait ms")
	m.Plan = r.u64("plan")
	m.End = r.u8("end")
	m.Pieces = r.u8("pieces")
	m.Jobs = r.u32("jobs")
	m.QueuedMicros = r.u32("queued micros")
	m.Declined = get[uint64](&r, "declined", MaxWorkerJobs)
	if m.Primers.Present {
		m.Primers = WatchPrimersQuery{}
	}
	if r.more() && r.section(9) {
		m.Primers.Present = true
		m.Primers.IDs = get[[32]byte](&r, "primers ids", MaxPrimers)
	}
	return r.end()
}

// Append implements Message.
func (m *WatchReply) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Open)
	put(&w, m.Rows)
	put(&w, m.Progress)
	put(&w, m.Jobs)
	put(&w, m.Keys)
	put(&w, m.Roles)
	put(&w, m.Heads)
	put(&w, m.Tails)
	put(&w, m.Begins)
	put(&w, m.Lefts)
	put(&w, m.Micros)
	put(&w, m.Tokens)
	put(&w, m.IDs)
	put(&w, m.Withdrawn)
	if m.Primers.Present {
		w.section(9)
		put(&w, m.Primers.IDs)
	}
	return w.b
}

// Decode implements Message.
func (m *WatchReply) Decode(body []byte) error {
	r := reader{message: "watch reply", body: body}
	m.Open = r.u32("open")
	m.Rows = get[uint32](&r, "rows", MaxPlanRows)
	m.Progress = get[uint8](&r, "progress", MaxPlanRows)
	m.Jobs = get[uint64](&r, "jobs", MaxWorkerJobs)
	m.Keys = get[[32]byte](&r, "keys", MaxWorkerJobs)
	m.Roles = get[uint8](&r, "roles", MaxWorkerJobs)
	m.Heads = get[uint32](&r, "heads", MaxWorkerJobs)
	m.Tails = get[uint32](&r, "tails", MaxWorkerJobs)
	m.Begins = get[uint32](&r, "begins", MaxWorkerJobs)
	m.Lefts = get[[32]byte](&r, "lefts", MaxWorkerJobs)
	m.Micros = get[uint32](&r, "micros", MaxWorkerJobs)
	m.Tokens = get[uint32](&r, "tokens", MaxWorkerJobs)
	m.IDs = get[uint32](&r, "ids", MaxJobTokens)
	m.Withdrawn = get[uint64](&r, "withdrawn", MaxWorkerJobs)
	r.same("progress", len(m.Progress), len(m.Rows))
	r.same("keys", len(m.Keys), len(m.Jobs))
	r.same("roles", len(m.Roles), len(m.Jobs))
	r.same("heads", len(m.Heads), len(m.Jobs))
	r.same("tails", len(m.Tails), len(m.Jobs))
	r.same("begins", len(m.Begins), len(m.Jobs))
	r.same("lefts", len(m.Lefts), len(m.Jobs))
	r.same("micros", len(m.Micros), len(m.Jobs))
	r.same("tokens", len(m.Tokens), len(m.Jobs))
	r.sum("tokens", m.Tokens, len(m.IDs))
	if m.Primers.Present {
		m.Primers = WatchPrimers{}
	}
	if r.more() && r.section(9) {
		m.Primers.Present = true
		m.Primers.IDs = get[[32]byte](&r, "primers ids", MaxWorkerJobs)
		r.same("primers ids", len(m.Primers.IDs), len(m.Jobs))
	}
	return r.end()
}
