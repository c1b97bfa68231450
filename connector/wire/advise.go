package wire

// Ways to serve a prompt. AdviseReply.WayMicros is indexed by way minus one.
const (
	WayRecompute uint8 = 1 // nothing is used
	WayPrefix    uint8 = 2 // from the longest checkpoint on
	WaySplice    uint8 = 3 // from the longest checkpoint on, with the segments that are held
	WayReplay    uint8 = 4 // from a token inside a buffer on
)

// Why a checkpoint at a position is worth having.
const (
	WhyBranch   uint8 = 1 // prompts were seen to part there
	WhyLast     uint8 = 2 // the last token of this prompt
	WhyBoundary uint8 = 3 // the application named it
	WhyPlaced   uint8 = 4 // placed from the depths at which earlier prompts parted
)

// Why something is worth storing, below AdviceShort, or is not. Unlike a Reason of
// match this is advice about what is not there yet.
const (
	AdviceNone      uint8 = 0  // it is there, or somebody is storing it
	AdviceSeen      uint8 = 1  // it came before
	AdviceCheap     uint8 = 2  // storing it costs next to nothing of computing it
	AdviceAsked     uint8 = 3  // the application named it
	AdviceReturning uint8 = 4  // such things come back
	AdviceShort     uint8 = 16 // computing it again takes less than fetching it
	AdviceCold      uint8 = 17 // it is not expected back often enough for what storing it takes
	AdviceThin      uint8 = 18 // it saves less per byte than what would have to leave
	AdviceLarge     uint8 = 19 // it takes more than its share of the pool
	AdviceNoGain    uint8 = 20 // fetching it is no faster than computing it
)

// AdviseRequest asks what to use and what to store for a prompt whose token ids
// (little-endian uint32) lie in staging. What match has answered comes along;
// zero means nothing is held. Cuts and the begins of segments ascend.
type AdviseRequest struct {
	Profile        uint32
	Record         uint8  // 1 = this prompt is being served: remember it; 0 = only asked
	BlockTokens    uint32 // positions must be multiples of it; 0 = 1
	MaxCheckpoints uint32 // 0 = the daemon's default
	Tokens         uint32 // whole length
	TokenOff       uint64 // staging offset of the token ids
	Output         uint32 // of these, generated tokens at the end
	PrefixTokens   uint32 // of the longest checkpoint
	PrefixTier     uint8
	BufferTokens   uint32 // end of a buffer that holds this prompt, in tokens
	SeamTokens     uint32 // computed again in all, when the segments are used
	Cuts           []uint32
	SegmentBegin   []uint32
	SegmentTokens  []uint32
	SegmentStatus  []uint8 // StatusMiss and so on
	SegmentTier    []uint8
	// Measured prefills since the last advise: tokens [begin, end) took so many
	// microseconds.
	SampleBegin  []uint32
	SampleEnd    []uint32
	SampleMicros []uint32
}

// AdviseReply has one row per advised checkpoint and one per segment.
type AdviseReply struct {
	SeenTokens    uint32    // longest prefix of this prompt that was seen before
	Way           uint8     // the quickest
	WayMicros     []float64 // predicted; +Inf = not possible here
	Positions     []uint32  // ascending
	Why           []uint8
	Admit         []uint8   // 1 = store it
	Reason        []uint8   // why not
	Value         []float64 // expected milliseconds saved per MiB
	SegmentAdmit  []uint8   // 1 = publish this segment, which is missing
	SegmentReason []uint8
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
	n := len(m.SegmentBegin)
	r.same("segment tokens", len(m.SegmentTokens), n)
	r.same("segment status", len(m.SegmentStatus), n)
	r.same("segment tier", len(m.SegmentTier), n)
	n = len(m.SampleBegin)
	r.same("sample end", len(m.SampleEnd), n)
	r.same("sample micros", len(m.SampleMicros), n)
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
	n := len(m.Positions)
	r.same("why", len(m.Why), n)
	r.same("admit", len(m.Admit), n)
	r.same("reason", len(m.Reason), n)
	r.same("value", len(m.Value), n)
	r.same("segment reason", len(m.SegmentReason), len(m.SegmentAdmit))
	return r.end()
}
