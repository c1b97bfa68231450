package gpucheck

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// childEnv makes a process of this test the second one of a check, partEnv one of a part.
const (
	childEnv = "SPLICED_GPUCHECK_CHILD"
	partEnv  = "SPLICED_GPUCHECK_PART"
)

func TestMain(m *testing.M) {
	if part := os.Getenv(partEnv); part != "" {
		_ = os.Unsetenv(partEnv) // not for the second process of the part
		if err := onePart(part); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(childEnv) != "" {
		if err := Child(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}
