package wire

import (
	"fmt"
	"math/rand/v2"
)

func sampleHeader(op Op, kind Kind) Header {
	h := Header{Kind: kind, Op: op, Request: 0x0102030405060700 + uint64(op), Tenant: 3}
	if op != OpHello {
		h.Epoch = 0xa1a2a3a4a5a6a7a8
	}
	if kind == Request {
		h.Deadline = 50_000
	}
	return h
}

// numbers is what fills sample messages: from a seed, or the same every time.
type numbers struct{ *rand.Rand }

func (g numbers) hash() (h [32]byte) {
	for i := range h {
		h[i] = byte(g.Uint32())
	}
	return h
}

func (g numbers) hashes(n int) [][32]byte { return fill(n, g.hash) }
func (g numbers) u64s(n int) []uint64     { return fill(n, g.Uint64) }
func (g numbers) f64s(n int) []float64    { return fill(n, g.Float64) }
func (g numbers) u32s(n int) []uint32     { return fill(n, g.Uint32) }
func (g numbers) u16s(n int) []uint16     { return fill(n, func() uint16 { return uint16(g.Uint32()) }) }
func (g numbers) u8s(n int) []uint8       { return fill(n, func() uint8 { return uint8(g.Uint32()) }) }

// fill returns nil for no elements, as decoding does.
func fill[T any](n int, next func() T) []T {
	var v []T
	for range n {
		v = append(v, next())
	}
	return v
}

// split returns n counts and their sum.
func (g numbers) split(n int) (counts []uint32, total int) {
	counts = fill(n, func() uint32 { return g.Uint32N(4) })
	for _, c := range counts {
		total += int(c)
	}
	return counts, total
}

func (g numbers) plan(n int) Plan {
	return Plan{
		Begin: g.Uint32(), End: g.Uint32(),
		Kinds: g.u8s(n), Leases: g.u64s(n), Starts: g.u32s(n), Counts: g.u32s(n), Inputs: g.u64s(n),
	}
}

func (g numbers) layer() MemoryLayer {
	return MemoryLayer{
		Layer: g.Uint32(), KBase: g.Uint64(), VBase: g.Uint64(), BlockStride: g.Uint64(),
		KTokenStride: g.Uint64(), KHeadStride: g.Uint64(), VTokenStride: g.Uint64(), VHeadStride: g.Uint64(),
	}
}

// attached has handles on odd rows and descriptors on even ones.
func (g numbers) attached(n int) *AttachDeviceReply {
	m := &AttachDeviceReply{
		Way: WayDescriptor, Epoch: g.Uint64(), PublicBytes: g.Uint64(), PrivateBytes: g.Uint64(), OrderOff: 4096,
		OrderSlots: 16, PublicChunks: uint32(n / 2), StagingOff: 8192, StagingBytes: g.Uint64(), UUID: g.u8s(UUIDBytes), ChunkBytes: g.u64s(n),
	}
	if n%2 == 1 {
		m.Way, m.Handles, m.Offsets, m.Events = WayHandle, g.u8s(n*HandleBytes), g.u64s(n), g.u8s(2*HandleBytes)
	}
	return m
}

func (g numbers) rotate(n int) RotateRequest {
	return RotateRequest{
		Profile: g.Uint32(), Rank: 1, Layer: AllLayers, Dest: DestMemory, Memory: 4, From: FromCheckpoint,
		FromLease: g.Uint64(), Into: g.Uint64(), Plan: g.plan(n), Blocks: g.u32s(2*n + 1),
	}
}

// sample is the message whose golden frame is kept.
func sample(op Op, kind Kind) Message {
	return numbers{rand.New(rand.NewPCG(uint64(op), uint64(kind)))}.message(op, kind, 3)
}

// wholeMessage is a message with every section.
type wholeMessage struct {
	name string
	op   Op
	kind Kind
	m    Message
}

// withSections has a message for each section that the protocol knows.
func withSections() []wholeMessage {
	request, reply := sample(OpMatch, Request).(*MatchRequest), sample(OpMatch, Reply).(*MatchReply)
	request.Prompt = MatchPrompt{Present: true, Tokens: 8192, TokenOff: 1 << 20}
	reply.Estimates = MatchEstimates{
		Present: true, PrefixMicros: 450, PrefixError: 0, Micros: []uint32{0, 1200, 1<<32 - 1}, Error: []float64{0, 1.0 / 1024, 0.25},
	}
	reply.Tier[1] = TierPeer
	asked, known := sample(OpMatch, Request).(*MatchRequest), sample(OpMatch, Reply).(*MatchReply)
	asked.Known = MatchKnownQuery{Present: true, Begin: 512, SeamTokens: 16}
	known.Known = MatchKnown{
		Present: true, Untried: 3, Starts: []uint32{600, 1200}, Lengths: []uint32{512, 300},
		Keys: [][32]byte{{1, 2, 3}, {4, 5, 6}}, Tiers: []uint8{TierDRAM, TierDisk}, Interiors: []uint32{480, 268},
	}
	short, load := sample(OpMatch, Reply).(*MatchReply), sample(OpLoad, Reply).(*LoadReply)
	short.Rows = MatchRows{Present: true, PrefixStates: 4000}
	load.Rows = LoadRows{Present: true, Kinds: []uint8{AcceptExact, AcceptRows, AcceptRows}}
	packed := sample(OpAcquire, Reply).(*AcquireReply)
	packed.Packed = AcquirePacked{Present: true, Count: []uint32{11, 0, 10}, Layout: []uint8("\x01\x02\x03<\x04\x05\x06=\x80\x01\x07\x01\x02\x03<\x04\x05\x06=\x08\x09")}
	save := sample(OpSave, Request).(*SaveRequest)
	save.Buffered = SaveBuffered{Present: true, Buffer: 1 << 40}
	advise, advice := sample(OpAdvise, Request).(*AdviseRequest), sample(OpAdvise, Reply).(*AdviseReply)
	advise.Measured = AdviseMeasured{
		Present: true, WalkRows: []uint32{24, 0}, WalkPlaced: []uint32{1168, 512}, WalkMicros: []uint32{41_000, 900},
		CaptureTokens: []uint32{400}, CaptureMicros: []uint32{210_000},
	}
	advice.Splice = AdviseSplice{Present: true, Segments: 2}
	two, which := sample(OpMatch, Request).(*MatchRequest), sample(OpMatch, Reply).(*MatchReply)
	two.Primers = MatchPrimersQuery{
		Present: true, Primer: [32]byte{0xa1, 0xa2}, PrimedFrom: 700, Either: 1, Others: [][32]byte{{1, 2}, {}, {3, 4}, {5, 6}},
	}
	which.Primers = MatchPrimers{Present: true, Variants: []uint8{0, 1, 0}, Primed: []uint8{1, 0}}
	primers := [][32]byte{{0xa1, 0xa2}, {}, {0xb1, 0xb2}}
	reserve, plan := sample(OpReserve, Request).(*ReserveRequest), sample(OpPlan, Request).(*PlanRequest)
	reserve.Primers, plan.Primers = ReservePrimers{Present: true, IDs: primers}, PlanPrimers{Present: true, IDs: primers}
	worker, jobs := sample(OpWatch, Request).(*WatchRequest), sample(OpWatch, Reply).(*WatchReply)
	worker.Primers, jobs.Primers = WatchPrimersQuery{Present: true, IDs: primers[:1]}, WatchPrimers{Present: true, IDs: primers}
	report, limited := sample(OpReport, Request).(*ReportRequest), sample(OpAdvise, Request).(*AdviseRequest)
	report.Losses = ReportLosses{Present: true, Offline: 1, Compared: []uint32{300, 280, 0, 41}, Changed: []uint32{43, 6, 0, 1}}
	limited.Limit = AdviseLimit{Present: true, MaxLoss: 0.0625, Primed: 1, Refreshed: 1}
	expected, served := sample(OpAdvise, Reply).(*AdviseReply), sample(OpServed, Request).(*ServedRequest)
	expected.Loss = AdviseLoss{Present: true, Asked: -1, Refreshed: 0.03125, Splicing: SplicingRefreshed}
	served.Loss = ServedLoss{Present: true, Expected: 0.125}
	both, answers := sample(OpAdvise, Request).(*AdviseRequest), sample(OpAdvise, Reply).(*AdviseReply)
	both.Match = AdviseMatch{
		Present: true, Accept: 3, Positions: []uint32{16, 32}, Prefixes: [][32]byte{{7}, {8}}, Keys: [][32]byte{{1, 2}, {3, 4}, {5, 6}},
		Others: [][32]byte{{9}, {}, {10}}, Primed: []uint8{0, 2, 3},
	}
	answers.Match = AdviseMatched{
		Present: true, PrefixTokens: 32, PrefixIndex: 1, PrefixFlags: AcceptSpliced, PrefixReason: ReasonEvicted, PrefixTier: TierDisk, PrefixStates: 32,
		Status: []uint8{StatusHit, StatusMiss, StatusHit}, Tier: []uint8{TierDRAM, TierNone, TierPeer}, Reason: []uint8{0, ReasonEvicted, 0},
		Tokens: []uint32{48, 0, 0}, Error: []float64{0.001953125, 0, 0.03125}, Variants: []uint8{0, 0, 1},
	}
	return []wholeMessage{
		{"match request with prompt", OpMatch, Request, request}, {"match reply with estimates", OpMatch, Reply, reply},
		{"match request with known", OpMatch, Request, asked}, {"match reply with known", OpMatch, Reply, known},
		{"match reply with rows", OpMatch, Reply, short}, {"load reply with rows", OpLoad, Reply, load},
		{"acquire reply with packed", OpAcquire, Reply, packed}, {"save request with buffered", OpSave, Request, save},
		{"advise request with what was measured", OpAdvise, Request, advise}, {"advise reply with a splice", OpAdvise, Reply, advice},
		{"match request with primers", OpMatch, Request, two}, {"match reply with primers", OpMatch, Reply, which},
		{"reserve request with primers", OpReserve, Request, reserve}, {"plan request with primers", OpPlan, Request, plan},
		{"watch request with primers", OpWatch, Request, worker}, {"watch reply with primers", OpWatch, Reply, jobs},
		{"report request with losses", OpReport, Request, report}, {"advise request with a limit", OpAdvise, Request, limited},
		{"advise reply with a loss", OpAdvise, Reply, expected}, {"served request with a loss", OpServed, Request, served},
		{"advise request with a lookup", OpAdvise, Request, both}, {"advise reply with a match", OpAdvise, Reply, answers},
	}
}

// message returns a message with n rows.
func (g numbers) message(op Op, kind Kind, n int) Message {
	if kind == Request {
		return g.request(op, n)
	}
	return g.reply(op, n)
}

func (g numbers) request(op Op, n int) Message {
	switch op {
	case OpHello:
		m := &HelloRequest{MinVersion: 1, MaxVersion: 2, Features: g.Uint64(), Client: "vllm 0.11", StagingBytes: 64 << 20, SlotBytes: 32 << 20}
		for range n {
			m.Tenants = append(m.Tenants, TenantName{Name: "tenant-é"[:g.IntN(9)], Token: "secret"[:g.IntN(7)]})
		}
		return m
	case OpProfile:
		m := &ProfileRequest{
			Identity: g.u8s(7 * n), BlockTokens: 16, Connector: "spliced-vllm", Engine: "vLLM 0.11.2",
			ProbeTokens: 256, SegmentBytes: g.Uint64(), CheckpointBytes: g.Uint64(), MemoryBytes: g.Uint64(),
		}
		for range n {
			m.Memory = append(m.Memory, g.layer())
		}
		return m
	case OpMatch:
		return &MatchRequest{Profile: 9, Accept: AcceptExact | AcceptSpliced, Positions: g.u32s(n), Prefixes: g.hashes(n), Keys: g.hashes(n + 1)}
	case OpAcquire:
		return &AcquireRequest{Profile: 9, Rank: 1, TTLMs: 30_000, Digests: 1, All: 1, Keys: g.hashes(n)}
	case OpReserve:
		return &ReserveRequest{Profile: 9, Rank: 1, Keys: g.hashes(n), Roles: g.u8s(n), Heads: g.u32s(n), Tails: g.u32s(n), Tokens: g.u32s(n), TokenOff: g.u64s(n)}
	case OpCommit:
		counts, total := g.split(n)
		return &CommitRequest{Level: uint8(LevelSynced), Reservations: g.u64s(n), Parts: g.u32s(n), ChunkFirst: g.u32s(n), ChunkCount: counts, StagingOff: g.u64s(n), Digest: g.u64s(total)}
	case OpAbort:
		return &AbortRequest{Reservations: g.u64s(n)}
	case OpCompose:
		return &ComposeRequest{Profile: 9, Rank: 1, Layer: 12, From: FromSlot, FromLease: g.Uint64(), FromOff: g.Uint64(), Into: g.Uint64(), Plan: g.plan(n)}
	case OpRotate:
		m := g.rotate(n)
		return &m
	case OpAssemble:
		return &AssembleRequest{g.rotate(n)}
	case OpSave:
		return &SaveRequest{Profile: 9, Rank: 1, Kind: AcceptSpliced, Hashes: g.hashes(n), Tokens: g.u32s(n), Parents: g.hashes(n)}
	case OpLoad:
		return &LoadRequest{Profile: 9, Rank: 1, Accept: AcceptExact, TTLMs: 30_000, Digests: 1, Hash: g.hash()}
	case OpCancel:
		return &CancelRequest{Requests: g.u64s(n)}
	case OpRelease:
		return &ReleaseRequest{Leases: g.u64s(n)}
	case OpAdvise:
		return &AdviseRequest{
			Profile: 9, Record: 1, BlockTokens: 64, MaxCheckpoints: 2, Tokens: 8192, TokenOff: g.Uint64(), Output: 128,
			PrefixTokens: 4096, PrefixTier: TierDisk, BufferTokens: 17, SeamTokens: 16, Cuts: g.u32s(n + 1),
			SegmentBegin: g.u32s(n), SegmentTokens: g.u32s(n), SegmentStatus: g.u8s(n), SegmentTier: g.u8s(n),
			SampleBegin: g.u32s(n + 2), SampleEnd: g.u32s(n + 2), SampleMicros: g.u32s(n + 2),
		}
	case OpAppend:
		return &AppendRequest{Profile: 9, Rank: 1, Buffer: g.Uint64(), Base: g.Uint64(), Begin: 4096, Capacity: 64, Rows: 5, StagingOff: g.Uint64()}
	case OpAccept:
		return &AcceptRequest{Profile: 9, Rank: 1, Buffer: g.Uint64(), Tokens: 3}
	case OpReplay:
		return &ReplayRequest{Profile: 9, Rank: 1, Buffer: g.Uint64(), Token: 4099, Flush: 1, Into: g.Uint64()}
	case OpAttachDevice:
		return &AttachDeviceRequest{Ways: WayDescriptor | WayHandle, PrivateBytes: g.Uint64(), UUID: g.u8s(UUIDBytes * (n % 2))}
	case OpRegisterDevice:
		m := &RegisterDeviceRequest{
			Profile: 9, Way: WayHandle, Epoch: g.Uint64(), ChunkBytes: g.u64s(n), Handles: g.u8s(n * HandleBytes), Offsets: g.u64s(n),
		}
		for range n {
			m.Memory = append(m.Memory, g.layer())
		}
		return m
	case OpAcquireDevice:
		return &AcquireDeviceRequest{Profile: 9, Rank: 1, TTLMs: 30_000, Digests: 1, All: 1, Wait: 1, Keys: g.hashes(n)}
	case OpOrder:
		return &OrderRequest{After: g.Uint64(), Signal: g.Uint64(), Leases: g.u64s(n)}
	case OpLoadDevice:
		return &LoadDeviceRequest{LoadRequest{Profile: 9, Rank: 1, Accept: AcceptSpliced, TTLMs: 30_000, Digests: 1, Hash: g.hash()}}
	case OpPlan:
		return &PlanRequest{
			Profile: 9, Pieces: 1, QueuedMicros: 120_000, WithinMs: 2500, TokenOff: 1 << 20,
			Keys: g.hashes(n), Roles: g.u8s(n), Heads: g.u32s(n), Tails: g.u32s(n), Tokens: g.u32s(n),
		}
	case OpWatch:
		return &WatchRequest{Profile: 9, WaitMs: 5000, Plan: g.Uint64(), End: 1, Pieces: 1, Jobs: 4, QueuedMicros: 70_000, Declined: g.u64s(n)}
	case OpReport:
		return &ReportRequest{Profile: 9, Compared: 64, Failed: 3, Worst: g.Float64(), Bound: 0.125, Off: 1, Text: "worst at layer 3 – é"}
	case OpServed:
		return &ServedRequest{
			Profile: 9, Way: WaySplice, Tokens: 6018, Engine: 128, Prefix: 640, PrefixTier: TierDRAM, PrefixReason: ReasonEvicted,
			ReadBytes: 93 << 20, MatchMicros: 410, WaitMicros: 2900, FirstMicros: 51_000, WayMicros: g.f64s(4),
			Begins: g.u32s(n), Counts: g.u32s(n), At: g.u32s(n), Reused: g.u32s(n), Tiers: g.u8s(n), Reasons: g.u8s(n), Keys: g.hashes(n),
			Request: "cmpl-7é", Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		}
	case OpStats:
		return &StatsRequest{}
	default:
		panic(fmt.Sprintf("no sample request of %v", op))
	}
}

func (g numbers) reply(op Op, n int) Message {
	switch op {
	case OpHello:
		m := &HelloReply{
			Version: 1, Features: g.Uint64(), Connection: g.Uint64(), BootEpoch: g.Uint64(),
			ArenaBytes: 4 << 30, SlotBytes: 32 << 20, StagingBytes: 64 << 20, MaxFrame: MaxFrame, MaxInFlight: 64, Server: "spliced 0.1",
		}
		for range n {
			m.Tenants = append(m.Tenants, TenantGrant{ID: g.Uint32(), Salt: append([]byte{}, g.u8s(g.IntN(20))...)})
		}
		return m
	case OpProfile:
		return &ProfileReply{Profile: 9, Memory: 4, Fingerprint: g.hash()}
	case OpMatch:
		return &MatchReply{PrefixTokens: 4096, PrefixIndex: 2, PrefixFlags: AcceptExact, PrefixReason: ReasonOtherKind, PrefixTier: TierDisk, Status: g.u8s(n), Tier: g.u8s(n), Reason: g.u8s(n), Tokens: g.u32s(n)}
	case OpAttachDevice:
		return g.attached(n)
	case OpRegisterDevice:
		return &RegisterDeviceReply{Memory: 5}
	case OpAcquire, OpAcquireDevice:
		extents, e := g.split(n)
		digests, d := g.split(n)
		return &AcquireReply{
			Codes: g.u16s(n), Leases: g.u64s(n), Bytes: g.u64s(n), Begins: g.u32s(n), Tokens: g.u32s(n),
			ExtentCount: extents, ExtentOff: g.u64s(e), ExtentLen: g.u64s(e), DigestCount: digests, Digest: g.u64s(d),
		}
	case OpReserve, OpSave:
		return &ReserveReply{Codes: g.u16s(n), Reservations: g.u64s(n), Bytes: g.u64s(n)}
	case OpCommit:
		return &CommitReply{Codes: g.u16s(n), Published: g.u8s(n), Levels: g.u8s(n)}
	case OpAbort, OpRelease, OpOrder:
		return &CodesReply{Codes: g.u16s(n)}
	case OpCompose, OpReplay:
		return &ComposeReply{Lease: g.Uint64(), Off: g.Uint64(), Bytes: g.Uint64()}
	case OpRotate, OpAssemble:
		return &RotateReply{Lease: g.Uint64(), Off: g.Uint64(), Bytes: g.Uint64(), Rows: g.Uint32()}
	case OpLoad, OpLoadDevice:
		extents, e := g.split(n)
		digests, d := g.split(n)
		return &LoadReply{
			Lease: g.Uint64(), Kind: AcceptExact, Tokens: 8192, NodeBegin: g.u32s(n), NodeEnd: g.u32s(n),
			ExtentCount: extents, ExtentOff: g.u64s(e), ExtentLen: g.u64s(e), DigestCount: digests, Digest: g.u64s(d),
		}
	case OpCancel:
		return &CancelReply{Outcomes: g.u8s(n)}
	case OpAdvise:
		return &AdviseReply{
			SeenTokens: 4100, Way: WaySplice, WayMicros: g.f64s(4),
			Positions: g.u32s(n), Why: g.u8s(n), Admit: g.u8s(n), Reason: g.u8s(n), Value: g.f64s(n),
			SegmentAdmit: g.u8s(n + 1), SegmentReason: g.u8s(n + 1),
		}
	case OpPlan:
		return &PlanReply{
			Plan: g.Uint64(), Alone: AloneNoGain, Micros: 483_000, AloneMicros: 1_945_000, Workers: g.u32s(n), RowMicros: g.u32s(n),
			OwnRows: g.u32s(n), OwnBegins: g.u32s(n), OwnEnds: g.u32s(n), Combine: "node-é",
		}
	case OpWatch:
		tokens, total := g.split(n)
		return &WatchReply{
			Open: 5, Rows: g.u32s(n), Progress: g.u8s(n), Jobs: g.u64s(n), Keys: g.hashes(n), Roles: g.u8s(n), Heads: g.u32s(n), Tails: g.u32s(n),
			Begins: g.u32s(n), Lefts: g.hashes(n), Micros: g.u32s(n), Tokens: tokens, IDs: g.u32s(total), Withdrawn: g.u64s(n),
		}
	case OpReport:
		return &ReportReply{Off: 1}
	case OpServed:
		return &ServedReply{Number: g.Uint64(), CanaryShare: g.Float64()}
	case OpAppend, OpAccept:
		return &AppendReply{Buffer: g.Uint64(), Begin: 4096, Accepted: 4099, End: 4101}
	case OpStats:
		m := &StatsReply{}
		for i := range n {
			m.Names = append(m.Names, "counter"[:i%8])
			m.Values = append(m.Values, g.Float64())
		}
		return m
	default:
		panic(fmt.Sprintf("no sample reply of %v", op))
	}
}
