// Package extent is the format of what lies in slabs: a header, which names an
// entry and says how long its parts are, a manifest, which describes it, and
// arithmetic over both. It knows bytes only; who writes them where, and what a
// kind or a codec means, is left to others.
//
// An entry is one line of bytes that goes through its runs in their order. A
// header of whole blocks of 4 KiB comes first, the payload behind it:
//
//	0                                    HeaderBytes             +PayloadBytes
//	| fixed part | run table | manifest | 0 | payload              | unused |
//	  128 B        768 B       zstd                 whole blocks
//
// All numbers are little-endian. The fixed part:
//
//	  0   8  magic "SPLXTNT\n"
//	  8   4  format version: 2, or 1 of one that has no seal
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
// The run table has room for 64 runs whatever it holds, so that the length of a
// header does not depend on where its entry came to lie. A run is
//
//	0   4  slab
//	4   4  first block of 4 KiB
//	8   4  blocks, never 0
//
// and the room behind the last is zero, as is what follows the manifest up to
// the payload. A reader trusts the fixed part by its own checksum and everything
// else by a checksum inside what it trusts already.
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
// A payload that is not coded holds rank after rank as they lie in memory, each
// padded with zeros to whole blocks. One that is coded holds the parts of all
// ranks without gaps, padded with zeros at its end.
//
// Decoding is strict: a length outside of its bounds, a byte that ought to be
// zero, or one too many, is tiering.ErrCorrupt. No length is believed before the bytes
// that it speaks of are known to be there, so what a decoder allocates is
// bounded by what it was given; a manifest's content by MaxManifestBytes.
//
// All functions may run at once.
package extent
