package api

import (
	"errors"
	"strings"
	"testing"
)

func TestDigestTextRoundTrips(t *testing.T) {
	want := Digest{0: 0xab, 31: 0x01}
	text, err := want.MarshalText()
	if err != nil || len(text) != 64 {
		t.Fatalf("marshal: %q, %v", text, err)
	}
	var got Digest
	if err := got.UnmarshalText(text); err != nil || got != want {
		t.Fatalf("unmarshal: %v, %v", got, err)
	}
	for _, bad := range []string{"", "ab", strings.Repeat("g", 64), string(text) + "0"} {
		if err := got.UnmarshalText([]byte(bad)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v, want ErrInvalid", bad, err)
		}
	}
}

func TestSegmentQueryMatchesByEachFilter(t *testing.T) {
	key := Digest{0: 0xab, 1: 0xcd}
	one, two := uint32(1), uint32(2)
	rows := []struct {
		name string
		q    SegmentQuery
		want bool
	}{
		{"no filter", SegmentQuery{}, true},
		{"tenant", SegmentQuery{Tenant: "a"}, true},
		{"other tenant", SegmentQuery{Tenant: "b"}, false},
		{"profile", SegmentQuery{Profile: &one}, true},
		{"other profile", SegmentQuery{Profile: &two}, false},
		{"even prefix", SegmentQuery{Prefix: "abcd"}, true},
		{"odd prefix", SegmentQuery{Prefix: "abc"}, true},
		{"wrong odd digit", SegmentQuery{Prefix: "abd"}, false},
		{"wrong even digit", SegmentQuery{Prefix: "bb"}, false},
		{"whole key", SegmentQuery{Prefix: key.String()}, true},
		{"longer than a key", SegmentQuery{Prefix: key.String() + "0"}, false},
	}
	for _, r := range rows {
		if got := r.q.Match(key, "a", 1); got != r.want {
			t.Errorf("%s: %v, want %v", r.name, got, r.want)
		}
	}
}
