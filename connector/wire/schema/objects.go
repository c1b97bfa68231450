package schema

func messages() []Message {
	var all []Message
	for _, list := range [][]Message{sessionMessages, objectMessages, computeMessages, adviceMessages, deviceMessages, parallelMessages} {
		all = append(all, list...)
	}
	return all
}

// leased returns the items of a reply that list the extents and digests of its rows. rowsOf
// names a column with one element per row. The parameter most names the constant that bounds the
// number of rows.
func leased(rowsOf, most string) []Item {
	return body(
		u32s("ExtentCount", most, rows(rowsOf), divides("ExtentOff")),
		u64s("ExtentOff", "MaxExtents"),
		u64s("ExtentLen", "MaxExtents", rows("ExtentOff")),
		u32s("DigestCount", most, rows(rowsOf), divides("Digest")),
		u64s("Digest", "MaxDigests"),
	)
}

var objectMessages = []Message{
	{
		Name: "MatchRequest",
		Doc: "asks for the longest saved prefix of a prompt and for the status of each segment, in one round trip. " +
			"Positions ascend",
		Body: body(
			u32("Profile"), u8("Accept"),
			u32s("Positions", "MaxKeys", doc("tokens covered by each prefix hash")),
			hashes("Prefixes", "MaxKeys", rows("Positions"), doc("rolling prefix hashes")),
			hashes("Keys", "MaxKeys", doc("segment keys")),
		),
		Sections: []Section{{
			Name: "Prompt", Struct: "MatchPrompt", Feature: "Prompt",
			Doc: "describes the prompt of a match",
			Body: body(
				u32("Tokens", doc("number of tokens of the prompt")),
				u64("TokenOff", doc("staging offset of the token ids (little-endian uint32); None = they are not in staging")),
			),
		}, {
			Name: "Known", Struct: "MatchKnownQuery", Feature: "Known",
			Doc: "asks which cached segments occur in the prompt, whose token ids must be in staging. The search starts at Begin or, if that is later, at the end of the prefix that this match finds",
			Body: body(
				u32("Begin", doc("a token position; 0 = the start of the prompt")),
				u32("SeamTokens", doc("seam width of segments that do not begin at token 0")),
			),
		}, {
			Name: "Primers", Struct: "MatchPrimersQuery", Feature: "Primers",
			Doc: "asks for segments that may exist in two variants: captured after a primer, and without one. Others has the key of the second variant of each segment. " +
				"Primer, PrimedFrom and Either are only for the search that the section Known asks for",
			Body: body(
				hash("Primer", doc("preferred primer of segments that begin at or after PrimedFrom; zero = no primer")),
				u32("PrimedFrom", doc("a token position; for segments that begin before it, no primer is preferred")),
				u8("Either", doc("1 = if the preferred variant is not cached, the other one is accepted")),
				hashes("Others", "MaxKeys", doc("one key for each of Keys, looked up if that one misses; zero = no second variant. An empty column = no second variants")),
			),
		}},
	},
	{
		Name: "MatchReply",
		Doc:  "has one row for each key of the request",
		Body: body(
			u32("PrefixTokens", doc("0 = no checkpoint")),
			u32("PrefixIndex", doc("index in Positions; only meaningful if PrefixTokens > 0")),
			u8("PrefixFlags", doc("kind of the checkpoint: AcceptExact, AcceptSpliced or AcceptRows")),
			u8("PrefixReason"), u8("PrefixTier", doc("TierNone = no checkpoint")),
			u8s("Status", "MaxKeys"), u8s("Tier", "MaxKeys", rows("Status")), u8s("Reason", "MaxKeys", rows("Status")),
			u32s("Tokens", "MaxKeys", rows("Status"), doc("interior tokens of a hit; 0 = not known, which occurs in TierPeer only")),
		),
		Sections: []Section{{
			Name: "Estimates", Struct: "MatchEstimates", Feature: "Estimates",
			Doc: "has a time and an error for the prefix and for each row. " +
				"The time is in microseconds until the bytes can be read; 2^32-1 = not known. The error is a bound on the relative error of the stored bytes; " +
				"0 = they are as written, +Inf = not known",
			Body: body(
				u32("PrefixMicros"), f64("PrefixError"),
				u32s("Micros", "MaxKeys", rows("Status")), f64s("Error", "MaxKeys", rows("Status")),
			),
		}, {
			Name: "Known", Struct: "MatchKnown", Feature: "Known",
			Doc: "lists cached segments that occur in the prompt, ascending and without overlaps. Segment i is the tokens [Starts[i], Starts[i]+Lengths[i]) of the prompt, and its key is Keys[i]",
			Body: body(
				u32("Untried", doc("number of positions at which not all lengths were tried, because too many segments begin with the same tokens")),
				u8("Reason", doc("ReasonOff if the profile is switched off for splicing, otherwise ReasonNone")),
				u32s("Starts", "MaxKeys"), u32s("Lengths", "MaxKeys", rows("Starts")), hashes("Keys", "MaxKeys", rows("Starts")),
				u8s("Tiers", "MaxKeys", rows("Starts")), u32s("Interiors", "MaxKeys", rows("Starts"), doc("interior tokens of the segment, which need not be computed")),
			),
		}, {
			Name: "Rows", Struct: "MatchRows", Feature: "Rows",
			Doc:  "says how much of the prefix has states. The states of later tokens are rebuilt from rows",
			Body: body(u32("PrefixStates", doc("number of tokens; 0 = all states are rebuilt from rows"))),
		}, {
			Name: "Primers", Struct: "MatchPrimers", Feature: "Primers",
			Doc: "says which variant each row is about",
			Body: body(
				u8s("Variants", "MaxKeys", rows("Status"), doc("1 = the row describes Others[i], because that key is a hit and Keys[i] is not; otherwise 0")),
				u8s("Primed", "MaxKeys", doc("one for each segment of the section Known; 1 = captured after the primer")),
			),
		}},
	},
	{
		Name: "AcquireRequest",
		Doc:  "leases segments for reading by one rank",
		Body: body(
			u32("Profile"), u32("Rank"), u32("TTLMs", doc("0 = the daemon's default")),
			u32("Reserved", doc("must be 0; older clients requested block tables here")),
			u8("Digests", doc("1 = the reply has chunk digests")),
			u8("All", doc("1 = lease either every key or none")),
			hashes("Keys", "MaxKeys"),
		),
	},
	{
		Name: "AcquireReply",
		Doc: "has one row for each key. Extents are in the public arena, and their bytes stay unchanged until the lease is released or expires. " +
			"Digest has one digest for each chunk of each part of each hit, in order, if the request asks for digests. ReservedCount and Reserved, which once had block tables, are empty",
		Body: body(
			u16s("Codes", "MaxKeys"), u64s("Leases", "MaxKeys", rows("Codes")), u64s("Bytes", "MaxKeys", rows("Codes")),
			u32s("Begins", "MaxKeys", rows("Codes"), doc("first interior token, counted from the start of the segment")),
			u32s("Tokens", "MaxKeys", rows("Codes"), doc("interior tokens")),
			leased("Codes", "MaxKeys"),
			u32s("ReservedCount", "MaxKeys", rows("Codes"), orNone, divides("Reserved")), u64s("Reserved", "MaxKeys"),
		),
		Sections: []Section{{
			Name: "Packed", Struct: "AcquirePacked", Feature: "Packed",
			Doc: "has the layouts of segments with packed parts. The next Count[i] bytes of Layout are the profile.Packed of row i; Count[i] is 0 if no part of it is packed",
			Body: body(
				u32s("Count", "MaxKeys", rows("Codes"), divides("Layout")), u8s("Layout", "MaxPacked"),
			),
		}},
	},
	{
		Name: "ReserveRequest",
		Doc:  "asks for room for segments. Their token ids (little-endian uint32) are in staging; the daemon computes each key from them and compares it with Keys",
		Body: body(
			u32("Profile"), u32("Rank"), hashes("Keys", "MaxKeys"), u8s("Roles", "MaxKeys", rows("Keys")),
			u32s("Heads", "MaxKeys", rows("Keys")), u32s("Tails", "MaxKeys", rows("Keys")),
			u32s("Tokens", "MaxKeys", rows("Keys"), doc("n, the number of tokens of the segment with head and tail")),
			u64s("TokenOff", "MaxKeys", rows("Keys"), doc("staging offset of the n token ids")),
		),
		Sections: []Section{{
			Name: "Primers", Struct: "ReservePrimers", Feature: "Primers",
			Doc:  "has the primer after which each segment was captured",
			Body: body(hashes("IDs", "MaxKeys", rows("Keys"), python("ids"), doc("zero = no primer"))),
		}},
	},
	{
		Name: "ReserveReply",
		Doc:  "has one row for each key",
		Body: body(u16s("Codes", "MaxKeys"), u64s("Reservations", "MaxKeys", rows("Codes")), u64s("Bytes", "MaxKeys", rows("Codes"))),
	},
	{
		Name: "CommitRequest",
		Doc: "hands over chunks of parts, which are in staging. Row i has ChunkCount[i] chunks of one part, from chunk ChunkFirst[i] on. A chunk has gpuipc.ChunkBytes bytes; the last chunk of a part may be shorter. " +
			"Digest has one digest for each chunk, row after row: XXH3-64, or CRC-32 with FeatureCRC32Digests",
		Body: body(
			u8("Level", doc("the Level that an object must reach if this request completes it")),
			u64s("Reservations", "MaxCommitRows"), u32s("Parts", "MaxCommitRows", rows("Reservations")),
			u32s("ChunkFirst", "MaxCommitRows", rows("Reservations")),
			u32s("ChunkCount", "MaxCommitRows", rows("Reservations"), divides("Digest")),
			u64s("StagingOff", "MaxCommitRows", rows("Reservations")), u64s("Digest", "MaxDigests"),
		),
	},
	{
		Name: "CommitReply",
		Doc: "has one row for each row of the request. Published is 1 on a row whose chunks completed an object for all ranks. " +
			"On such a row, Levels has the Level that the object has reached; on all other rows it is 0. The Level is lower than requested if there is no disk, or if the disk fails or is too slow",
		Body: body(u16s("Codes", "MaxCommitRows"), u8s("Published", "MaxCommitRows", rows("Codes")), u8s("Levels", "MaxCommitRows", rows("Codes"))),
	},
	{
		Name: "SaveRequest",
		Doc: "asks for room for checkpoints. Parents has the prefix hash of the checkpoint that each of them extends; zero = none. " +
			"Only the rows of tokens after the parent are stored",
		Body: body(
			u32("Profile"), u32("Rank"), u8("Kind", doc("AcceptExact, AcceptSpliced or AcceptRows")),
			hashes("Hashes", "MaxKeys"), u32s("Tokens", "MaxKeys", rows("Hashes")), hashes("Parents", "MaxKeys", rows("Hashes")),
		),
		Sections: []Section{{
			Name: "Buffered", Struct: "SaveBuffered", Feature: "Buffered",
			Doc: "names a buffer, for checkpoints of kind AcceptRows. The daemon copies the rows of linear layers from the accepted rows of the buffer, and " +
				"the client commits only the keys and values of attention layers. If the profile has no attention layers, the client commits nothing, and the daemon publishes the checkpoint at once",
			Body: body(u64("Buffer")),
		}},
	},
	{
		Name: "LoadRequest",
		Doc:  "leases the checkpoint of a prefix hash",
		Body: body(u32("Profile"), u32("Rank"), u32("TTLMs"), u8("Accept"), u8("Digests"), hash("Hash")),
	},
	{
		Name: "LoadReply",
		Doc: "lists the nodes of a checkpoint, from the start of the prompt to the last token. The bytes of a node are in profile.CheckpointLayout of its number of tokens, " +
			"or in profile.EdgeLayout if the node is stored as rows. The states and convolution tails of the checkpoint are those of the last node",
		Body: body(
			u64("Lease"), u32("Tokens"), u8("Kind"),
			u32s("NodeBegin", "MaxNodes"), u32s("NodeEnd", "MaxNodes", rows("NodeBegin")),
			leased("NodeBegin", "MaxNodes"),
		),
		Sections: []Section{{
			Name: "Rows", Struct: "LoadRows", Feature: "Rows",
			Doc:  "has the kind of each node",
			Body: body(u8s("Kinds", "MaxNodes", rows("NodeBegin"), doc("AcceptExact, AcceptSpliced or AcceptRows"))),
		}},
	},
}
