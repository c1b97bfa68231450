package machine

import (
	"math"
	"os"
	"testing"
)

func TestUsageIsReadFromProc(t *testing.T) {
	const io = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 4096\ncancelled_write_bytes: 7\n"
	if n, err := writeBytes(io); err != nil || n != 4096 {
		t.Errorf("%d: %v", n, err)
	}
	if n, err := writeBytes("cancelled_write_bytes: 7\n"); err == nil {
		t.Errorf("%d of a text without it", n)
	}
	const stat = "42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9"
	if s, err := cpuSeconds(stat); err != nil || s != 2 {
		t.Errorf("%v s: %v", s, err)
	}
	for _, bad := range []string{"", "42 (a) S 1 2", "42 (a) S 1 2 3 4 5 6 7 8 9 10 x y 0"} {
		if s, err := cpuSeconds(bad); err == nil {
			t.Errorf("%q: %v s", bad, s)
		}
	}
}

func TestUsageGrowsAndIsThatOfTheProcessAsked(t *testing.T) {
	before := OwnUsage()
	sum := 0.0
	for i := range 20_000_000 {
		sum += math.Sqrt(float64(i))
	}
	used := OwnUsage().Since(before)
	if used.CPU <= 0 || sum == 0 {
		t.Errorf("%+v", used)
	}
	if err := WritesCounted(); err != nil {
		t.Skip(err)
	}
	other, err := UsageOf(os.Getpid())
	if own := OwnUsage(); err != nil || other.CPU > own.CPU+0.1 || other.CPU < own.CPU-0.1 {
		t.Errorf("%+v beside %+v: %v", other, own, err)
	}
	if _, err := UsageOf(-1); err == nil {
		t.Error("process -1 has used something")
	}
}

func TestUsageIsStatedByPayload(t *testing.T) {
	u := Usage{CPU: 3, Written: 2_100_000_000}.Since(Usage{CPU: 2, Written: 100_000_000})
	if got := u.CPUPerGB(2_000_000_000); got != 0.5 {
		t.Errorf("%v s/GB", got)
	}
	if got := u.Amplification(1_000_000_000); got != 2 {
		t.Errorf("written %v times", got)
	}
}
