package gpucheck

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// onFake is a check of the fake driver, whose kernels are those of the device.
func onFake(t *testing.T) Options {
	t.Helper()
	lib := fakecuda.Open(t)
	for _, v := range (fakecuda.Setup{}).Env(lib.Path) {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	t.Setenv(childEnv, "1")
	return Options{Library: lib.Path, Seed: 7, Sizes: Small(), Self: []string{os.Args[0]}, Commit: "test", Total: 2 * StandardTime}
}

func run(t *testing.T, o Options) *Report {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 4*time.Minute)
	defer stop()
	r, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// timedRow tells rows whose figures mean nothing on a CPU.
func timedRow(row *Row) bool {
	return row.Unit == "GB/s" || row.Unit == "us" || row.Unit == "1/s"
}

func TestEveryCheckRunsOnTheFakeDriver(t *testing.T) {
	r := run(t, onFake(t))
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Skipped && !strings.HasSuffix(row.Name, ".py") {
			t.Errorf("%s was skipped: %s", row.Name, row.Note)
		}
		if !row.OK && !row.Skipped && !timedRow(row) {
			t.Errorf("%s: %v %s, %s", row.Name, row.Value, row.Unit, row.Note)
		}
		if timedRow(row) && row.Value <= 0 && row.Unit != "us" {
			t.Errorf("%s: %v %s", row.Name, row.Value, row.Unit)
		}
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil || len(back.Rows) != len(r.Rows) {
		t.Fatalf("%d of %d rows come back: %v", len(back.Rows), len(r.Rows), err)
	}
	var table strings.Builder
	if err := r.Table(&table); err != nil {
		t.Fatal(err)
	}
	t.Log(table.String())
	for i := range r.Rows {
		want := 1
		if row := &r.Rows[i]; !row.OK && !row.Skipped {
			want = 2 // again at the end
		}
		if n := strings.Count(table.String(), r.Rows[i].Name+"  "); n < want {
			t.Errorf("%d lines of %q, want %d", n, r.Rows[i].Name, want)
		}
	}
}

func TestACheckThatFailsIsARowAndTheOthersGoOn(t *testing.T) {
	o := onFake(t)
	wrong := errors.New("wrong answer")
	after := false
	o.Also = []Part{
		{"fails", time.Minute, func(context.Context, *Report) error { return wrong }},
		{"follows", time.Minute, func(_ context.Context, r *Report) error { after = true; return nil }},
	}
	o.Only = []string{"fails", "follows"}
	o.Self = nil
	r := run(t, o)
	if r.OK() || !after {
		t.Errorf("report is fine: %v, the last check ran: %v", r.OK(), after)
	}
	found := false
	for i := range r.Rows {
		found = found || r.Rows[i].Name == "fails" && !r.Rows[i].OK && r.Rows[i].Note == wrong.Error()
	}
	if !found {
		t.Error("no row tells of the failure")
	}
}

func TestWrongResultsAreFound(t *testing.T) {
	o := onFake(t)
	o.Self = nil
	lib := fakecuda.Open(t)
	// Compose is refused once: its check must say so.
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuLaunchKernel", Nth: 1, Value: 1})
	if r := run(t, o); r.OK() {
		t.Error("a launch failed and the report is fine")
	}
}

func TestWithoutADriverThereIsNothingToCheck(t *testing.T) {
	_, err := Run(context.Background(), Options{Library: "/nonexistent/libcuda.so.1", Sizes: Small()})
	if !errors.Is(err, gpuipc.ErrUnavailable) {
		t.Errorf("got %v, want unavailable", err)
	}
}

// Only is given by a command line that separates names by commas.
func TestNoPartsNameHasAComma(t *testing.T) {
	for _, p := range (&check{}).own() {
		if strings.Contains(p.Name, ",") {
			t.Errorf("part %q", p.Name)
		}
	}
}
