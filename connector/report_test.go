package connector

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
)

func TestReportCarriesWhatWasSeen(t *testing.T) {
	f, _, m := opened(t)
	asked := make(chan wire.ReportRequest, 1)
	f.on(wire.OpReport, func(r *request) {
		q := decode[wire.ReportRequest](r)
		asked <- *q
		r.reply(&wire.ReportReply{Off: q.Off})
	})
	off, err := m.Report(background, &Report{Compared: 9, Failed: 2, Worst: math.Inf(1), Bound: 0.5, Off: true, Text: "no number"})
	if err != nil || !off {
		t.Fatal(off, err)
	}
	want := wire.ReportRequest{Profile: 7, Compared: 9, Failed: 2, Worst: math.Inf(1), Bound: 0.5, Off: 1, Text: "no number"}
	if got := <-asked; !reflect.DeepEqual(got, want) {
		t.Errorf("sent %+v, want %+v", got, want)
	}
	if off, err := m.Report(background, &Report{Compared: 1}); err != nil || off {
		t.Fatal(off, err)
	}
	<-asked
	for _, bad := range []Report{
		{Compared: 1, Failed: 2}, {Compared: -1}, {Worst: math.NaN()}, {Bound: math.NaN()}, {Bound: math.Inf(1)},
		{Worst: -1}, {Text: strings.Repeat("x", wire.MaxErrorText+1)}, {Losses: make([]LossCounts, 3)},
	} {
		if _, err := m.Report(background, &bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if n := len(asked); n != 0 {
		t.Errorf("%d bad reports were sent", n)
	}
}
