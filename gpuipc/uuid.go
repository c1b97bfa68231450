package gpuipc

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// String returns the form that drivers and nvidia-smi use: "GPU-" and the 16 bytes in
// groups of 4, 2, 2, 2 and 6. A MIG instance also gets "GPU-", though nvidia-smi prints
// "MIG-", because the bytes do not distinguish the two.
func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// ParseUUID reads the form of String, with "GPU-", "MIG-" or no prefix, in upper or lower
// case.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	plain := s
	for _, prefix := range []string{"GPU-", "gpu-", "MIG-", "mig-"} {
		if rest, ok := strings.CutPrefix(s, prefix); ok {
			plain = rest
		}
	}
	groups := strings.Split(plain, "-")
	sizes := [...]int{8, 4, 4, 4, 12}
	if len(groups) != len(sizes) {
		return u, fmt.Errorf("device %q, want GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx: %w", s, ErrInvalid)
	}
	at := 0
	for i, g := range groups {
		if len(g) != sizes[i] {
			return u, fmt.Errorf("device %q: group %d has %d digits instead of %d: %w", s, i+1, len(g), sizes[i], ErrInvalid)
		}
		n, err := hex.Decode(u[at:], []byte(g))
		if err != nil {
			return u, fmt.Errorf("device %q: %w: %w", s, err, ErrInvalid)
		}
		at += n
	}
	return u, nil
}
