package trace

import (
	"bytes"
	"fmt"
	"strconv"
	"time"
)

// integers reads a comma-separated line of whole numbers. Each number must be from 0 to the
// bound most. integers appends the numbers to out and returns out.
func integers(out []int, line []byte, most int) ([]int, error) {
	for i := 0; ; i++ {
		field, rest, more := bytes.Cut(line, []byte{','})
		n, err := integer(field, 0, most)
		if err != nil {
			return out, fmt.Errorf("field %d: %w", i+1, err)
		}
		out = append(out, n)
		if line = rest; !more {
			return out, nil
		}
	}
}

func integer(field []byte, least, most int) (int, error) {
	n, err := strconv.ParseInt(string(field), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q is no whole number", field)
	}
	if n < int64(least) || n > int64(most) {
		return 0, fmt.Errorf("%d is not %d to %d", n, least, most)
	}
	return int(n), nil
}

// signedFields reads exactly n whole numbers, which may be negative.
func signedFields(line []byte, n int) ([]int, error) {
	fields := bytes.Split(line, []byte{','})
	if len(fields) != n {
		return nil, fmt.Errorf("%d fields, want %d", len(fields), n)
	}
	out := make([]int, n)
	for i, f := range fields {
		var err error
		if out[i], err = integer(f, -1, maxTokens); err != nil {
			return nil, fmt.Errorf("field %d: %w", i+1, err)
		}
	}
	return out, nil
}

// mostSeconds is about 30 years. Larger values cannot be times since the start of a trace.
const mostSeconds = 1e9

// seconds converts a time v, in units of unit seconds, to a duration.
func seconds(v, unit float64) (time.Duration, error) {
	s := v * unit
	if !(s >= 0 && s <= mostSeconds) {
		return 0, fmt.Errorf("time %g is not 0 to %g", v, mostSeconds/unit)
	}
	return time.Duration(s * float64(time.Second)), nil
}
