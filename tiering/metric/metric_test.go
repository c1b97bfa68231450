package metric

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

type inner struct {
	Copies uint64    `count:"copies" prom:"copies" help:"Copies."`
	Left   [3]uint64 `count:"left_{room,,operator}" prom:"left_total,tier=hbm,reason=room|-|person"`
}

type sample struct {
	Pool      string        `label:"pool"`
	Published atomic.Uint64 `count:"published" prom:"published_total" help:"Objects published."`
	Left      [2]uint64     `count:"left_{room,quota}_total" prom:"left_total,tier=dram,reason=*" help:"Objects that left."`
	Demoted   uint64        `count:"demoted" prom:"demoted_total" help:"Objects demoted." part:"disk"`
	Bytes     int64         `prom:"bytes" help:"Bytes."`
	Share     float64       `prom:"share" help:"A share."`
	Listed    uint64        `count:"listed"`
	unnamed   uint64
	HBM       inner `count:"hbm_" part:"hbm"`
}

func filled() *sample {
	c := &sample{Pool: "public", Left: [2]uint64{2, 3}, Demoted: 4, Bytes: 1 << 62, Share: 0.5, Listed: 1<<64 - 1, unnamed: 9}
	c.Published.Store(1)
	c.HBM = inner{Copies: 5, Left: [3]uint64{6, 7, 8}}
	return c
}

func TestCountersAreListedInTheOrderOfTheirFields(t *testing.T) {
	var got []string
	Each(filled(), func(name string, n uint64) { got = append(got, fmt.Sprintf("%s %d", name, n)) })
	want := []string{"published 1", "left_room_total 2", "left_quota_total 3", "demoted 4", "listed 18446744073709551615",
		"hbm_copies 5", "hbm_left_room 6", "hbm_left_operator 8"}
	if !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
}

func TestSeriesOfPartsThatAreThere(t *testing.T) {
	for part, want := range map[string][]string{
		"": {"published_total[public] 1", "left_total[public dram room] 2", "left_total[public dram quota] 3", "bytes[public] 4.611686018427388e+18", "share[public] 0.5"},
		"hbm": {"published_total[public] 1", "left_total[public dram room] 2", "left_total[public dram quota] 3", "bytes[public] 4.611686018427388e+18", "share[public] 0.5",
			"copies[public] 5", "left_total[public hbm room] 6", "left_total[public hbm person] 8"},
	} {
		var got []string
		EachSeries(filled(), func(p string) bool { return p == part }, func(family string, values []string, v float64) {
			got = append(got, fmt.Sprint(family, values, " ", v))
		})
		if !slices.Equal(got, want) {
			t.Errorf("with part %q: %q, want %q", part, got, want)
		}
	}
}

type toldElsewhere struct {
	Listed uint64 `count:"listed" prom:"listed_total" help:"Listed."`
}

func TestAnEmbeddedStructMayBeInListingsOnly(t *testing.T) {
	c := struct {
		toldElsewhere `prom:"-"`
		Here          uint64 `count:"here" prom:"here_total" help:"Here."`
	}{toldElsewhere{1}, 2}
	var listed, told []string
	Each(&c, func(name string, n uint64) { listed = append(listed, fmt.Sprintf("%s %d", name, n)) })
	EachSeries(&c, func(string) bool { return true }, func(family string, _ []string, v float64) { told = append(told, fmt.Sprintf("%s %g", family, v)) })
	if !slices.Equal(listed, []string{"listed 1", "here 2"}) || !slices.Equal(told, []string{"here_total 2"}) || len(Families(c)) != 1 {
		t.Errorf("listed %q, told %q, %d families", listed, told, len(Families(c)))
	}
}

func TestFamiliesHaveOneHelpAndOneListOfLabels(t *testing.T) {
	for _, f := range Families(sample{}) {
		if f.Help == "" || f.Labels[0] != "pool" {
			t.Errorf("%s: help %q, labels %q", f.Name, f.Help, f.Labels)
		}
	}
	for text, c := range map[string]any{
		"has no help": struct {
			A uint64 `prom:"a"`
		}{},
		"two helps": struct {
			A uint64 `prom:"a,x=1" help:"A."`
			B uint64 `prom:"a,x=2" help:"B."`
		}{},
		"has labels": struct {
			A uint64 `prom:"a,x=1" help:"A."`
			B uint64 `prom:"a,y=2"`
		}{},
		"names 1 of 2 elements": struct {
			A [2]uint64 `count:"a_{x}" prom:"a,x=*" help:"A."`
		}{},
		`label "x"`: struct {
			A uint64 `prom:"a,x" help:"A."`
		}{},
	} {
		t.Run(text, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, text) {
					t.Errorf("panicked with %s", got)
				}
			}()
			Families(c)
		})
	}
}
