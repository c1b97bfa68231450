package machine

import (
	"os"
	"strings"
	"testing"
)

func TestMachineAndResidentMemoryAreRead(t *testing.T) {
	if m := Describe(); !strings.Contains(m, "cores") || strings.Contains(m, "unknown") {
		t.Errorf("%q", m)
	}
	if r, err := ResidentOf(os.Getpid()); err != nil || r.Private <= 0 || r.All <= r.Private {
		t.Errorf("this process has %+v, %v", r, err)
	}
	if _, err := ResidentOf(-1); err == nil {
		t.Error("process -1 has memory")
	}
}
