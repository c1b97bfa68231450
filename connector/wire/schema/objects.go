package schema

func messages() []Message {
	var all []Message
	for _, list := range [][]Message{sessionMessages, objectMessages, computeMessages, adviceMessages, deviceMessages, parallelMessages} {
		all = append(all, list...)
	}
	return all
}

// leased returns the items with which a reply lists the extents and digests of its rows. rowsOf
// is the column with one element per row, and most the maximum number of rows.
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
		Doc: "asks for the longest private prefix and then for the status of each segment, in one round trip. " +
			"Positions ascend",
		Body: body(
			u32("Profile"), u8("Accept"),
			u32s("Positions", "MaxKeys", doc("tokens covered by each prefix hash")),
			hashes("Prefixes", "MaxKeys", rows("Positions"), doc("rolling prefix hashes")),
			hashes("Keys", "MaxKeys", doc("segment keys")),
		),
		Sections: []Section{{
			Name: "Prompt", Struct: "MatchPrompt", Feature: "Prompt",
			Doc: "is the prompt that a match is for",
			Body: body(
				u32("Tokens", doc("whole length")),
				u64("TokenOff", doc("staging offset of the token ids, little-endian uint32; None = only the length is told")),
			),
		}, {
			Name: "Known", Struct: "MatchKnownQuery", Feature: "Known",
			Doc: "asks which held segments the prompt contains; its token ids must be in staging. The search starts at Begin, and after the prefix that this match finds",
			Body: body(
				u32("Begin", doc("token; 0 = from the start")),
				u32("SeamTokens", doc("seam width of the segments after token 0")),
			),
		}, {
			Name: "Primers", Struct: "MatchPrimersQuery", Feature: "Primers",
			Doc: "asks for segments that exist in two variants, captured after a primer or without one. Others has the second variant of each key. " +
				"The scalars concern Known only",
			Body: body(
				hash("Primer", doc("that segments from PrimedFrom on should have; zero = none")),
				u32("PrimedFrom", doc("token; segments that begin before it should have no primer")),
				u8("Either", doc("1 = the other variant is accepted where the preferred one is not cached")),
				hashes("Others", "MaxKeys", doc("one for each of Keys, looked up where that misses; zero = there is none. Empty = none at all")),
			),
		}},
	},
	{
		Name: "MatchReply",
		Doc:  "has one row for each key of the request",
		Body: body(
			u32("PrefixTokens", doc("0 = no checkpoint")),
			u32("PrefixIndex", doc("index in Positions; meaningful when PrefixTokens > 0")),
			u8("PrefixFlags", doc("AcceptExact, AcceptSpliced or AcceptRows: what it is")),
			u8("PrefixReason"), u8("PrefixTier", doc("TierNone = no checkpoint")),
			u8s("Status", "MaxKeys"), u8s("Tier", "MaxKeys", rows("Status")), u8s("Reason", "MaxKeys", rows("Status")),
			u32s("Tokens", "MaxKeys", rows("Status"), doc("interior tokens of a hit; 0 where not known, in TierPeer only")),
		),
		Sections: []Section{{
			Name: "Estimates", Struct: "MatchEstimates", Feature: "Estimates",
			Doc: "gives the expected time of using the prefix and each row, and its error. " +
				"Micros are until its bytes can be read, 2^32-1 where nothing is known. An error is a bound on the relative error of the bytes held: " +
				"0 for what was written, +Inf where nothing is known",
			Body: body(
				u32("PrefixMicros"), f64("PrefixError"),
				u32s("Micros", "MaxKeys", rows("Status")), f64s("Error", "MaxKeys", rows("Status")),
			),
		}, {
			Name: "Known", Struct: "MatchKnown", Feature: "Known",
			Doc: "lists segments that are held: tokens [Starts[i], Starts[i]+Lengths[i]) of the prompt have Keys[i]. They ascend and do not overlap",
			Body: body(
				u32("Untried", doc("tokens at which some lengths were left out, since too many segments begin alike")),
				u8("Reason", doc("ReasonOff = the profile is switched off for splicing, else ReasonNone")),
				u32s("Starts", "MaxKeys"), u32s("Lengths", "MaxKeys", rows("Starts")), hashes("Keys", "MaxKeys", rows("Starts")),
				u8s("Tiers", "MaxKeys", rows("Starts")), u32s("Interiors", "MaxKeys", rows("Starts"), doc("tokens that are not computed again")),
			),
		}, {
			Name: "Rows", Struct: "MatchRows", Feature: "Rows",
			Doc:  "gives the part of the prefix that has states; those of later tokens are rebuilt from rows",
			Body: body(u32("PrefixStates", doc("tokens; 0 = rows from the start on"))),
		}, {
			Name: "Primers", Struct: "MatchPrimers", Feature: "Primers",
			Doc: "says which variant each row is about",
			Body: body(
				u8s("Variants", "MaxKeys", rows("Status"), doc("1 = the row is about Others[i]: it is a hit and Keys[i] is not; else 0")),
				u8s("Primed", "MaxKeys", doc("one for each row of Known: 1 = it was captured after the primer")),
			),
		}},
	},
	{
		Name: "AcquireRequest",
		Doc:  "leases segments for reading by one rank",
		Body: body(
			u32("Profile"), u32("Rank"), u32("TTLMs", doc("0 = the daemon's default")),
			u32("Reserved", doc("0; older clients could ask for block tables here")),
			u8("Digests", doc("1 = answer chunk digests too")),
			u8("All", doc("1 = lease every key, or none and refuse with Full")),
			hashes("Keys", "MaxKeys"),
		),
	},
	{
		Name: "AcquireReply",
		Doc: "has one row for each key. Extents are in the public arena and stay valid and unchanged until the lease is released; " +
			"Digest holds, for each hit in order, one digest for each chunk of each part, and is empty unless asked for. The reserved columns, once block tables, are empty",
		Body: body(
			u16s("Codes", "MaxKeys"), u64s("Leases", "MaxKeys", rows("Codes")), u64s("Bytes", "MaxKeys", rows("Codes")),
			u32s("Begins", "MaxKeys", rows("Codes"), doc("first interior token, local to the segment")),
			u32s("Tokens", "MaxKeys", rows("Codes"), doc("interior tokens")),
			leased("Codes", "MaxKeys"),
			u32s("ReservedCount", "MaxKeys", rows("Codes"), orNone, divides("Reserved")), u64s("Reserved", "MaxKeys"),
		),
		Sections: []Section{{
			Name: "Packed", Struct: "AcquirePacked", Feature: "Packed",
			Doc: "gives the layouts of segments with packed parts: row i has Count[i] bytes of Layout, a profile.Packed, none where nothing is packed",
			Body: body(
				u32s("Count", "MaxKeys", rows("Codes"), divides("Layout")), u8s("Layout", "MaxPacked"),
			),
		}},
	},
	{
		Name: "ReserveRequest",
		Doc:  "asks for room for segments. Token ids (little-endian uint32) lie in staging; the daemon recomputes each key from them",
		Body: body(
			u32("Profile"), u32("Rank"), hashes("Keys", "MaxKeys"), u8s("Roles", "MaxKeys", rows("Keys")),
			u32s("Heads", "MaxKeys", rows("Keys")), u32s("Tails", "MaxKeys", rows("Keys")),
			u32s("Tokens", "MaxKeys", rows("Keys"), doc("whole length n")),
			u64s("TokenOff", "MaxKeys", rows("Keys"), doc("staging offset of the n token ids")),
		),
		Sections: []Section{{
			Name: "Primers", Struct: "ReservePrimers", Feature: "Primers",
			Doc:  "names the primer after which each segment was captured",
			Body: body(hashes("IDs", "MaxKeys", rows("Keys"), python("ids"), doc("zero = none"))),
		}},
	},
	{
		Name: "ReserveReply",
		Doc:  "has one row for each key",
		Body: body(u16s("Codes", "MaxKeys"), u64s("Reservations", "MaxKeys", rows("Codes")), u64s("Bytes", "MaxKeys", rows("Codes"))),
	},
	{
		Name: "CommitRequest",
		Doc: "hands over chunks of parts that lie in staging. A chunk is gpuipc.ChunkBytes of one part, the last one of a part shorter. " +
			"Digest has ChunkCount[i] entries for row i, one after another: XXH3-64, or CRC-32 with FeatureCRC32Digests",
		Body: body(
			u8("Level", doc("a Level; it counts where the request completes an object")),
			u64s("Reservations", "MaxCommitRows"), u32s("Parts", "MaxCommitRows", rows("Reservations")),
			u32s("ChunkFirst", "MaxCommitRows", rows("Reservations")),
			u32s("ChunkCount", "MaxCommitRows", rows("Reservations"), divides("Digest")),
			u64s("StagingOff", "MaxCommitRows", rows("Reservations")), u64s("Digest", "MaxDigests"),
		),
	},
	{
		Name: "CommitReply",
		Doc: "has one row for each row of the request. Published is 1 on the row whose chunks completed the object for all ranks. " +
			"There Levels has the Level that the object has reached, which is lower than the one asked for when a disk is not able to; elsewhere it is 0",
		Body: body(u16s("Codes", "MaxCommitRows"), u8s("Published", "MaxCommitRows", rows("Codes")), u8s("Levels", "MaxCommitRows", rows("Codes"))),
	},
	{
		Name: "SaveRequest",
		Doc: "asks for room for checkpoints. A parent is the prefix hash of the checkpoint that this one extends, all zero for none; " +
			"only rows of tokens [parent, Tokens) are stored",
		Body: body(
			u32("Profile"), u32("Rank"), u8("Kind", doc("AcceptExact, AcceptSpliced or AcceptRows")),
			hashes("Hashes", "MaxKeys"), u32s("Tokens", "MaxKeys", rows("Hashes")), hashes("Parents", "MaxKeys", rows("Hashes")),
		),
		Sections: []Section{{
			Name: "Buffered", Struct: "SaveBuffered", Feature: "Buffered",
			Doc: "names a buffer whose accepted rows are the linear layers' rows, for checkpoints of kind AcceptRows: the daemon copies them, and " +
				"only keys and values of attention layers are left to commit. A profile without such layers has nothing to commit: the checkpoint is published",
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
		Doc: "lists the chain of nodes from the root to the checkpoint. Each node is laid out by profile.CheckpointLayout(End-Begin), " +
			"or profile.EdgeLayout of as many tokens where it is kept as rows; states and convolution tails belong to the last node",
		Body: body(
			u64("Lease"), u32("Tokens"), u8("Kind"),
			u32s("NodeBegin", "MaxNodes"), u32s("NodeEnd", "MaxNodes", rows("NodeBegin")),
			leased("NodeBegin", "MaxNodes"),
		),
		Sections: []Section{{
			Name: "Rows", Struct: "LoadRows", Feature: "Rows",
			Doc:  "says what each node is",
			Body: body(u8s("Kinds", "MaxNodes", rows("NodeBegin"), doc("AcceptExact, AcceptSpliced or AcceptRows"))),
		}},
	},
}
