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
		t.Errorf("%v s of processor time used", used.CPU)
	}
	if err := WritesCounted(); err != nil {
		t.Skip(err)
	}
	other, err := UsageOf(os.Getpid())
	if own := OwnUsage(); err != nil || other.CPU > own.CPU+0.1 || other.CPU < own.CPU-0.1 {
		t.Errorf("%v s by the process id, %v s of our own: %v", other.CPU, own.CPU, err)
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

func TestEffortIsThatOfAllThreads(t *testing.T) {
	const status = "Name:\ta: b\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n"
	if n := switches(status); n != 42 {
		t.Errorf("%v switches of 42", n)
	}
	before, err := EffortOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i := range 2_000_000 {
		sum += math.Sqrt(float64(i))
	}
	after, err := EffortOf(os.Getpid())
	if spent := after.Since(before); err != nil || spent.CPU <= 0 || after.Switches <= 0 || sum == 0 {
		t.Errorf("%v s and %v switches so far, %v s for some arithmetic: %v", after.CPU, after.Switches, spent.CPU, err)
	}
	if e, err := EffortOf(1 << 22); err == nil {
		t.Errorf("%v s of a process that is not there", e.CPU)
	}
}
