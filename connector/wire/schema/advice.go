package schema

var adviceMessages = []Message{
	{
		Name: "AdviseRequest",
		Doc: "asks what to use and what to store for a prompt whose token ids (little-endian uint32) lie in staging. " +
			"What match has answered comes along; zero means nothing is held. Cuts and the begins of segments ascend. " +
			"Samples are prefills measured since the last advise: tokens [begin, end) took so many microseconds",
		Body: body(
			u32("Profile"), u8("Record", doc("1 = this prompt is being served: remember it; 0 = only asked")),
			u32("BlockTokens", doc("positions must be multiples of it; 0 = 1")),
			u32("MaxCheckpoints", doc("0 = the daemon's default")),
			u32("Tokens", doc("whole length")), u64("TokenOff", doc("staging offset of the token ids")),
			u32("Output", doc("of these, generated tokens at the end")),
			u32("PrefixTokens", doc("of the longest checkpoint")), u8("PrefixTier"),
			u32("BufferTokens", doc("end of rows behind the prefix, in tokens: of a buffer, or of a checkpoint that is kept as rows")),
			u32("SeamTokens", doc("computed again in all, when the segments are used")),
			u32s("Cuts", "MaxKeys"),
			u32s("SegmentBegin", "MaxKeys"), u32s("SegmentTokens", "MaxKeys", rows("SegmentBegin")),
			u8s("SegmentStatus", "MaxKeys", rows("SegmentBegin"), doc("StatusMiss and so on")), u8s("SegmentTier", "MaxKeys", rows("SegmentBegin")),
			u32s("SampleBegin", "MaxSamples"), u32s("SampleEnd", "MaxSamples", rows("SampleBegin")), u32s("SampleMicros", "MaxSamples", rows("SampleBegin")),
		),
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
	},
}
