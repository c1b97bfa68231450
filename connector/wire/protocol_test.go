package wire

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestProtocolPageAgrees holds docs/protocol.md to the numbers in the code.
func TestProtocolPageAgrees(t *testing.T) {
	raw, err := os.ReadFile("../../docs/protocol.md")
	must(t, err)
	page := string(raw)
	want := func(format string, args ...any) {
		t.Helper()
		if row := fmt.Sprintf(format, args...); !strings.Contains(page, row) {
			t.Errorf("docs/protocol.md lacks %q", row)
		}
	}
	for _, op := range everyOp() {
		want("| %d | %s |", op, op)
	}
	for code := OK; code <= Quota; code++ {
		want("| %d | %s |", code, code)
	}
	for level := LevelDefault; level.Known(); level++ {
		want("| %d | %s |", level, level)
	}
	bounds := map[string]int{
		"MaxFrame": MaxFrame, "MaxKeys": MaxKeys, "MaxIDs": MaxIDs, "MaxCommitRows": MaxCommitRows,
		"MaxDigests": MaxDigests, "MaxExtents": MaxExtents, "MaxNodes": MaxNodes, "MaxSpans": MaxSpans,
		"MaxBlocks": MaxBlocks, "MaxMemoryLayers": MaxMemoryLayers, "MaxIdentity": MaxIdentity,
		"MaxTenants": MaxTenants, "MaxName": MaxName, "MaxToken": MaxToken, "MaxSalt": MaxSalt,
		"MaxStats": MaxStats, "MaxChunks": MaxChunks, "MaxPositions": MaxPositions, "MaxSamples": MaxSamples, "MaxWays": MaxWays, "MaxErrorText": MaxErrorText,
	}
	for name, value := range bounds {
		want("| %s | %d", name, value)
	}
}
