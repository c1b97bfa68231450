package share

import (
	"slices"
	"strings"
	"testing"
)

func TestNoListPushesOthersOut(t *testing.T) {
	for _, row := range []struct {
		lists string // by spaces; each letter is an entry
		limit int
		want  string
	}{
		{"", 5, ""},
		{"aaaaaaaa", 5, "aaaaa"},
		{"aaaaaaaa b", 5, "aaaab"},
		{"aaaaaaaa bbbbbbbb", 6, "aaabbb"},
		{"aaaaaaaa bbbbbbbb c", 6, "aabbbc"},
		{"aa bb", 10, "aabb"},
		{"aaaa bbbb cccc", 2, "bc"},
	} {
		var lists [][]string
		for part := range strings.FieldsSeq(row.lists) {
			lists = append(lists, strings.Split(part, ""))
		}
		got := Merge(lists, row.limit)
		slices.Sort(got)
		if s := strings.Join(got, ""); len(s) != len(row.want) || row.limit > 2 && s != row.want {
			t.Errorf("%q of %q, want %q", s, row.lists, row.want)
		}
	}
}
