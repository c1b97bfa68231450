//go:build amd64

package codec

import "github.com/spliced-kv/spliced/gpuipc/kernel"

func split(p *planes, src []byte, dt kernel.DType) { splitGeneric(p, src, dt) }
func join(dst []byte, p *planes, dt kernel.DType)  { joinGeneric(dst, p, dt) }
