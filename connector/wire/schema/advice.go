package schema

var adviceMessages = []Message{
	{
		Name: "AdviseRequest",
		Doc: "asks what to use and what to store for a prompt, whose token ids (little-endian uint32) are in staging. " +
			"The fields of prefix and segments repeat the reply of match; zero = nothing is cached. Cuts and SegmentBegin ascend. " +
			"Samples are prefills measured since the last advise: sample i computed the tokens [SampleBegin[i], SampleEnd[i]) in SampleMicros[i] microseconds",
		Body: body(
			u32("Profile"), u8("Record", doc("1 = the prompt is being served, and the daemon remembers it; 0 = this is only a question")),
			u32("BlockTokens", doc("advised positions must be multiples of it; 0 means 1")),
			u32("MaxCheckpoints", doc("0 = the daemon's default")),
			u32("Tokens", doc("number of tokens of the prompt")), u64("TokenOff", doc("staging offset of the token ids")),
			u32("Output", doc("how many tokens at the end of the prompt were generated")),
			u32("PrefixTokens", doc("number of tokens that the longest checkpoint covers")), u8("PrefixTier"),
			u32("BufferTokens", doc("position up to which a buffer, or a checkpoint stored as rows, has rows after the prefix; 0 = no rows")),
			u32("SeamTokens", doc("total number of tokens in seams, which are recomputed if the cached segments are used or, if none is cached, if all segments are used")),
			u32s("Cuts", "MaxKeys"),
			u32s("SegmentBegin", "MaxKeys"), u32s("SegmentTokens", "MaxKeys", rows("SegmentBegin")),
			u8s("SegmentStatus", "MaxKeys", rows("SegmentBegin"), doc("StatusMiss, StatusHit or StatusPending")), u8s("SegmentTier", "MaxKeys", rows("SegmentBegin")),
			u32s("SampleBegin", "MaxSamples"), u32s("SampleEnd", "MaxSamples", rows("SampleBegin")), u32s("SampleMicros", "MaxSamples", rows("SampleBegin")),
		),
		Sections: []Section{{
			Name: "Measured", Struct: "AdviseMeasured", Feature: "Splices",
			Doc: "has the times of walks and captures since the last advise. A walk puts segments in place: it computed WalkRows rows between segments and placed WalkPlaced rows of segments in " +
				"WalkMicros microseconds, including reads of memory but not waits for a disk or another node. A capture computed CaptureTokens tokens of segments in isolation in CaptureMicros microseconds",
			Body: body(
				u32s("WalkRows", "MaxSamples"), u32s("WalkPlaced", "MaxSamples", rows("WalkRows")), u32s("WalkMicros", "MaxSamples", rows("WalkRows")),
				u32s("CaptureTokens", "MaxSamples"), u32s("CaptureMicros", "MaxSamples", rows("CaptureTokens")),
			),
		}, {
			Name: "Limit", Struct: "AdviseLimit", Feature: "Losses",
			Doc: "is the loss of accuracy that the request accepts, and how the request would be spliced",
			Body: body(
				f64("MaxLoss", doc("0 to 1; 1 = any")), u8("Primed", doc("1 = the segments for which there is a primer were captured after it")),
				u8("Refreshed", doc("1 = the last segments are computed in context, and are not listed in this request")),
			),
		}, {
			Name: "Match", Struct: "AdviseMatch", Feature: "Lookup",
			Doc: "makes the daemon look the prompt up first, as `match` does, in one round trip. The daemon then ignores the prefix, the status and tier of segments, " +
				"and `primed` of *limit*. Keys has one key for each segment",
			Body: body(
				u8("Accept"), u32s("Positions", "MaxKeys"), hashes("Prefixes", "MaxKeys", rows("Positions")), hashes("Keys", "MaxKeys"),
				hashes("Others", "MaxKeys", doc("as in `match`")),
				u8s("Primed", "MaxKeys", rows("Keys"), doc("bit 0: the variant of Keys was captured after the primer; bit 1: a primed variant is preferred for this segment")),
			),
		}},
	},
	{
		Name: "AdviseReply",
		Doc:  "has one row for each advised checkpoint and one for each segment",
		Body: body(
			u32("SeenTokens", doc("longest prefix of this prompt that was seen before")), u8("Way", doc("the fastest way to serve the prompt")),
			f64s("WayMicros", "MaxWays", doc("predicted time of each way, from way 1 on; +Inf = the way is not possible here")),
			u32s("Positions", "MaxPositions", doc("ascending")), u8s("Why", "MaxPositions", rows("Positions")),
			u8s("Admit", "MaxPositions", rows("Positions"), doc("1 = store it")), u8s("Reason", "MaxPositions", rows("Positions"), doc("why to store it, or why not")),
			f64s("Value", "MaxPositions", rows("Positions"), doc("expected milliseconds saved per MiB")),
			u8s("SegmentAdmit", "MaxKeys", doc("1 = this segment is missing and worth publishing")), u8s("SegmentReason", "MaxKeys", rows("SegmentAdmit")),
		),
		Sections: []Section{{
			Name: "Splice", Struct: "AdviseSplice", Feature: "Splices",
			Doc:  "describes the splice for which WayMicros has the time",
			Body: body(u32("Segments", doc("number of leading segments that the splice uses, as far as they are cached or admitted. The engine computes everything after the last of them; 0 = no segment can be used"))),
		}, {
			Name: "Loss", Struct: "AdviseLoss", Feature: "Losses",
			Doc: "answers the section Limit with the expected losses of the splice, from 0 to 1; negative = not known",
			Body: body(
				f64("Asked", doc("loss of the splice as requested")), f64("Refreshed", doc("loss with the last segment computed in context")), u8("Splicing", doc("the splice for which WayMicros has the time")),
			),
		}, {
			Name: "Match", Struct: "AdviseMatched", Feature: "Lookup",
			Doc: "is the result of the lookup, as in the reply of `match` and its sections",
			Body: body(
				u32("PrefixTokens"), u32("PrefixIndex"), u8("PrefixFlags"), u8("PrefixReason"), u8("PrefixTier"), u32("PrefixStates"),
				u8s("Status", "MaxKeys"), u8s("Tier", "MaxKeys", rows("Status")), u8s("Reason", "MaxKeys", rows("Status")), u32s("Tokens", "MaxKeys", rows("Status")),
				f64s("Error", "MaxKeys", rows("Status")), u8s("Variants", "MaxKeys", rows("Status")),
			),
		}},
	},
	{
		Name: "ServedRequest",
		Doc: "reports how the prompt of one request was served. Engines send it after the first token of the answer. The first tokens of the prompt came from the engine's own cache (Engine is their number), " +
			"the next ones from a checkpoint (Prefix is their number). Rows are the segments into which the prompt was cut, ascending and without overlaps: row i is the tokens [Begins[i], Begins[i]+Counts[i]). " +
			"Of these, the tokens [At[i], At[i]+Reused[i]) came from the daemon; they are after the prefix. All other tokens were computed. " +
			"Times are in microseconds; 0 = not measured",
		Body: body(
			u32("Profile"), u8("Way", doc("how the prompt was served")),
			u32("Tokens", doc("number of tokens of the prompt")), u32("Engine"), u32("Prefix"),
			u8("PrefixTier", doc("TierNone = no checkpoint was used")), u8("PrefixReason", doc("why no longer checkpoint was used")),
			u64("ReadBytes", doc("size of the states and rows that were read or composed")),
			u32("MatchMicros", doc("time until the way was chosen")), u32("WaitMicros", doc("time that the request then waited for bytes")),
			u32("FirstMicros", doc("time from the arrival of the request to its first token")),
			f64s("WayMicros", "MaxWays", doc("times that advise predicted, from way 1 on")),
			u32s("Begins", "MaxKeys"), u32s("Counts", "MaxKeys", rows("Begins"), doc("number of tokens of the segment")),
			u32s("At", "MaxKeys", rows("Begins")), u32s("Reused", "MaxKeys", rows("Begins")),
			u8s("Tiers", "MaxKeys", rows("Begins"), doc("where match found the segment; TierNone = nowhere")),
			u8s("Reasons", "MaxKeys", rows("Begins"), doc("why the segment is a miss")),
			hashes("Keys", "MaxKeys", rows("Begins"), doc("zero = the segment has no key")),
			text("Request", "MaxName", doc("the engine's name of the request")),
			text("Trace", "MaxName", doc("a traceparent of W3C Trace Context; empty = none")),
		),
		Sections: []Section{{
			Name: "Loss", Struct: "ServedLoss", Feature: "Losses",
			Doc:  "is the expected loss of a spliced request, which the reply of advise had",
			Body: body(f64("Expected", doc("0 to 1; negative = not known"))),
		}},
	},
	{
		Name: "ServedReply",
		Doc:  "answers a ServedRequest",
		Body: body(
			u64("Number", doc("number under which the daemon lists the request")),
			f64("CanaryShare", doc("share of spliced requests that the engine's canary recomputes from now on; negative = the share in the engine's own settings")),
		),
	},
}
