package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// rescueTime is long compared with a write of 8 bytes.
const rescueTime = time.Second

// waiting lists how many streams wait at once in each test. The tests stop at the first number
// at which no other stream can run any more.
var waiting = []int{1, 2, order.MostWaiting, 6, 7, 8, 16, 32}

// rescued tests whether work on a stream of higher priority runs although other streams wait. A
// client relies on this to release its streams from a dead daemon, and no documentation
// guarantees it. After a failure the waiting streams cannot be released, so the test runs in a
// second process, which can end.
func (c *check) rescued() error {
	for _, queues := range []struct {
		name string
		env  []string
		most int // largest number of waiting streams that clients use; 0 = nothing is required
	}{{"connections as they are", nil, order.MostWaiting}, {"one connection", []string{"CUDA_DEVICE_MAX_CONNECTIONS=1"}, 0}} {
		name := fmt.Sprintf("most of %v streams that wait that one of higher priority got past, %s", waiting, queues.name)
		if len(c.Self) == 0 {
			c.report.Skip(name, errNoSecond.Error())
			continue
		}
		past, can, err := c.mostRescued(queues.env)
		if err == nil && !can {
			c.report.Skip(name, "the device has no 64-bit stream memory operations")
			continue
		}
		c.report.Add(Row{Name: name, Value: float64(past), Unit: "streams", OK: true})
		if queues.most == 0 {
			continue
		}
		if past >= queues.most {
			err = nil // it failed only with more streams than clients use
		}
		c.report.Holds(fmt.Sprintf("%d streams that wait are released by one of higher priority, %s", queues.most, queues.name), err)
	}
	return nil
}

// mostRescued returns the largest tested number of waiting streams with which another stream
// could still run, and the error of the test with the next larger number. can reports whether
// streams of this device can wait at all.
func (c *check) mostRescued(env []string) (past int, can bool, err error) {
	for _, n := range waiting {
		if can, err = c.rescuedWith(n, env); err != nil || !can {
			return past, can, err
		}
		past = n
	}
	return past, true, nil
}

// rescuedWith runs the test with n waiting streams and returns an error if it fails. can reports
// whether streams of this device can wait at all.
func (c *check) rescuedWith(n int, env []string) (can bool, err error) {
	ctx, stop := context.WithTimeout(c.ctx, 4*rescueTime)
	defer stop()
	p, err := c.start(&message{Role: roleRescue, Count: n}, env...)
	if err != nil {
		return false, err
	}
	m, err := p.receive(ctx)
	if err != nil {
		return false, errors.Join(err, p.kill())
	}
	if err = p.end(); err != nil {
		return false, err
	}
	return m.Count == n, nil
}

// rescue makes streams wait and releases them with a stream of higher priority. After a failure
// it frees nothing, because freeing would wait for the streams.
func rescue(ctx context.Context, p *peer, m *message) error {
	c := &check{Options: Options{Library: m.Library, Device: m.Device, Sizes: m.Sizes}, ctx: ctx, rng: rand.New(rand.NewPCG(1, 1))}
	w, err := c.bareStopwatch()
	if err != nil {
		return err
	}
	if ok, err := w.api.DeviceAttribute(w.device, driver.StreamMemOps64); err != nil || ok == 0 {
		return errors.Join(err, w.close(), p.send(&message{}))
	}
	page, err := w.alloc(order.PageBytes)
	if err != nil {
		return err
	}
	if err := w.upload(page, make([]byte, order.PageBytes)); err != nil {
		return err
	}
	urgent, err := w.api.StreamCreateUrgent()
	if err != nil {
		return err
	}
	streams := make([]driver.Stream, m.Count)
	numbers := order.Streams{API: w.api, Page: page}
	for i := range streams {
		if streams[i], err = w.api.StreamCreate(); err != nil {
			return err
		}
		if err := numbers.Wait(streams[i], order.Daemon, 1); err != nil {
			return err
		}
	}
	// Not numbers.Release: it would wait for an event that may never come.
	if err := w.api.StreamWriteValue64(urgent, page+driver.DevicePtr(order.Daemon)*order.SlotBytes, order.Released); err != nil {
		return err
	}
	if err := w.within(rescueTime, append(streams, urgent)); err != nil {
		return err
	}
	for _, s := range append(streams, urgent) {
		if err := w.api.StreamDestroy(s); err != nil {
			return err
		}
	}
	if err := w.close(); err != nil {
		return err
	}
	return p.send(&message{Count: m.Count})
}

// within returns an error unless all streams complete their work in the time limit. It makes no
// call that waits for a stream.
func (w *stopwatch) within(limit time.Duration, streams []driver.Stream) error {
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for end := time.Now().Add(limit); ; <-pause.C {
		waiting := 0
		for _, s := range streams {
			done, err := w.api.StreamQuery(s)
			if err != nil {
				return err
			}
			if !done {
				waiting++
			}
		}
		if waiting == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d streams still wait after %v", waiting, len(streams), limit)
		}
	}
}
