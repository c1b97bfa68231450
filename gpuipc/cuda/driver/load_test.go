package driver

import (
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc"
)

func TestNoDriverIsUnavailable(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/nowhere/libcuda.so.1": "no GPU driver: stat /nowhere/libcuda.so.1: no such file or directory",
		"libnowhere.so.1":       "no GPU driver: libnowhere.so.1: cannot open shared object file",
		fifo:                    "no regular file",
		t.TempDir():             "no regular file",
		"libc.so.6":             "libc.so.6 has no cuInit",
	} {
		if !Built {
			want = "nocuda"
		}
		api, err := Load(path)
		if api != nil || !errors.Is(err, gpuipc.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a word of %q", path, err, want)
		}
	}
}

// A function that is not looked up would be called at address 0.
func TestEachFunctionIsLookedUp(t *testing.T) {
	var s symbols
	addresses := 0
	fields := reflect.TypeFor[symbols]()
	for i := range fields.NumField() {
		if fields.Field(i).Type.Kind() == reflect.Uintptr {
			addresses++
		}
	}
	names, places := map[string]bool{}, map[*uintptr]bool{}
	for _, f := range s.table() {
		names[f.name], places[f.to] = true, true
	}
	if len(names) != addresses || len(places) != addresses {
		t.Errorf("%d addresses, %d names, %d places", addresses, len(names), len(places))
	}
}

// cuda.h: CUmemAllocationProp, CUmemAccessDesc and the handles.
func TestStructsAreTheDriversSize(t *testing.T) {
	for name, c := range map[string][2]uintptr{
		"CUmemAllocationProp": {unsafe.Sizeof(memProperties{}), 32},
		"CUmemAccessDesc":     {unsafe.Sizeof(memAccess{}), 12},
		"CUipcMemHandle":      {unsafe.Sizeof(ipcHandle{}), IPCHandleBytes},
		"flags of it":         {unsafe.Offsetof(memProperties{}.flags), 24},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %d bytes, want %d", name, c[0], c[1])
		}
	}
}
