package baseline

import (
	"bytes"
	"fmt"
	"os"
	"testing"
)

// TestMain lets this program play the echo that the benchmark starts.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == EchoCommand {
		if err := ServeEcho(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestEchoAnswersTheSameBytes(t *testing.T) {
	e, err := StartEcho()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 1500, 100 << 10} {
		b := bytes.Repeat([]byte{byte(n)}, n)
		if err := e.RoundTrip(b); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{byte(n)}, n)) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if err := e.Stop(); err != nil {
		t.Errorf("the echo process: %v", err)
	}
}
