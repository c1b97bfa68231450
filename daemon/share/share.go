// Package share divides a bounded list among several writers, so that no writer displaces the
// entries of another.
package share

import "slices"

// Merge returns up to limit entries of several lists, taken from the beginning of each. It takes
// short lists completely, and equally many entries from each longer list.
func Merge[T any](lists [][]T, limit int) []T {
	slices.SortFunc(lists, func(a, b []T) int { return len(a) - len(b) })
	var all []T
	for i, list := range lists {
		most := (limit - len(all)) / (len(lists) - i)
		all = append(all, list[:min(len(list), max(0, most))]...)
	}
	return all
}
