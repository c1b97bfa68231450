package driver

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

func TestErrorsReadAsCallNumberAndName(t *testing.T) {
	err := fmt.Errorf("region of 3 bytes: %w", &Error{Call: "cuMemAlloc_v2", Result: OutOfMemory})
	if got, want := err.Error(), "region of 3 bytes: cuMemAlloc_v2: 2 CUDA_ERROR_OUT_OF_MEMORY"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !errors.Is(err, OutOfMemory) || errors.Is(err, InvalidValue) {
		t.Error("errors.Is does not see the result")
	}
	if e, ok := errors.AsType[*Error](err); !ok || e.Call != "cuMemAlloc_v2" {
		t.Errorf("as *Error: %v", e)
	}
	withLog := &Error{Call: "cuModuleLoadDataEx", Result: InvalidPTX, Detail: "line 3"}
	if got, want := withLog.Error(), "cuModuleLoadDataEx: 218 CUDA_ERROR_INVALID_PTX: line 3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Result(4711).Error(); !strings.Contains(got, "4711") || !strings.Contains(got, "newer") {
		t.Errorf("a result that is not in the table reads %q", got)
	}
	if fail("cuInit", Success) != nil {
		t.Error("success is an error")
	}
}

// Constants without a row would read as results of a newer driver.
func TestEachNamedResultIsInTheTable(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "results.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if number, ok := spec.Values[0].(*ast.BasicLit); ok && number.Kind == token.INT {
			v, err := strconv.Atoi(number.Value)
			if _, known := results[Result(v)]; err != nil || !known {
				t.Errorf("%s = %s is not in the table", spec.Names[0], number.Value)
			}
			seen++
		}
		return true
	})
	if seen < 30 {
		t.Errorf("%d constants found", seen)
	}
}

func TestTheTableIsOneToOne(t *testing.T) {
	names := map[string]Result{}
	for r, row := range results {
		if r != Success && !strings.HasPrefix(row.name, "CUDA_ERROR_") {
			t.Errorf("%d is called %q", r, row.name)
		}
		if other, twice := names[row.name]; twice {
			t.Errorf("%d and %d are both %s", r, other, row.name)
		}
		names[row.name] = r
		if row.remedy != "" && (!strings.HasSuffix(row.remedy, ".") || strings.Contains(row.remedy, "\n")) {
			t.Errorf("%d: %q is no sentence on one line", r, row.remedy)
		}
	}
	if len(results) < 100 {
		t.Errorf("%d rows", len(results))
	}
}

func TestWhatUsersMeetHasARemedy(t *testing.T) {
	for _, r := range []Result{
		InvalidValue, OutOfMemory, DeviceUnavailable, NoDevice, InvalidDevice, InvalidContext,
		MapFailed, NoBinary, UnsupportedPTX, OperatingSystem, InvalidHandle, IllegalAddress, LaunchFailed,
		NotPermitted, NotSupported, SystemNotReady, DriverMismatch, 805, Unknown,
	} {
		if r.Remedy() == "" {
			t.Errorf("%v: no remedy", r)
		}
	}
	// A lost context is told in the remedy of each result that loses it.
	for r := range results {
		if r.Sticky() && r.Doubtful() {
			t.Errorf("%v is certain and doubtful", r)
		}
		if (r.Sticky() || r == Unknown) != strings.HasSuffix(r.Remedy(), newProcess) {
			t.Errorf("%v: sticky is %v, remedy is %q", r, r.Sticky(), r.Remedy())
		}
	}
}
