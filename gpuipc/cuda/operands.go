package cuda

import (
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// operands gives kernels one address for each object. Objects that straddle
// extents are gathered into scratch before the kernels run, and results that do
// are copied to their places afterwards.
type operands struct {
	lane *lane
	out  []pending
}

// pending is a result in scratch.
type pending struct {
	to object
	at driver.DevicePtr
}

// read is the address of what a kernel reads; 0 when it is absent or empty.
func (p *operands) read(r gpuipc.Ref) (uint64, error) {
	o := objectOf(r)
	if o.one() {
		return uint64(o.at()), nil
	}
	p.lane.dev.gathered.Add(1)
	at, err := p.lane.gather(o)
	return uint64(at), err
}

// write is the address that a kernel writes to.
func (p *operands) write(r gpuipc.Ref) (uint64, error) {
	o := objectOf(r)
	if o.one() {
		return uint64(o.at()), nil
	}
	p.lane.dev.gathered.Add(1)
	at, err := p.lane.scratch.take(p.lane, o.n)
	p.out = append(p.out, pending{o, at})
	return uint64(at), err
}

// update is the address of what a kernel reads and writes.
func (p *operands) update(r gpuipc.Ref) (uint64, error) {
	o := objectOf(r)
	if o.one() {
		return uint64(o.at()), nil
	}
	p.lane.dev.gathered.Add(1)
	at, err := p.lane.gather(o)
	p.out = append(p.out, pending{o, at})
	return uint64(at), err
}

// scatter enqueues the copies of results to their places.
func (p *operands) scatter() error {
	for _, o := range p.out {
		if err := p.lane.copyRuns(o.to, object{[]run{{o.at, o.to.n}}, o.to.n}); err != nil {
			return err
		}
	}
	p.out = p.out[:0]
	return nil
}
