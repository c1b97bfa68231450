// Package extent defines the format of entries in slabs: a header, which names an entry
// and states the lengths of its parts, a manifest, which describes it, and arithmetic
// over both. It knows bytes only; where they are written, and the meaning of a kind or a
// codec, are left to others.
//
// An entry is one sequence of bytes that continues through its runs in their order. It
// starts with a header of whole blocks of 4 KiB, followed by the payload:
//
//	0                                    HeaderBytes             +PayloadBytes
//	| fixed part | run table | manifest | 0 | payload              | unused |
//	  128 B        768 B       zstd                 whole blocks
//
// All numbers are little-endian. The fixed part:
//
//	  0   8  magic "SPLXTNT\n"
//	  8   4  format version: 2, or 1 without a seal
//	 12   4  header bytes, a multiple of 4096
//	 16   8  generation, never 0
//	 24  32  key
//	 56   1  kind
//	 57   1  flags: bit 0 = coded; the others are 0
//	 58   2  runs in the table, 1 to 64
//	 60   4  manifest bytes, as stored
//	 64   8  manifest, xxh3 of the bytes as stored
//	 72   8  payload bytes, a multiple of 4096
//	 80   8  run table, xxh3 of its 768 bytes
//	 88  32  seal (Key); zero in version 1
//	120   8  xxh3 of bytes 0 to 119
//
// The run table always has room for 64 runs, so the length of a header does not depend on
// the location of its entry. A run is
//
//	0   4  slab
//	4   4  first block of 4 KiB
//	8   4  blocks, never 0
//
// Unused table space is zero, and so is the space between the manifest and the payload. A
// reader verifies the fixed part with its own checksum and everything else with a
// checksum inside what is already verified.
//
// The manifest is one zstd frame that states its content size. Its content:
//
//	u16 version, 1 | 32 B fingerprint | str tenant | str publisher | i64 created, ns since 1970
//	u8 role | u32 head, tail, tokens | u32 begin, end | u8 parent kind | 32 B parent key
//	u32 n, n x u32 token ids
//	u32 ranks | u64 rank bytes | u32 n, ranks x n x u64 digests of the chunks as published
//	u8 coded; if 1:
//	  u32 parts of a rank; by rank, by part: u8 codec | u64 bytes | u32 n, n x u32 stored chunk bytes
//	  u32 n, n x u64 digests of the stored payload, by MiB
//	str: u16 length | bytes
//
// A payload that is not coded holds the ranks one after another as they are in memory,
// each padded with zeros to whole blocks. A coded one holds the parts of all ranks
// without gaps, padded with zeros at its end.
//
// Decoding is strict: a length outside its bounds, a byte that should be zero, or one too
// many, is tiering.ErrCorrupt. No length is used before the bytes that it covers are
// known to exist, so a decoder's allocations are bounded by its input; those for a
// manifest's content by MaxManifestBytes.
//
// All functions may be called concurrently.
package extent
