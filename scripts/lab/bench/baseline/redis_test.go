package baseline

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
)

// scripted answers what a client sends with texts, one for each command of so
// many bytes.
func scripted(t *testing.T, commands []string, answers []string) *RedisConn {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer theirs.Close()
		for i, want := range commands {
			got := make([]byte, len(want))
			if _, err := io.ReadFull(theirs, got); err != nil || string(got) != want {
				t.Errorf("command %d: %q, want %q: %v", i, got, want, err)
				return
			}
			if _, err := io.WriteString(theirs, answers[i]); err != nil {
				return // the client has seen enough
			}
		}
	}()
	t.Cleanup(func() { ours.Close(); <-done })
	return &RedisConn{ours, bufio.NewReader(ours)}
}

func TestRedisIsSpokenTo(t *testing.T) {
	c := scripted(t, []string{
		"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "*1\r\n$4\r\nPING\r\n", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
	}, []string{"+OK\r\n", "$4\r\na\r\nb\r\n", "+PONG\r\n", "$-1\r\n"})
	if err := c.Set("k", []byte("a\r\nb")); err != nil {
		t.Error(err)
	}
	dst := make([]byte, 4)
	if err := c.Get("k", dst); err != nil || !bytes.Equal(dst, []byte("a\r\nb")) {
		t.Errorf("%q: %v", dst, err)
	}
	if err := c.do("PING"); err != nil {
		t.Error(err)
	}
	if err := c.Get("k", dst); err == nil {
		t.Error("a value that is not there was read")
	}
}

func TestRedisThatRefusesIsAnError(t *testing.T) {
	const ping = "*1\r\n$4\r\nPING\r\n"
	for _, answer := range []string{"-MISCONF no disk\r\n", ":1\r\n", "nonsense\n", "\r\n"} {
		if err := scripted(t, []string{ping}, []string{answer}).do("PING"); err == nil {
			t.Errorf("%q was taken", answer)
		}
	}
	err := scripted(t, []string{"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"}, []string{"-OOM used memory\r\n"}).Set("k", []byte("v"))
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("%v", err)
	}
}
