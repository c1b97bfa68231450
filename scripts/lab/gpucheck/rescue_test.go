package gpucheck

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

func TestStreamsThatStillWaitAreCounted(t *testing.T) {
	o := onFake(t)
	all, err := cuda.Devices(o.Library)
	if err != nil {
		t.Fatal(err)
	}
	o.Device = all[0].UUID.String()
	c := &check{Options: o, ctx: context.Background(), rng: rand.New(rand.NewPCG(1, 1))}
	w, err := c.stopwatch()
	if err != nil {
		t.Fatal(err)
	}
	page, err := w.alloc(order.PageBytes)
	if err := errors.Join(err, w.upload(page, make([]byte, order.PageBytes))); err != nil {
		t.Fatal(err)
	}
	waits, err := w.api.StreamCreate()
	if err != nil {
		t.Fatal(err)
	}
	numbers := order.Streams{API: w.api, Page: page}
	if err := numbers.Wait(waits, order.Daemon, 1); err != nil {
		t.Fatal(err)
	}
	streams := []driver.Stream{w.stream, waits}
	if err := w.within(time.Millisecond, streams); err == nil || !strings.Contains(err.Error(), "1 of 2 streams") {
		t.Errorf("nobody released it: %v", err)
	}
	if err := errors.Join(numbers.Release(w.stream, order.Daemon), w.within(rescueTime, streams)); err != nil {
		t.Errorf("released: %v", err)
	}
	if err := errors.Join(w.api.StreamDestroy(waits), w.close()); err != nil {
		t.Error(err)
	}
}
