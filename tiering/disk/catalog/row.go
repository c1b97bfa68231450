package catalog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Row is the row of an entry: its location, and the metadata that lookups need.
type Row struct {
	extent.Name
	Generation   uint64 // generation of its extent, never 0
	Runs         []slab.Run
	HeaderBytes  int
	PayloadBytes int64
	Coded        bool
	Level        uint8  // a tier.Level; stored, not interpreted here
	Tenant       uint32 // from TenantNumber
	Fingerprint  profile.Fingerprint
	Spec         profile.SegmentSpec
	Hash         profile.SegmentHash // zero = unknown
	Packed       profile.Packed      // layout of the packed parts of a segment
	Begin, End   int
	Parent       extent.Name // zero = none
	Ranks        int
	RankBytes    int64
	Created      int64  // nanoseconds since 1970
	ManifestSum  uint64 // xxh3 of the manifest as stored

	// Used is the last use in nanoseconds since 1970. Load sets it to the time that
	// SaveUses saved, or else to Created. Commit does not write it.
	Used int64
}

// The layout of an entry's row, little-endian. The version depends on the content: 4 for
// an entry with a primer; else 3 with packed parts; else 2 with a hash; else 1.
//
//	u8 version | u64 generation | u32 header bytes | u64 payload bytes | u8 flags: 1 = coded | u8 level
//	u32 tenant | 32 B fingerprint | u8 role | u32 head, tail, tokens | u32 begin, end
//	u8 parent kind | 32 B parent key | u16 ranks | u64 rank bytes | i64 created | u64 manifest sum
//	versions 2 to 4: u64 lead hash, whole hash
//	versions 3, 4: u16 length | Row.Packed
//	version 4: 32 B primer
//	u8 number of runs | 12 B each, as in an extent's header
const (
	rowVersion       = 1
	rowHashedVersion = 2
	rowPackedVersion = 3
	rowPrimedVersion = 4
	rowHashOff       = 1 + 8 + 4 + 8 + 1 + 1 + 4 + 32 + 1 + 4*5 + 1 + 32 + 2 + 8 + 8 + 8
	rowHashBytes     = 8 + 8
	rowPrimerBytes   = 32
	rowMaxBytes      = rowHashOff + rowHashBytes + 2 + profile.MaxPackedBytes + rowPrimerBytes + 1 + extent.MaxRuns*extent.RunBytes

	flagCoded = 1
)

// check returns why the row is invalid; nil = it is valid.
func (r *Row) check() error {
	in := func(n, most int) bool { return n >= 0 && n <= most }
	switch {
	case r.Generation == 0:
		return errors.New("generation 0")
	case r.HeaderBytes < extent.BlockBytes || r.HeaderBytes > extent.MaxHeaderBytes || r.HeaderBytes%extent.BlockBytes != 0:
		return fmt.Errorf("header of %d bytes", r.HeaderBytes)
	case r.PayloadBytes < 0 || r.PayloadBytes > extent.MaxPayloadBytes || r.PayloadBytes%extent.BlockBytes != 0:
		return fmt.Errorf("payload of %d bytes", r.PayloadBytes)
	case !in(r.Spec.Head, profile.MaxTokens) || !in(r.Spec.Tail, profile.MaxTokens) || !in(r.Spec.Tokens, profile.MaxTokens):
		return fmt.Errorf("spec %+v", r.Spec)
	case !in(r.End, profile.MaxTokens) || !in(r.Begin, r.End):
		return fmt.Errorf("tokens [%d, %d)", r.Begin, r.End)
	case len(r.Packed) > profile.MaxPackedBytes:
		return fmt.Errorf("packed parts of %d bytes", len(r.Packed))
	case !in(r.Ranks-1, profile.MaxTPSize-1):
		return fmt.Errorf("%d ranks", r.Ranks)
	case r.RankBytes < 0 || r.RankBytes > extent.MaxPayloadBytes:
		return fmt.Errorf("%d bytes a rank", r.RankBytes)
	}
	if err := extent.CheckRuns(r.Runs); err != nil {
		return err
	}
	if have, want := slab.RunBytes(r.Runs), int64(r.HeaderBytes)+r.PayloadBytes; have < want {
		return fmt.Errorf("%d bytes in runs of %d", want, have)
	}
	return nil
}

func (r *Row) version() byte {
	switch {
	case r.Spec.Primer != profile.PrimerID{}:
		return rowPrimedVersion
	case r.Packed != "":
		return rowPackedVersion
	case r.Hash != (profile.SegmentHash{}):
		return rowHashedVersion
	}
	return rowVersion
}

// append appends the encoded row to b. The caller has checked the row.
func (r *Row) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, r.version())
	b = le.AppendUint64(b, r.Generation)
	b = le.AppendUint32(b, uint32(r.HeaderBytes))
	b = le.AppendUint64(b, uint64(r.PayloadBytes))
	flags := byte(0)
	if r.Coded {
		flags = flagCoded
	}
	b = append(b, flags, r.Level)
	b = le.AppendUint32(b, r.Tenant)
	b = append(b, r.Fingerprint[:]...)
	b = append(b, byte(r.Spec.Role))
	for _, n := range [...]int{r.Spec.Head, r.Spec.Tail, r.Spec.Tokens, r.Begin, r.End} {
		b = le.AppendUint32(b, uint32(n))
	}
	b = append(b, r.Parent.Kind)
	b = append(b, r.Parent.Key[:]...)
	b = le.AppendUint16(b, uint16(r.Ranks))
	b = le.AppendUint64(b, uint64(r.RankBytes))
	b = le.AppendUint64(b, uint64(r.Created))
	b = le.AppendUint64(b, r.ManifestSum)
	if r.version() >= rowHashedVersion {
		b = le.AppendUint64(b, r.Hash.Lead)
		b = le.AppendUint64(b, r.Hash.Whole)
	}
	if r.version() >= rowPackedVersion {
		b = le.AppendUint16(b, uint16(len(r.Packed)))
		b = append(b, r.Packed...)
	}
	if r.version() == rowPrimedVersion {
		b = append(b, r.Spec.Primer[:]...)
	}
	b = append(b, byte(len(r.Runs)))
	for _, run := range r.Runs {
		b = extent.AppendRun(b, run)
	}
	return b
}

// parseRow parses the row of an entry. It shares no memory with b.
func parseRow(n extent.Name, b []byte) (Row, error) {
	r := Row{Name: n}
	runsOff := rowHashOff
	if len(b) > 0 && b[0] == rowHashedVersion {
		runsOff += rowHashBytes
	} else if len(b) > 0 && (b[0] == rowPackedVersion || b[0] == rowPrimedVersion) {
		runsOff += rowHashBytes + 2
		if len(b) > runsOff {
			runsOff += int(binary.LittleEndian.Uint16(b[runsOff-2:]))
		}
		if b[0] == rowPrimedVersion {
			runsOff += rowPrimerBytes
		}
	} else if err := checkVersion(b, rowVersion, "entry"); err != nil {
		return r, fmt.Errorf("%v: %w", n, err)
	}
	if len(b) <= runsOff || len(b) != runsOff+1+int(b[runsOff])*extent.RunBytes {
		return r, fmt.Errorf("%v: entry row of %d bytes: %w", n, len(b), tier.ErrCorrupt)
	}
	le := binary.LittleEndian
	next := func(n int) []byte { // the length has been checked
		out := b[:n]
		b = b[n:]
		return out
	}
	version := next(1)[0]
	r.Generation = le.Uint64(next(8))
	r.HeaderBytes = int(le.Uint32(next(4)))
	r.PayloadBytes = int64(le.Uint64(next(8)))
	flags := next(1)[0]
	r.Coded = flags == flagCoded
	r.Level = next(1)[0]
	r.Tenant = le.Uint32(next(4))
	copy(r.Fingerprint[:], next(len(r.Fingerprint)))
	r.Spec.Role = profile.Role(next(1)[0])
	for _, v := range [...]*int{&r.Spec.Head, &r.Spec.Tail, &r.Spec.Tokens, &r.Begin, &r.End} {
		*v = int(le.Uint32(next(4)))
	}
	r.Parent.Kind = next(1)[0]
	copy(r.Parent.Key[:], next(len(r.Parent.Key)))
	r.Ranks = int(le.Uint16(next(2)))
	r.RankBytes = int64(le.Uint64(next(8)))
	r.Created = int64(le.Uint64(next(8)))
	r.ManifestSum = le.Uint64(next(8))
	if version >= rowHashedVersion {
		r.Hash = profile.SegmentHash{Lead: le.Uint64(next(8)), Whole: le.Uint64(next(8))}
	}
	if version >= rowPackedVersion {
		r.Packed = profile.Packed(next(int(le.Uint16(next(2)))))
	}
	if version == rowPrimedVersion {
		copy(r.Spec.Primer[:], next(rowPrimerBytes))
	}
	r.Runs = make([]slab.Run, next(1)[0])
	for i := range r.Runs {
		r.Runs[i] = extent.Run(next(extent.RunBytes))
	}
	if r.version() != version {
		return r, fmt.Errorf("%v: entry row of version %d without what it adds: %w", n, version, tier.ErrCorrupt)
	}
	if flags&^flagCoded != 0 {
		return r, fmt.Errorf("%v: entry row with flags %#x: %w", n, flags, tier.ErrCorrupt)
	}
	if err := r.check(); err != nil {
		return r, fmt.Errorf("%v: entry row: %s: %w", n, err, tier.ErrCorrupt)
	}
	return r, nil
}
