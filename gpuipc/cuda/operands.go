package cuda

import (
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// operands gives kernels one address for each object. Objects with several addresses are
// gathered into scratch memory before the kernels run. Results for objects with several
// addresses go to scratch memory, and are copied to their places afterwards.
type operands struct {
	lane *lane
	out  []pending // results in scratch memory
}

// pending is a result in scratch memory: its address, and the object to which it will be
// copied.
type pending struct {
	to object
	at driver.DevicePtr
}

// read returns the address from which a kernel reads r; 0 if r is absent or empty.
func (p *operands) read(r gpuipc.Ref) (uint64, error) { return p.address(r, true, false) }

// write returns the address to which a kernel writes r.
func (p *operands) write(r gpuipc.Ref) (uint64, error) { return p.address(r, false, true) }

// update returns the address at which a kernel reads and writes r.
func (p *operands) update(r gpuipc.Ref) (uint64, error) { return p.address(r, true, true) }

func (p *operands) address(r gpuipc.Ref, read, write bool) (uint64, error) {
	o := objectOf(r)
	if o.one() {
		return uint64(o.at()), nil
	}
	p.lane.dev.gathered.Add(1)
	at, err := p.lane.scratch.take(p.lane, o.n)
	if err == nil && read {
		err = p.lane.copyRuns(object{[]run{{at, o.n}}, o.n}, o)
	}
	if write {
		p.out = append(p.out, pending{o, at})
	}
	return uint64(at), err
}

// scatter enqueues the copies of the pending results to their places.
func (p *operands) scatter() error {
	for _, o := range p.out {
		if err := p.lane.copyRuns(o.to, object{[]run{{o.at, o.to.n}}, o.to.n}); err != nil {
			return err
		}
	}
	p.out = p.out[:0]
	return nil
}
