//go:build linux && (amd64 || arm64) && !nocuda

package driver

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// Built says whether this binary can load a driver.
const Built = true

func open(path string) (uintptr, error) {
	// The loader opens any file: a FIFO would block it forever, and with it
	// all other loads. It searches for a name without a slash itself.
	if strings.Contains(path, "/") {
		info, err := os.Stat(path)
		if err != nil {
			return 0, fmt.Errorf("load: %w", err)
		}
		if !info.Mode().IsRegular() {
			return 0, fmt.Errorf("load %s: it is no regular file (%v)", path, info.Mode().Type())
		}
	}
	runtime.LockOSThread() // the loader keeps the reason of a failure for the thread
	defer runtime.UnlockOSThread()
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, fmt.Errorf("load %s: %w", path, err)
	}
	return lib, nil
}

func symbol(lib uintptr, name string) (uintptr, error) { return purego.Dlsym(lib, name) }

// call calls a C function of integers and pointers. The directive moves what the
// pointers among args point to off the stack and keeps it until call returns.
//
//go:uintptrescapes
func call(fn uintptr, args ...uintptr) Result {
	r, _, _ := purego.SyscallN(fn, args...)
	return Result(int32(r))
}

// bind makes the functions that take a struct by value, which each processor's
// calling convention passes in its own way.
func (s *symbols) bind() {
	purego.RegisterFunc(&s.ipcOpenMemHandle, s.rawIPCOpenMemHandle)
	purego.RegisterFunc(&s.ipcOpenEventHandle, s.rawIPCOpenEventHandle)
}
