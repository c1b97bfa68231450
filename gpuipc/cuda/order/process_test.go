package order_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// clientRole writes the data and then its number, round by round, all enqueued
// at once; the next round's write waits for the daemon's number of this one.
func clientRole(c *chunk, in *bufio.Reader, out io.Writer) error {
	var rounds uint64
	if _, err := fmt.Fscan(in, &rounds); err != nil {
		return err
	}
	for v := uint64(1); v <= rounds; v++ {
		if v > 1 {
			if err := c.order.Wait(c.work, order.Daemon, v-1); err != nil {
				return err
			}
		}
		if err := errors.Join(c.put(c.work, byte(v)), c.order.Signal(c.work, order.Client, v)); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(out, "enqueued"); err != nil {
		return err
	}
	return c.StreamSynchronize(c.work)
}

// diesRole holds a stream, enqueues a signal behind it, and waits to be killed.
func diesRole(c *chunk, in *bufio.Reader, out io.Writer) error {
	err := errors.Join(c.order.Wait(c.work, order.Daemon, 1), c.order.Signal(c.work, order.Client, 1))
	fmt.Fprintln(out, "enqueued", err)
	_, err = in.ReadString(0)
	return err
}

// Store after compute, load before reuse: whoever has seen a number sees all of
// the bytes that it announces, and they stay until the answer. Both directions,
// with streams that run late.
func TestNumbersOrderTheWorkOfTwoProcesses(t *testing.T) {
	const rounds = 50
	c, fake := newChunk(t)
	client := c.startPeer(t, "client", fake.Path, fakecuda.Setup{Delay: 200})
	if got := client.Ask(t, "%d", rounds); got != "enqueued" {
		t.Fatal(got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	data := host(t, dataBytes)
	for v := uint64(1); v <= rounds; v++ {
		// By turns a wait on the host and one in the stream.
		if v%2 == 0 {
			seen, err := c.page.Wait(ctx, order.Client, v)
			check(t, err)
			if seen != v {
				t.Fatalf("saw %d in round %d: the client did not wait", seen, v)
			}
		} else {
			check(t, c.order.Wait(c.work, order.Client, v))
		}
		check(t, c.MemcpyDtoHAsync(pointer(data), c.base+dataOff, dataBytes, c.work))
		if v%3 == 0 {
			check(t, c.StreamSynchronize(c.work), c.page.Signal(ctx, order.Daemon, v))
		} else {
			check(t, c.order.Signal(c.work, order.Daemon, v), c.StreamSynchronize(c.work))
		}
		if !bytes.Equal(data, bytes.Repeat([]byte{byte(v)}, dataBytes)) {
			t.Fatalf("round %d: bytes of another round", v)
		}
	}
}

// The daemon's stream waits for a client that is killed: without Release it
// would stand for ever.
func TestADeadPeersWaitersGoOn(t *testing.T) {
	c, fake := newChunk(t)
	client := c.startPeer(t, "dies", fake.Path, fakecuda.Setup{})
	if got := client.Ask(t, ""); got != "enqueued <nil>" {
		t.Fatal(got)
	}
	check(t, c.order.Wait(c.work, order.Client, 1), c.put(c.work, 9))
	check(t, client.Cmd.Process.Kill())
	if _, err := client.Cmd.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	// Its number never comes.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.page.Wait(ctx, order.Client, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a host wait: %v", err)
	}
	if done, err := c.StreamQuery(c.work); done || err != nil {
		t.Fatalf("a stream's wait: %v, %v", done, err)
	}
	// What is less than every number for the driver releases nobody.
	check(t, c.StreamWriteValue64(c.side, c.base, 1<<64-1), c.StreamSynchronize(c.side))
	if done, err := c.StreamQuery(c.work); done || err != nil {
		t.Fatalf("after 1<<64-1: %v, %v", done, err)
	}
	check(t, c.page.Release(t.Context(), order.Client), c.StreamSynchronize(c.work))
	if seen, err := c.page.Wait(t.Context(), order.Client, 7); seen != order.Released || err != nil {
		t.Errorf("saw %d, %v", seen, err)
	}
}

func TestReleaseInStreamOrder(t *testing.T) {
	c, _ := newChunk(t)
	check(t, c.order.Wait(c.work, order.Daemon, 3), c.order.Release(c.side, order.Daemon), c.StreamSynchronize(c.work))
	for name, err := range map[string]error{
		"number 0":    c.order.Wait(c.work, order.Daemon, 0),
		"released":    c.order.Signal(c.work, order.Client, order.Released),
		"slot 2":      c.order.Wait(c.work, 2, 1),
		"slot -1":     c.order.Release(c.side, -1),
		"no page":     second(order.At(c.API, c.side, 0)),
		"odd address": second(order.At(c.API, c.side, c.base+8)),
	} {
		if !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ *order.Page, err error) error { return err }

// A driver that fails is the error of the call, and no endless wait.
func TestALostDeviceEndsAWait(t *testing.T) {
	c, fake := newChunk(t)
	fake.Inject(t, fakecuda.Fault{Kind: fakecuda.Lost, Call: "cuMemcpyDtoHAsync_v2", Nth: 3, Value: 999})
	if _, err := c.page.Wait(t.Context(), order.Client, 1); !errors.Is(err, driver.Unknown) {
		t.Errorf("%v", err)
	}
}

// eventsRole is the client's side of a pair of events.
func eventsRole(c *chunk, in *bufio.Reader, out io.Writer) error {
	var text []byte
	var rounds uint64
	if _, err := fmt.Fscanf(in, "%x %d\n", &text, &rounds); err != nil {
		return err
	}
	e, err := order.OpenEvents(c.API, order.EventHandles(text), nil)
	if err != nil {
		return err
	}
	for v := uint64(1); v <= rounds; v++ {
		if v > 1 {
			if err := e.StreamWait(c.work, v-1); err != nil {
				return err
			}
		}
		if err := errors.Join(c.put(c.work, byte(v)), e.Record(c.work, v)); err != nil {
			return err
		}
		// The announcement crosses the socket, and so does the daemon's.
		fmt.Fprintln(out, v)
		var said uint64
		if _, err := fmt.Fscan(in, &said); err != nil {
			return err
		}
		e.Announced(said)
	}
	return errors.Join(c.StreamSynchronize(c.work), e.Close())
}

func TestEventsOrderTheWorkOfTwoProcesses(t *testing.T) {
	const rounds = 20
	c, fake := newChunk(t)
	dir := t.TempDir()
	fake.Set(t, "DIR", dir)
	e, handles, err := order.NewEvents(c.API, nil)
	check(t, err)
	client := c.startPeer(t, "events", fake.Path, fakecuda.Setup{Dir: dir, Delay: 200})
	data := host(t, dataBytes)
	line := fmt.Sprintf("%x %d", handles[:], rounds)
	for v := uint64(1); v <= rounds; v++ {
		// A record that may not have been made is not waited for.
		if err := e.StreamWait(c.work, v); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Fatalf("round %d before its announcement: %v", v, err)
		}
		if got := client.Ask(t, "%s", line); got != fmt.Sprint(v) {
			t.Fatalf("round %d: %s", v, got)
		}
		e.Announced(v)
		if v%2 == 0 {
			check(t, e.Wait(t.Context(), v))
		} else {
			check(t, e.StreamWait(c.work, v))
		}
		check(t, c.MemcpyDtoHAsync(pointer(data), c.base+dataOff, dataBytes, c.work))
		if v%3 == 0 {
			check(t, c.StreamSynchronize(c.work), e.Signal(v))
		} else {
			check(t, e.Record(c.work, v), c.StreamSynchronize(c.work))
		}
		if !bytes.Equal(data, bytes.Repeat([]byte{byte(v)}, dataBytes)) {
			t.Fatalf("round %d: bytes of another round", v)
		}
		line = fmt.Sprint(v)
	}
	if err := e.Record(c.work, rounds); !errors.Is(err, gpuipc.ErrInvalid) {
		t.Errorf("the same number again: %v", err)
	}
	if _, err := fmt.Fprintln(client.In, line); err != nil {
		t.Fatal(err)
	}
	check(t, e.Close())
}

// Half a pair does not stay behind.
func TestEventsThatCannotBeMadeLeaveNothing(t *testing.T) {
	c, fake := newChunk(t)
	for _, f := range []fakecuda.Fault{
		{Kind: fakecuda.Fail, Call: "cuEventCreate", Nth: 2, Value: 2},
		{Kind: fakecuda.Fail, Call: "cuIpcGetEventHandle", Nth: 2, Value: 304},
	} {
		fake.Inject(t, f)
		if _, _, err := order.NewEvents(c.API, nil); !errors.Is(err, driver.Result(f.Value)) {
			t.Errorf("%s: %v", f.Call, err)
		}
		fake.Clear()
	}
	if _, err := order.OpenEvents(c.API, order.EventHandles{1}, nil); err == nil {
		t.Error("handles of nothing were opened")
	}
}
