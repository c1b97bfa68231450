package bounded

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

// inBubble runs f with calls that are given up after a second.
func inBubble(t *testing.T, f func(t *testing.T, c *Calls)) {
	synctest.Test(t, func(t *testing.T) {
		f(t, New(Host{
			Run: func(f func() error) error { return f() }, Release: func(f func()) { f() }, Log: func(text string) { t.Log(text) },
		}, time.Second))
	})
}

func TestACallThatComesBackLateIsUndone(t *testing.T) {
	inBubble(t, func(t *testing.T, c *Calls) {
		back, undone, lasts := make(chan struct{}), 0, 0
		k := Call{What: "wait", Run: func() error { <-back; return nil }, Undo: func() { undone++ }, Last: func() { lasts++ }}
		if err := c.Do(t.Context(), k); !errors.Is(err, gpuipc.ErrUnavailable) {
			t.Fatalf("%v", err)
		}
		if err := c.Close(); !errors.Is(err, gpuipc.ErrUnavailable) || c.Stuck() != 1 || c.Late() != 1 {
			t.Fatalf("close: %v with %d calls stuck, %d late", err, c.Stuck(), c.Late())
		}
		close(back)
		synctest.Wait()
		if err := c.Close(); err != nil || undone != 1 || lasts != 1 {
			t.Errorf("close: %v; undone %d times, ended %d times, want once each", err, undone, lasts)
		}
	})
}

func TestNoMoreCallsThanTheBound(t *testing.T) {
	inBubble(t, func(t *testing.T, c *Calls) {
		back, lasts := make(chan struct{}), 0
		for range Most {
			go func() {
				_ = c.Do(context.Background(), Call{Run: func() error { <-back; return errors.New("lost") }, Last: func() {}})
			}()
		}
		synctest.Wait()
		refused := Call{What: "one more", Run: func() error { t.Error("ran"); return nil }, Last: func() { lasts++ }}
		if err := c.Do(t.Context(), refused); !errors.Is(err, gpuipc.ErrUnavailable) || lasts != 1 {
			t.Errorf("%v, ended %d times", err, lasts)
		}
		// Memory is given back all the same, when there is a goroutine for it.
		given := false
		if err := c.Release("give back", func() error { given = true; return nil }); !errors.Is(err, gpuipc.ErrUnavailable) || given {
			t.Errorf("release: %v, given back %v", err, given)
		}
		close(back)
		synctest.Wait()
		if !given || c.Stuck() != 0 {
			t.Errorf("given back %v, %d calls stuck", given, c.Stuck())
		}
	})
}

func TestAnAnswerIsPassedOn(t *testing.T) {
	inBubble(t, func(t *testing.T, c *Calls) {
		own := errors.New("own")
		if err := c.Do(t.Context(), Call{Run: func() error { return own }, Last: func() {}}); !errors.Is(err, own) {
			t.Errorf("%v", err)
		}
		if err := c.Release("", func() error { return own }); !errors.Is(err, own) || c.Late() != 0 {
			t.Errorf("%v, %d late", err, c.Late())
		}
	})
}
