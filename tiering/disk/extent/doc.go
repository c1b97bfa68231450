// Package extent defines the format of entries in slabs. An entry has a header, which
// names it and has the lengths of its parts; a manifest inside the header, which
// describes it; and the payload. The package handles bytes only: other packages choose
// their location, and give kinds and codecs a meaning.
//
// An entry is one sequence of bytes, divided over its runs in their order. It starts with
// a header of whole blocks of 4 KiB, followed by the payload:
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
//	 64   8  xxh3 of the manifest bytes, as stored
//	 72   8  payload bytes, a multiple of 4096
//	 80   8  xxh3 of the run table's 768 bytes
//	 88  32  seal (Key); zero in version 1
//	120   8  xxh3 of bytes 0 to 119
//
// The run table always has room for 64 runs, so the length of a header does not depend on
// the location of its entry. A run:
//
//	0   4  slab
//	4   4  first block of 4 KiB
//	8   4  blocks, never 0
//
// Unused table space is zero, and so is the space between the manifest and the payload. A
// reader verifies the fixed part with the checksum at its end. That part has the checksums
// of the run table and the manifest, and the manifest has the digests of the payload.
//
// The manifest is one zstd frame that states its content size. Its content:
//
//	u16 version, 1 to 3 | 32 B fingerprint | str tenant | str publisher | i64 created, ns since 1970
//	u8 role | u32 head, tail, tokens | u32 begin, end | u8 parent kind | 32 B parent key
//	u32 n, n x u32 token ids | from version 2: str packed layout | version 3: 32 B primer
//	u32 ranks | u64 rank bytes | u32 n, ranks x n x u64 digests of the chunks as published
//	u8 coded; if 1:
//	  u32 parts of a rank; by rank, by part: u8 codec | u64 bytes | u32 n, n x u32 stored chunk bytes
//	  u32 n, n x u64 digests of the stored payload, by MiB
//	str: u16 length | bytes
//
// A payload that is not coded holds the bytes of the ranks one after another as they are
// in memory, each rank padded with zeros to whole blocks. A coded payload holds the parts
// of all ranks without gaps, padded with zeros at its end.
//
// Decoding is strict: a length outside its bounds, a nonzero byte where zero is required,
// or a byte after the end is tier.ErrCorrupt. No length is used before the input is known
// to have that many bytes. So the input bounds a decoder's allocations, and
// MaxManifestBytes those for the content of a manifest.
//
// All functions may be called concurrently.
package extent
