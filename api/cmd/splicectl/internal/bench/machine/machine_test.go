package machine

import (
	"strings"
	"testing"
)

func TestMachineAndResidentMemoryAreRead(t *testing.T) {
	if m := Describe(); !strings.Contains(m, "cores") || strings.Contains(m, "unknown") {
		t.Errorf("%q", m)
	}
	if n, err := ResidentBytes(1); err == nil && n <= 0 {
		t.Errorf("process 1 has %d bytes", n)
	}
	if _, err := ResidentBytes(-1); err == nil {
		t.Error("process -1 has memory")
	}
}
