package disk

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Pages of any size, one after another, are all entries in order, once each.
func TestListPages(t *testing.T) {
	s := newShelf(t)
	lower := s.openOK(onMem(s.config(), vfs.NewMem()))
	things := append(segments(1, 17), chain(50, 5, tenantB)...)
	for _, w := range things {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	for _, limit := range []int{1, 2, 5, 22, 100} {
		var got []tier.Name
		var after *tier.Name
		for {
			page := lower.List(Filter{}, after, limit)
			if len(page) == 0 {
				break
			}
			for i := range page {
				got = append(got, page[i].Name)
			}
			after = &got[len(got)-1]
		}
		sorted := slices.IsSortedFunc(got, func(a, b tier.Name) int { return compareNames(&a, &b) })
		if len(got) != len(things) || !sorted {
			t.Errorf("limit %d: %d entries, in order: %v", limit, len(got), sorted)
		}
	}
	b := tenantB
	if page := lower.List(Filter{Tenant: &b}, nil, 100); len(page) != 5 || page[0].TenantName != "b" || page[0].Model != "small" {
		t.Errorf("%+v", page)
	}
	key := things[3].name()
	prefix := "0123456789abcdef"[key.Key[0]>>4 : key.Key[0]>>4+1]
	for _, i := range lower.List(Filter{Prefix: prefix}, nil, 100) {
		if i.Key[0]>>4 != key.Key[0]>>4 {
			t.Errorf("%x begins with another digit than %s", i.Key, prefix)
		}
	}
	if lower.List(Filter{}, nil, 0) != nil {
		t.Error("a page of none is not empty")
	}
}

// A detail tells the token ids and digests that were given at admission.
func TestDetail(t *testing.T) {
	s := newShelf(t)
	lower := s.openOK(onMem(s.config(), vfs.NewMem()))
	w := segments(7, 1)[0]
	s.mustWrite(lower.Tier, w, tier.LevelLogged)
	d, err := lower.Detail(context.Background(), w.name())
	must(t, err)
	if len(d.Manifest.Tokens) != w.tokens || d.Manifest.Tokens[3] != 10 || len(d.Runs) == 0 || d.Manifest.Tenant != "a" {
		t.Errorf("%+v", d)
	}
	if _, err := lower.Detail(context.Background(), segments(8, 1)[0].name()); !errors.Is(err, tier.ErrGone) {
		t.Errorf("of what is not there: %v", err)
	}
}
