package show

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Types of a table's cells. A cell may also have any type that fmt prints. Sorting compares
// values, not texts.
type (
	// Size is a number of bytes.
	Size int64
	// Millis is a time in milliseconds.
	Millis float64
	// Duration is a time that may be long.
	Duration time.Duration
	// Share is a fraction; NaN = unknown.
	Share float64
	// Count is a number with thousands separators, as 12,345.
	Count uint64
	// Age is the time since an event.
	Age struct{ At, Now time.Time }
	// State is a word with a colour if it means that something is well or not.
	State string
)

// ShareOf returns part/of, or an unknown Share if of is zero.
func ShareOf(part, of float64) Share {
	if of <= 0 {
		return Share(math.NaN())
	}
	return Share(part / of)
}

// LongMillis returns a time in milliseconds that may be long.
func LongMillis(millis float64) Duration { return Duration(millis * float64(time.Millisecond)) }

func (n Size) String() string { return Bytes(int64(n)) }

func (m Millis) String() string {
	if m >= 1000 {
		return fmt.Sprintf("%.2f s", float64(m)/1000)
	}
	return fmt.Sprintf("%.1f ms", float64(m))
}

func (d Duration) String() string { return Long(time.Duration(d)) }

func (s Share) String() string {
	if math.IsNaN(float64(s)) {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(s))
}

func (n Count) String() string {
	digits := fmt.Sprint(uint64(n))
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// Number formats a value with three significant digits, without an exponent: 5,650, 12.3, 0.0457.
// For a positive value below a millionth it returns "< 0.000001".
func Number(v float64) string {
	if v < 0 {
		return "-" + Number(-v)
	}
	switch {
	case math.IsNaN(v) || v > 1e18:
		return fmt.Sprint(v)
	case v >= 100:
		return Count(math.Round(v)).String()
	case v == 0:
		return "0"
	case v < 1e-6:
		return "< 0.000001"
	}
	decimals := min(6, 2-int(math.Floor(math.Log10(v))))
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

func (a Age) String() string {
	if a.At.IsZero() {
		return "-"
	}
	d := a.Now.Sub(a.At)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Bytes formats a size: 1.5 MiB.
func Bytes(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return fmt.Sprintf("%.4g %ciB", v, units[i])
}

// Long formats a time: 350 ms, 12.5 s, 3 min, 2.4 h.
func Long(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.1f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	}
	return fmt.Sprintf("%.1f days", d.Hours()/24)
}

// number returns the numeric value of a cell.
func number(cell any) (float64, bool) {
	switch v := cell.(type) {
	case Size:
		return float64(v), true
	case Millis:
		return float64(v), true
	case Duration:
		return float64(v), true
	case Share:
		return float64(v), true
	case Count:
		return float64(v), true
	case Age: // older means greater
		if v.At.IsZero() {
			return math.Inf(1), true
		}
		return v.Now.Sub(v.At).Seconds(), true
	case int:
		return float64(v), true
	case int32:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint32:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// compare orders cells of one column: numbers before text.
func compare(a, b any) int {
	x, ok := number(a)
	y, also := number(b)
	switch {
	case ok && also:
		return cmp.Compare(x, y)
	case ok:
		return -1
	case also:
		return 1
	}
	return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
}
