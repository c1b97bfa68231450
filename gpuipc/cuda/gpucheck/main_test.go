package gpucheck

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// childEnv makes a process of this test the second one of a check.
const childEnv = "SPLICED_GPUCHECK_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := Child(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}
