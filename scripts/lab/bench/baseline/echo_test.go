package baseline

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"testing"
)

// TestMain lets this program play the echoes that benchmarks start.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == EchoCommand:
		err = ServeEcho()
	case len(os.Args) == 3 && os.Args[1] == CrowdCommand:
		var n int
		if n, err = strconv.Atoi(os.Args[2]); err == nil {
			err = ServeCrowd(n)
		}
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
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

func TestCrowdAnswersEachConnectionWithItsBytes(t *testing.T) {
	c, err := StartCrowd(3)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		fd := int(c.Client(i).Fd())
		for _, n := range []int{1, 1500} {
			b := bytes.Repeat([]byte{byte(n + i)}, n)
			if err := RoundTripBare(fd, b); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{byte(n + i)}, n)) {
				t.Errorf("%d bytes of client %d: %v", n, i, err)
			}
		}
	}
	if err := c.Stop(); err != nil {
		t.Errorf("the crowd's process: %v", err)
	}
}
