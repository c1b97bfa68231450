package metric

import (
	"fmt"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

func TestValuesPastTheBoundShareARow(t *testing.T) {
	v := NewValues(3)
	for i := range 5 {
		want := fmt.Sprint("v", i)
		if i >= 3 {
			want = Other
		}
		if got := v.Of(fmt.Sprint("v", i)); got != want {
			t.Errorf("value %d is %q, want %q", i, got, want)
		}
	}
	if got := v.Of("v1"); got != "v1" {
		t.Errorf("a value that was there is %q", got)
	}
}

// A server that knows no native histograms reads the classic buckets of the same one.
func TestDurationsHaveNativeAndClassicBuckets(t *testing.T) {
	h := Durations{Name: "x_seconds", Help: "X."}.New()
	for _, seconds := range []float64{0.00015, 0.0012, 0.0013, 3} {
		h.Observe(seconds)
	}
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		t.Fatal(err)
	}
	got := m.Histogram
	if got.GetSampleCount() != 4 || got.GetSchema() < 3 || len(got.PositiveSpan) == 0 {
		t.Errorf("%d samples, schema %d, %d spans", got.GetSampleCount(), got.GetSchema(), len(got.PositiveSpan))
	}
	for _, b := range got.Bucket {
		if b.GetUpperBound() == 0.002 && b.GetCumulativeCount() != 3 {
			t.Errorf("%d samples under 2 ms, want 3", b.GetCumulativeCount())
		}
	}
	if len(got.Bucket) != len(lengthBuckets) {
		t.Errorf("%d classic buckets, want %d", len(got.Bucket), len(lengthBuckets))
	}
}
