package peer

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/iotest"
	"time"
)

// script is a connection that gives and takes bytes as a test says.
type script struct {
	net.Conn
	from   io.Reader
	to     bytes.Buffer
	writes []int
	fails  error // of writes
}

func (s *script) Read(p []byte) (int, error) { return s.from.Read(p) }
func (s *script) Write(p []byte) (int, error) {
	if s.fails != nil {
		return 0, s.fails
	}
	s.writes = append(s.writes, len(p))
	return s.to.Write(p)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func TestAGatheringConnectionReadsWhatWasSent(t *testing.T) {
	batches := 3
	if testing.Short() {
		batches = 1
	}
	want := randomBytes(batches*batchBytes + 777)
	for name, from := range map[string]io.Reader{
		"at once": bytes.NewReader(want), "by bytes": iotest.OneByteReader(bytes.NewReader(want)),
		"by halves": iotest.HalfReader(bytes.NewReader(want)), "with its end": iotest.DataErrReader(bytes.NewReader(want)),
	} {
		random := rand.New(rand.NewPCG(1, 1))
		g := &gathering{Conn: &script{from: from}}
		var got []byte
		room := make([]byte, 2*batchBytes)
		for len(got) < len(want) {
			p := room[:[]int{1, 5, 512, 16 << 10, batchBytes, 2 * batchBytes}[random.IntN(6)]]
			n, err := g.Read(p)
			if got = append(got, p[:n]...); err != nil && len(got) < len(want) {
				t.Fatalf("%s: %v after %d bytes", name, err, len(got))
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes", name)
		}
		if n, err := g.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) || g.held != nil {
			t.Errorf("%s: at the end %d, %v; it holds a buffer: %v", name, n, err, g.held != nil)
		}
	}
}

func TestAGatheringConnectionHoldsABufferOnlyWhileItHasBytes(t *testing.T) {
	g := &gathering{Conn: &script{from: io.MultiReader(bytes.NewReader([]byte("abcd")), iotest.ErrReader(os.ErrDeadlineExceeded))}}
	b := make([]byte, 3)
	if n, err := g.Read(b); n != 3 || err != nil || g.held == nil {
		t.Fatal(n, err, g.held == nil)
	}
	if n, err := g.Read(b); n != 1 || err != nil || g.held != nil {
		t.Fatal(n, err, g.held != nil)
	}
	if n, err := g.Read(b); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || g.held != nil {
		t.Fatal(n, err, g.held != nil)
	}
}

func TestACorkedConnectionSendsTheSameBytesInFewerCalls(t *testing.T) {
	want, s := randomBytes(2*batchBytes+1000), &script{}
	c := NewCorked(s).(*Corked)
	write := func(b []byte, at int) {
		for len(b) > 0 {
			n := min(at, len(b))
			if k, err := c.Write(b[:n]); k != n || err != nil {
				t.Fatal(k, err)
			}
			b = b[n:]
		}
	}
	write(want[:100], 100) // not corked
	c.Cork()
	c.Cork() // again is nothing
	write(want[100:], 16<<10)
	noError(t, errors.Join(c.Uncork(), c.Uncork()))
	if !bytes.Equal(s.to.Bytes(), want) {
		t.Error("other bytes")
	}
	if len(s.writes) != 4 || s.writes[1] != batchBytes || s.writes[2] != batchBytes {
		t.Errorf("calls of %v bytes", s.writes)
	}
	if c.held != nil {
		t.Error("it holds a buffer")
	}
	write([]byte("x"), 1)
	if s.to.Len() != len(want)+1 {
		t.Error("it is still corked")
	}
}

func TestACorkedConnectionTellsOfBytesThatWereNotSent(t *testing.T) {
	broken := errors.New("broken")
	s := &script{fails: broken}
	c := NewCorked(s).(*Corked)
	c.Cork()
	if _, err := c.Write(make([]byte, batchBytes)); !errors.Is(err, broken) {
		t.Errorf("a write that sends: %v", err)
	}
	if _, err := c.Write([]byte("later")); err != nil {
		t.Error(err)
	}
	if err := c.Uncork(); !errors.Is(err, broken) || c.held != nil || c.n != 0 {
		t.Errorf("uncork: %v, %d bytes held", err, c.n)
	}
	s.fails = nil
	if err := c.Uncork(); err != nil || s.to.Len() != 0 {
		t.Errorf("nothing is held, and %d bytes are sent: %v", s.to.Len(), err)
	}
	var none *Corked
	none.Cork()
	if corkOf(s) != nil || none.Uncork() != nil {
		t.Error("a connection without a cork is not left alone")
	}
}

// A peer that stops reading costs StallTime also where its bytes are held back.
func TestAPeerThatDoesNotReadEndsACorkedTransfer(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	c := NewCorked(near).(*Corked)
	c.Cork()
	if _, err := c.Write([]byte("held")); err != nil {
		t.Fatal(err)
	}
	noError(t, c.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	if err := c.Uncork(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("uncork: %v", err)
	}
}
