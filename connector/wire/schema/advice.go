package schema

var adviceMessages = []Message{
	{
		Name: "AdviseRequest",
		Doc: "asks what to use and what to store for a prompt whose token ids (little-endian uint32) lie in staging. " +
			"What match has answered comes along; zero means nothing is held. Cuts and the begins of segments ascend. " +
			"Samples are prefills measured since the last advise: tokens [begin, end) and the microseconds they took",
		Body: body(
			u32("Profile"), u8("Record", doc("1 = this prompt is being served: remember it; 0 = only asked")),
			u32("BlockTokens", doc("positions must be multiples of it; 0 = 1")),
			u32("MaxCheckpoints", doc("0 = the daemon's default")),
			u32("Tokens", doc("whole length")), u64("TokenOff", doc("staging offset of the token ids")),
			u32("Output", doc("of these, generated tokens at the end")),
			u32("PrefixTokens", doc("of the longest checkpoint")), u8("PrefixTier"),
			u32("BufferTokens", doc("end of the rows after the prefix, in tokens, if a buffer or a checkpoint kept as rows holds them")),
			u32("SeamTokens", doc("computed again in all, when the segments that are held are used; where none is held, when all are")),
			u32s("Cuts", "MaxKeys"),
			u32s("SegmentBegin", "MaxKeys"), u32s("SegmentTokens", "MaxKeys", rows("SegmentBegin")),
			u8s("SegmentStatus", "MaxKeys", rows("SegmentBegin"), doc("StatusMiss and so on")), u8s("SegmentTier", "MaxKeys", rows("SegmentBegin")),
			u32s("SampleBegin", "MaxSamples"), u32s("SampleEnd", "MaxSamples", rows("SampleBegin")), u32s("SampleMicros", "MaxSamples", rows("SampleBegin")),
		),
		Sections: []Section{{
			Name: "Measured", Struct: "AdviseMeasured", Feature: "Splices",
			Doc: "gives the times of splices since the last advise. A walk puts segments in place: it computed WalkRows rows between them and placed WalkPlaced rows in " +
				"WalkMicros, including reads of memory but not waits for a disk or another node. A capture computed CaptureTokens tokens of segments in isolation",
			Body: body(
				u32s("WalkRows", "MaxSamples"), u32s("WalkPlaced", "MaxSamples", rows("WalkRows")), u32s("WalkMicros", "MaxSamples", rows("WalkRows")),
				u32s("CaptureTokens", "MaxSamples"), u32s("CaptureMicros", "MaxSamples", rows("CaptureTokens")),
			),
		}, {
			Name: "Limit", Struct: "AdviseLimit", Feature: "Losses",
			Doc: "is the loss that the request accepts, and how it would be spliced",
			Body: body(
				f64("MaxLoss", doc("0 to 1; 1 = any")), u8("Primed", doc("1 = its segments were captured after the primer where one is for them")),
				u8("Refreshed", doc("1 = its last segments are computed in context, and not named here")),
			),
		}, {
			Name: "Match", Struct: "AdviseMatch", Feature: "Lookup",
			Doc: "has the daemon look the prompt up first, as `match` does, in one round trip. The prefix, the status and tier of segments, and primed of *limit* " +
				"are then not read. Each segment has a key",
			Body: body(
				u8("Accept"), u32s("Positions", "MaxKeys"), hashes("Prefixes", "MaxKeys", rows("Positions")), hashes("Keys", "MaxKeys"),
				hashes("Others", "MaxKeys", doc("as in `match`")),
				u8s("Primed", "MaxKeys", rows("Keys"), doc("bit 0: this variant was captured after the primer; bit 1: such a one is preferred at its place")),
			),
		}},
	},
	{
		Name: "AdviseReply",
		Doc:  "has one row for each advised checkpoint and one for each segment",
		Body: body(
			u32("SeenTokens", doc("longest prefix of this prompt that was seen before")), u8("Way", doc("the quickest")),
			f64s("WayMicros", "MaxWays", doc("predicted; +Inf = not possible here")),
			u32s("Positions", "MaxPositions", doc("ascending")), u8s("Why", "MaxPositions", rows("Positions")),
			u8s("Admit", "MaxPositions", rows("Positions"), doc("1 = store it")), u8s("Reason", "MaxPositions", rows("Positions"), doc("why not")),
			f64s("Value", "MaxPositions", rows("Positions"), doc("expected milliseconds saved per MiB")),
			u8s("SegmentAdmit", "MaxKeys", doc("1 = publish this segment, which is missing")), u8s("SegmentReason", "MaxKeys", rows("SegmentAdmit")),
		),
		Sections: []Section{{
			Name: "Splice", Struct: "AdviseSplice", Feature: "Splices",
			Doc:  "is the splice that WayMicros prices",
			Body: body(u32("Segments", doc("number of leading segment rows to take, as far as they are held or admitted; the engine computes what follows the last one; 0 = none can be used"))),
		}, {
			Name: "Loss", Struct: "AdviseLoss", Feature: "Losses",
			Doc: "answers a Limit with the expected losses of the splice, from 0 to 1; negative = not known",
			Body: body(
				f64("Asked", doc("as it asked")), f64("Refreshed", doc("with its last segment computed in context")), u8("Splicing", doc("what WayMicros prices")),
			),
		}, {
			Name: "Match", Struct: "AdviseMatched", Feature: "Lookup",
			Doc: "is what was found, as in the reply of `match` and its sections",
			Body: body(
				u32("PrefixTokens"), u32("PrefixIndex"), u8("PrefixFlags"), u8("PrefixReason"), u8("PrefixTier"), u32("PrefixStates"),
				u8s("Status", "MaxKeys"), u8s("Tier", "MaxKeys", rows("Status")), u8s("Reason", "MaxKeys", rows("Status")), u32s("Tokens", "MaxKeys", rows("Status")),
				f64s("Error", "MaxKeys", rows("Status")), u8s("Variants", "MaxKeys", rows("Status")),
			),
		}},
	},
	{
		Name: "ServedRequest",
		Doc: "reports how the prompt of one request was served, after its first token. Its tokens came from the engine's own cache: " +
			"the first Engine; from a checkpoint: Prefix more; from segments; the rest was computed. Segments are those that the prompt was " +
			"cut into, ascend and do not overlap; Reused of the tokens from At on came from the daemon, and lie after the prefix. " +
			"Times are in microseconds, 0 where nothing was measured",
		Body: body(
			u32("Profile"), u8("Way", doc("how it was served")),
			u32("Tokens", doc("of the prompt")), u32("Engine"), u32("Prefix"),
			u8("PrefixTier", doc("TierNone = no checkpoint was used")), u8("PrefixReason", doc("why no longer one was")),
			u64("ReadBytes", doc("of states and rows that were read or composed")),
			u32("MatchMicros", doc("until it was decided how")), u32("WaitMicros", doc("for bytes, from then on")),
			u32("FirstMicros", doc("from the request's arrival to its first token")),
			f64s("WayMicros", "MaxWays", doc("predicted, as advise answered; indexed by way minus one")),
			u32s("Begins", "MaxKeys"), u32s("Counts", "MaxKeys", rows("Begins"), doc("whole length")),
			u32s("At", "MaxKeys", rows("Begins")), u32s("Reused", "MaxKeys", rows("Begins")),
			u8s("Tiers", "MaxKeys", rows("Begins"), doc("where match found it; TierNone = nowhere")),
			u8s("Reasons", "MaxKeys", rows("Begins"), doc("why it is a miss")),
			hashes("Keys", "MaxKeys", rows("Begins"), doc("all zero where a span has none")),
			text("Request", "MaxName", doc("the engine's name of the request")),
			text("Trace", "MaxName", doc("a traceparent as W3C Trace Context has it; empty = none")),
		),
		Sections: []Section{{
			Name: "Loss", Struct: "ServedLoss", Feature: "Losses",
			Doc:  "is the loss of a spliced request as advise has answered it",
			Body: body(f64("Expected", doc("0 to 1; negative = not known"))),
		}},
	},
	{
		Name: "ServedReply",
		Doc:  "answers a ServedRequest",
		Body: body(
			u64("Number", doc("under which the request is listed")),
			f64("CanaryShare", doc("of spliced requests, what the engine's canary computes again from now on; negative = as the engine was told")),
		),
	},
}
