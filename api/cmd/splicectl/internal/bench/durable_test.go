package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// scripted answers what a client sends with texts, one for each command of so
// many bytes.
func scripted(t *testing.T, commands []string, answers []string) *redisConn {
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
	return &redisConn{ours, bufio.NewReader(ours)}
}

func TestRedisIsSpokenTo(t *testing.T) {
	c := scripted(t, []string{
		"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "*1\r\n$4\r\nPING\r\n", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
	}, []string{"+OK\r\n", "$4\r\na\r\nb\r\n", "+PONG\r\n", "$-1\r\n"})
	if err := c.set("k", []byte("a\r\nb")); err != nil {
		t.Error(err)
	}
	dst := make([]byte, 4)
	if err := c.get("k", dst); err != nil || !bytes.Equal(dst, []byte("a\r\nb")) {
		t.Errorf("%q: %v", dst, err)
	}
	if err := c.do("PING"); err != nil {
		t.Error(err)
	}
	if err := c.get("k", dst); err == nil {
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
	err := scripted(t, []string{"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"}, []string{"-OOM used memory\r\n"}).set("k", []byte("v"))
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("%v", err)
	}
}

// counting is a keeper that only counts.
type counting struct {
	puts, gets atomic.Int64
	fail       error
}

func (c *counting) put(context.Context, int) error { c.puts.Add(1); return c.fail }
func (c *counting) get(context.Context, int) error { c.gets.Add(1); return nil }

func TestDurablePassGoesThroughAllWriters(t *testing.T) {
	k := &counting{}
	put, get, err := durablePass(t.Context(), k, durableSize{name: "x", bytes: 1 << 20, each: 3})
	if want := int64(3 * durableWriters); err != nil || k.puts.Load() != want || k.gets.Load() != want || put <= 0 || get <= 0 {
		t.Errorf("%d puts at %v, %d gets at %v: %v", k.puts.Load(), put, k.gets.Load(), get, err)
	}
	k.fail = errors.New("full")
	if _, _, err := durablePass(t.Context(), k, durableSize{name: "x", bytes: 1 << 20, each: 3}); !errors.Is(err, k.fail) {
		t.Errorf("%v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := durablePass(ended, &counting{}, durableSize{name: "x", bytes: 1 << 20, each: 3}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestRealRedisKeepsValues(t *testing.T) {
	if _, err := findRedis(); err != nil {
		t.Skip(err)
	}
	k, err := openRedis(t.Context(), t.TempDir(), durableSize{name: "4KiB", bytes: 4 << 10, each: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := durablePass(t.Context(), k, k.size); err != nil {
		t.Error(err)
	}
	if err := k.close(); err != nil {
		t.Error(err)
	}
}
