package catalog

import (
	"encoding/binary"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// The first byte of a key is the type of its row. Row types that are keyed by an entry's
// name (kind and key) have the same order, so that two types can be iterated in parallel.
//
//	0                     format:     u8 1 | u32 format version | 16 B store id
//	1 kind key            entry:      see Row
//	2 kind key            manifest:   u8 1 | bytes as in the extent
//	3 kind key            last use:   u8 1 | i64 nanoseconds since 1970
//	4 name                tenant:     u8 1 | u32 number, from 1
//	5                     generation: u8 1 | u64 generation; all smaller ones may be in use
//	6 name                counter:    u8 1 | u64
const (
	spaceFormat byte = iota
	spaceEntry
	spaceManifest
	spaceUse
	spaceTenant
	spaceGeneration
	spaceCounter
)

const (
	formatVersion     = 1
	formatRowVersion  = 1
	manifestVersion   = 1
	useVersion        = 1
	tenantVersion     = 1
	generationVersion = 1
	counterVersion    = 1

	nameKeyBytes = 1 + 1 + 32
)

func nameKey(space byte, n *extent.Name) []byte {
	b := make([]byte, 0, nameKeyBytes)
	return append(append(b, space, n.Kind), n.Key[:]...)
}

func parseNameKey(b []byte) (extent.Name, error) {
	var n extent.Name
	if len(b) != nameKeyBytes {
		return n, fmt.Errorf("key of %d bytes: %w", len(b), tier.ErrCorrupt)
	}
	n.Kind = b[1]
	copy(n.Key[:], b[2:])
	return n, nil
}

func textKey(space byte, name string) []byte { return append([]byte{space}, name...) }

func appendFormat(b []byte, id slab.StoreID) []byte {
	b = append(b, formatRowVersion)
	b = binary.LittleEndian.AppendUint32(b, formatVersion)
	return append(b, id[:]...)
}

func parseFormat(b []byte) (id slab.StoreID, err error) {
	if err := checkVersion(b, formatRowVersion, "format"); err != nil {
		return id, err
	}
	if len(b) != 1+4+len(id) {
		return id, fmt.Errorf("format row of %d bytes: %w", len(b), tier.ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(b[1:]); v != formatVersion {
		return id, fmt.Errorf("format version %d, want %d: %w", v, formatVersion, ErrVersion)
	}
	copy(id[:], b[5:])
	return id, nil
}

func uint64Row(version byte, v uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{version}, v)
}

func parseUint64Row(b []byte, version byte, what string) (uint64, error) {
	if err := checkVersion(b, version, what); err != nil {
		return 0, err
	}
	if len(b) != 1+8 {
		return 0, fmt.Errorf("%s row of %d bytes: %w", what, len(b), tier.ErrCorrupt)
	}
	return binary.LittleEndian.Uint64(b[1:]), nil
}

func tenantRow(number uint32) []byte {
	return binary.LittleEndian.AppendUint32([]byte{tenantVersion}, number)
}

func parseTenantRow(b []byte) (uint32, error) {
	if err := checkVersion(b, tenantVersion, "tenant"); err != nil {
		return 0, err
	}
	if len(b) != 1+4 {
		return 0, fmt.Errorf("tenant row of %d bytes: %w", len(b), tier.ErrCorrupt)
	}
	return binary.LittleEndian.Uint32(b[1:]), nil
}
