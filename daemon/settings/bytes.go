package settings

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a number of bytes. As text, it is a number with an optional unit: B, KiB, MiB, GiB, TiB,
// or the decimal kB, MB, GB, TB.
type Bytes int64

// The binary units.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// byteUnits is in the order in which Set and String try the units. A unit that is the end of
// another one, such as B, comes after it.
var byteUnits = [...]struct {
	name string
	size Bytes
}{
	{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// String returns the exact amount in the largest binary unit that divides b.
func (b Bytes) String() string {
	for _, u := range byteUnits[:4] {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// Rounded returns the amount in its largest binary unit, with at most one decimal.
func (b Bytes) Rounded() string {
	for _, u := range byteUnits[:4] {
		if b >= u.size {
			return strconv.FormatFloat(math.Round(float64(b)/float64(u.size)*10)/10, 'f', -1, 64) + u.name
		}
	}
	return b.String()
}

// Set implements flag.Value. If it returns an error, b is unchanged.
func (b *Bytes) Set(text string) error {
	number, unit := strings.TrimSpace(text), Bytes(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(number, u.name); ok {
			number, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	// Whole numbers are parsed first, since a float64 would round large ones.
	if whole, err := strconv.ParseInt(number, 10, 64); err == nil && whole >= 0 && whole <= math.MaxInt64/int64(unit) {
		*b = Bytes(whole) * unit
		return nil
	}
	v, err := strconv.ParseFloat(number, 64)
	total := v * float64(unit)
	// The condition tests for the valid range, since NaN fails every comparison.
	if err != nil || !(total >= 0 && total < math.MaxInt64) || strings.ContainsAny(number, "eExXpP_iInN") {
		return fmt.Errorf("%q is not an amount of bytes such as 65536, 64KiB or 1.5GiB", text)
	}
	*b = Bytes(total)
	return nil
}
