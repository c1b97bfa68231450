package main

import (
	"errors"
	"flag"
	"iter"
	"testing"
	"time"
)

func testFlags() (*flag.FlagSet, *int) {
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	return fs, fs.Int("x", 0, "")
}

func TestSizesReadWell(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 30: "1 GiB", 5<<40 + 1<<39: "5.5 TiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestAgesReadWell(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{5 * time.Second: "5s", 90 * time.Second: "1m", 47 * time.Hour: "47h", 49 * time.Hour: "2d"} {
		if got := ageText(now.Add(-d), now); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	if got := ageText(time.Time{}, now); got != "-" {
		t.Errorf("never: %q", got)
	}
}

func TestTakeStopsAtItsLimitAndAtErrors(t *testing.T) {
	numbers := func(n int, end error) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range n {
				if !yield(i, nil) {
					return
				}
			}
			if end != nil {
				yield(0, end)
			}
		}
	}
	rows := []struct {
		n, limit, want int
		more           bool
	}{{5, 0, 5, false}, {5, 5, 5, false}, {5, 4, 4, true}, {0, 3, 0, false}}
	for _, r := range rows {
		got, more, err := take(numbers(r.n, nil), r.limit)
		if err != nil || len(got) != r.want || got == nil || more != r.more {
			t.Errorf("%+v: %v more=%v %v", r, got, more, err)
		}
	}
	broken := errors.New("broken")
	if _, _, err := take(numbers(2, broken), 5); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
