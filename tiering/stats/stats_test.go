package stats

import (
	"reflect"
	"testing"

	"github.com/spliced-kv/spliced/tiering/metric"
)

// Whatever is counted on devices is in their sum.
func TestDevicesAddUp(t *testing.T) {
	var one, sum HBM
	next := uint64(1)
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		case reflect.Array:
			for i := range v.Len() {
				fill(v.Index(i))
			}
		default:
			v.SetUint(next)
			next++
		}
	}
	fill(reflect.ValueOf(&one).Elem())
	sum.Add(&one)
	if sum != one {
		t.Errorf("added to nothing: %+v, want %+v", sum, one)
	}
	sum.Add(&one)
	got := map[string]uint64{}
	metric.Each(&sum, func(name string, n uint64) { got[name] = n })
	metric.Each(&one, func(name string, n uint64) {
		if got[name] != 2*n {
			t.Errorf("%s: %d, want %d", name, got[name], 2*n)
		}
	})
}
