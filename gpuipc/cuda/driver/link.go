//go:build linux && (amd64 || arm64) && !nocuda

package driver

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// Built reports whether this binary can load a driver.
const Built = true

func open(path string) (uintptr, error) {
	// The loader opens any file. A FIFO would block it forever, and all other loads too. If
	// path is a name without a slash, the loader searches for it.
	if strings.Contains(path, "/") {
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		if !info.Mode().IsRegular() {
			return 0, fmt.Errorf("%s is no regular file (%v)", path, info.Mode().Type())
		}
	}
	runtime.LockOSThread() // the loader keeps the reason of a failure per thread
	defer runtime.UnlockOSThread()
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), path+": "))
	}
	return lib, nil
}

func symbol(lib uintptr, name string) (uintptr, error) { return purego.Dlsym(lib, name) }

// call calls a C function that takes integers and pointers. The directive moves the Go
// memory to which args point off the stack, and keeps this memory until call returns.
//
//go:uintptrescapes
func call(fn uintptr, args ...uintptr) Result {
	r, _, _ := purego.SyscallN(fn, args...)
	return Result(int32(r))
}

// bind sets the Go functions for those C functions that take a struct by value. Each
// processor's calling convention passes such structs in a different way.
func (s *symbols) bind() {
	purego.RegisterFunc(&s.ipcOpenMemHandle, s.rawIPCOpenMemHandle)
	purego.RegisterFunc(&s.ipcOpenEventHandle, s.rawIPCOpenEventHandle)
}
