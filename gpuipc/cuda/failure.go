package cuda

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// lostError is the failure after which the device refuses all operations.
type lostError struct{ err error }

// Lost reports whether the device refuses all operations. The error of one call does not
// show this, because a working device may also refuse memory that a client hands over.
func (d *device) Lost() bool { return d.lost.Load() != nil }

// gone returns ErrUnavailable if the device is lost, else nil.
func (d *device) gone() error {
	if l := d.lost.Load(); l != nil {
		return fmt.Errorf("cuda: the device was lost to %w; restart the daemon: %w", l.err, gpuipc.ErrUnavailable)
	}
	return nil
}

// The method fail turns an error of the driver into one of the errors of package gpuipc,
// and notices when the device is lost. It returns nil for nil. An error that already is one
// of package gpuipc is returned unchanged.
func (d *device) fail(err error) error {
	return d.failed(err, func(r driver.Result) bool { return r.Sticky() || r.Doubtful() && !d.answers() })
}

// failForeign does the same as the method fail, for errors of calls on memory of another
// process. The result of such a call alone does not show that the device is lost. Clients
// choose what they hand over, and one client must not take the device from all others.
func (d *device) failForeign(err error) error {
	return d.failed(err, func(r driver.Result) bool { return (r.Sticky() || r.Doubtful()) && !d.answers() })
}

func (d *device) failed(err error, lost func(driver.Result) bool) error {
	var result driver.Result
	if err == nil || !errors.As(err, &result) || kinded(err) {
		return err
	}
	if d.lost.Load() == nil && lost(result) && d.lost.CompareAndSwap(nil, &lostError{err}) {
		d.options.Log(fmt.Sprintf("cuda: %s (%s) is lost: %v", d.info.Name, d.info.UUID, err))
	}
	if result == driver.OutOfMemory {
		return fmt.Errorf("%w: %w", err, gpuipc.ErrFull)
	}
	return unavailable(err)
}

// The method answers makes a harmless call of the driver and reports whether the context
// still works. If the context is lost, this call fails too, or the context cannot be made
// current any more.
func (d *device) answers() bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := d.api.ContextSetCurrent(d.context)
	if err == nil {
		_, _, err = d.api.MemInfo()
	}
	var result driver.Result
	return !errors.As(err, &result) || !result.Sticky() && !result.Doubtful()
}

func kinded(err error) bool {
	return errors.Is(err, gpuipc.ErrUnavailable) || errors.Is(err, gpuipc.ErrFull) || errors.Is(err, gpuipc.ErrInvalid)
}

// unavailable wraps a failure of the driver in ErrUnavailable. It adds the remedy if one is
// known.
func unavailable(err error) error {
	var result driver.Result
	if errors.As(err, &result) && result.Remedy() != "" {
		return fmt.Errorf("cuda: %w (%s): %w", err, result.Remedy(), gpuipc.ErrUnavailable)
	}
	return fmt.Errorf("cuda: %w: %w", err, gpuipc.ErrUnavailable)
}
