package driver

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Options of the compiler in the driver (CUjit_option).
const (
	jitErrorLog      = 5
	jitErrorLogBytes = 6
	jitLogRoom       = 8 << 10
)

// ModuleLoad compiles PTX (or loads a cubin) for the device of the current context. If that
// fails, the error has the compiler's log. Compiling can take seconds, unless the result is
// cached in CUDA_CACHE_PATH.
func (a *API) ModuleLoad(image []byte) (Module, error) {
	// The driver finds the end of PTX by its zero byte.
	text := append(bytes.Clone(image), 0)
	log := make([]byte, jitLogRoom)
	options := [2]int32{jitErrorLog, jitErrorLogBytes}
	values := new([2]uintptr)
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&log[0])
	values[0], values[1] = uintptr(unsafe.Pointer(&log[0])), jitLogRoom

	var m Module
	r := call(a.moduleLoadDataEx, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&text[0])),
		uintptr(len(options)), uintptr(unsafe.Pointer(&options)), uintptr(unsafe.Pointer(values)))
	err := fail("cuModuleLoadDataEx", r)
	if e, ok := errors.AsType[*Error](err); ok {
		said, _, _ := bytes.Cut(log, []byte{0})
		e.Detail = string(bytes.TrimSpace(said))
	}
	return m, err
}

// ModuleUnload unloads a module. None of its kernels may be running.
func (a *API) ModuleUnload(m Module) error {
	return fail("cuModuleUnload", call(a.moduleUnload, uintptr(m)))
}

// ModuleFunction finds a kernel by its name in the module.
func (a *API) ModuleFunction(m Module, name string) (Function, error) {
	text := append([]byte(name), 0)
	var f Function
	r := call(a.moduleGetFunction, uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(&text[0])))
	if r != Success {
		return 0, &Error{Call: "cuModuleGetFunction", Result: r, Detail: name}
	}
	return f, nil
}

const maxDynamicShared = 8 // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

// FunctionMaxDynamicShared allows launches of f to request up to size bytes of dynamic
// shared memory. Launches that request more than 48 KiB need this.
func (a *API) FunctionMaxDynamicShared(f Function, size int) error {
	return fail("cuFuncSetAttribute", call(a.funcSetAttribute, uintptr(f), maxDynamicShared, uintptr(size)))
}

const maxThreads = 0 // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK

// FunctionLoad lets the driver load f now. Otherwise the driver loads it at the first
// launch, which then may wait until all work of the context has ended.
func (a *API) FunctionLoad(f Function) error {
	var n int32
	return fail("cuFuncGetAttribute", call(a.funcGetAttribute, uintptr(unsafe.Pointer(&n)), maxThreads, uintptr(f)))
}

// Keys of the "extra" list of a launch (CU_LAUNCH_PARAM_...).
const (
	launchEnd    = 0
	launchBuffer = 1
	launchSize   = 2
)

// launchFrame has what the driver reads during one launch. The driver copies the arguments
// before it returns.
type launchFrame struct {
	extra [5]uintptr
	size  uintptr
	args  [MaxLaunchBytes]byte
}

var launchFrames = sync.Pool{New: func() any { return new(launchFrame) }}

// Launch enqueues a kernel. The parameter grid is a number of blocks, block is a number of
// threads, and shared is the number of bytes of dynamic shared memory. The slice args has
// the kernel's parameters in the layout of C and at most MaxLaunchBytes bytes. Its bytes
// are copied before Launch returns.
func (a *API) Launch(f Function, grid, block [3]uint32, shared uint32, s Stream, args []byte) error {
	if len(args) > MaxLaunchBytes {
		return &Error{
			Call: "cuLaunchKernel", Result: InvalidValue,
			Detail: fmt.Sprintf("%d bytes of arguments, at most %d", len(args), MaxLaunchBytes),
		}
	}
	fr := launchFrames.Get().(*launchFrame)
	defer launchFrames.Put(fr)
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(fr)

	fr.size = uintptr(copy(fr.args[:], args))
	fr.extra = [5]uintptr{
		launchBuffer, uintptr(unsafe.Pointer(&fr.args)),
		launchSize, uintptr(unsafe.Pointer(&fr.size)), launchEnd,
	}
	r := call(a.launchKernel, uintptr(f),
		uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]),
		uintptr(block[0]), uintptr(block[1]), uintptr(block[2]),
		uintptr(shared), uintptr(s), 0, uintptr(unsafe.Pointer(&fr.extra)))
	return fail("cuLaunchKernel", r)
}
