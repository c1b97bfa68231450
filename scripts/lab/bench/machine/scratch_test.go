package machine

import (
	"os"
	"strings"
	"testing"
)

func TestMemoryIsNoDisk(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skip("no /dev/shm here")
	}
	if _, err := NewScratch("/dev/shm"); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("/dev/shm was taken for a disk: %v", err)
	}
}
