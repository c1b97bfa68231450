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

// waiters are more streams than a device has hardware queues (32 at most), so that
// each queue has some that wait. rescueTime is long against a write of 8 bytes.
const (
	waiters    = 40
	rescueTime = 5 * time.Second
)

// rescued asks whether a stream of higher priority gets past streams that wait. They
// have few hardware queues, and one that waits holds up what shares its queue: the
// client's rescue from a dead daemon relies on priorities having queues apart, which
// is not documented. A process that fails has streams that nothing releases, so it is
// a second one, which ends.
func (c *check) rescued() error {
	for _, queues := range []struct {
		name string
		env  []string
	}{{"hardware queues as they are", nil}, {"one hardware queue", []string{"CUDA_DEVICE_MAX_CONNECTIONS=1"}}} {
		name := fmt.Sprintf("%d streams that wait are released by one of higher priority, %s", waiters, queues.name)
		if len(c.Self) == 0 {
			c.report.Skip(name, errNoSecond.Error())
			continue
		}
		ok, err := c.rescuedWith(queues.env)
		if err == nil && !ok {
			c.report.Skip(name, "the device has no 64-bit stream memory operations")
			continue
		}
		c.report.Holds(name, err)
	}
	return nil
}

// rescuedWith answers whether the device can wait at all.
func (c *check) rescuedWith(env []string) (ok bool, err error) {
	p, err := c.start(&message{Role: roleRescue}, env...)
	if err != nil {
		return false, err
	}
	m, err := p.receive(c.ctx)
	if err = errors.Join(err, p.end()); err != nil {
		return false, err
	}
	return m.Count == waiters, nil
}

// rescue has streams wait and releases them; it answers how many there were. After a
// failure nothing is given back: that would wait for the streams.
func rescue(ctx context.Context, p *peer, m *message) error {
	c := &check{Options: Options{Library: m.Library, Device: m.Device, Sizes: m.Sizes}, ctx: ctx, rng: rand.New(rand.NewPCG(1, 1))}
	w, err := c.stopwatch()
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
	streams := make([]driver.Stream, waiters)
	numbers := order.Streams{API: w.api, Page: page}
	for i := range streams {
		if streams[i], err = w.api.StreamCreate(); err != nil {
			return err
		}
		if err := numbers.Wait(streams[i], order.Daemon, 1); err != nil {
			return err
		}
	}
	// Not numbers.Release: it would wait for what may never come.
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
	return p.send(&message{Count: waiters})
}

// within asks until all streams have run what they hold; no call of it waits.
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
