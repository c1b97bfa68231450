// Command kernels writes the amd64 assembly of gpuipc/kernel, of tiering/disk/codec and of
// scripts/lab/refengine/enginekernel, and the Go declarations for it: one pair of files per
// instruction set. `go generate` in those packages runs it; builds need only its output.
package main

import (
	"fmt"
	"go/token"
	"go/types"
	"log"
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/gotypes"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
	"github.com/mmcloughlin/avo/reg"
)

// gen builds one file: kernels for one instruction set.
type gen struct {
	*build.Context
	isa   string // suffix of the name of every function
	lanes int    // F32 numbers in a vector

	upTable   operand.Mem // for a byte shuffle that shifts 32-bit numbers up by 16
	byteTable operand.Mem // for a byte shuffle that transposes 4x4 bytes
}

// vector returns a new vector register; half returns one of half the width.
func (g *gen) vector() reg.VecVirtual {
	if g.lanes == 16 {
		return g.ZMM()
	}
	return g.YMM()
}

func (g *gen) half() reg.VecVirtual {
	if g.lanes == 16 {
		return g.YMM()
	}
	return g.XMM()
}

// vectorBytes returns the size of a vector of F32.
func (g *gen) vectorBytes() int { return 4 * g.lanes }

// begin starts a function, and the method end ends it. The function is declared noescape: it
// must not keep its pointer arguments. Go neither frees nor moves the memory that they point to
// while the function runs.
func (g *gen) begin(name, signature string, doc ...string) {
	g.Function(name + g.isa)
	g.Attributes(nosplit)
	g.Pragma("noescape")
	s, err := gotypes.ParseSignatureInPackage(kernel, signature)
	if err != nil {
		log.Fatal(err)
	}
	g.Signature(s)
	doc[0] = name + g.isa + " " + doc[0]
	g.Doc(doc...)
}

func (g *gen) end() {
	g.VZEROUPPER()
	g.RET()
}

func (g *gen) arg(name string) reg.GPVirtual {
	return g.Load(g.Param(name), g.GP64()).(reg.GPVirtual)
}

// broadcastArg fills a vector with an F32 argument.
func (g *gen) broadcastArg(name string) reg.VecVirtual {
	a, err := g.Param(name).Resolve()
	if err != nil {
		log.Fatal(err)
	}
	v := g.vector()
	g.VBROADCASTSS(a.Addr, v)
	return v
}

// Flags of textflag.h: nosplit = no stack check; rodata = read-only data without pointers.
const nosplit, rodata = 4, 8 | 16

// kernel represents the generated package: signatures may name these types.
var kernel = func() *types.Package {
	p := types.NewPackage("kernel", "kernel")
	for _, s := range []string{"tile", "turning"} {
		name := types.NewTypeName(token.NoPos, p, s, nil)
		types.NewNamed(name, types.NewStruct(nil, nil), nil)
		p.Scope().Insert(name)
	}
	return p
}()

func at(base reg.Register, disp int) operand.Mem { return operand.Mem{Base: base, Disp: disp} }

func indexed(base, index reg.Register, scale uint8, disp int) operand.Mem {
	return operand.Mem{Base: base, Index: index, Scale: scale, Disp: disp}
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: kernels FOLDER")
	}
	folder, err := filepath.Abs(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	writeInto, ok := packages[filepath.Base(folder)]
	if !ok {
		log.Fatalf("no kernels for a package in %s", folder)
	}
	if err := writeInto(folder); err != nil {
		log.Fatal(err)
	}
}

// packages are the generated packages, by the name of their folder.
var packages = map[string]func(folder string) error{"kernel": generate, "codec": generatePlanes, "enginekernel": generateEngine}

func generate(folder string) error {
	avx2 := &gen{Context: build.NewContext(), isa: "AVX2", lanes: 8}
	avx2.peak(12)
	avx2.products(6, 4, 2, 1)
	avx2.transpose()
	avx512 := &gen{Context: build.NewContext(), isa: "AVX512", lanes: 16}
	avx512.peak(24)
	avx512.products(12, 8, 4, 2, 1)
	return writeBoth("kernel", folder, avx2, avx512, func(g *gen) {
		g.conversions()
		g.states()
		g.axpy()
		g.rotations()
		g.replay(false)
		g.replay(true)
		g.forms()
	})
}

// generateEngine writes what the laboratory's reference engine decodes with.
func generateEngine(folder string) error {
	avx2 := &gen{Context: build.NewContext(), isa: "AVX2", lanes: 8}
	avx512 := &gen{Context: build.NewContext(), isa: "AVX512", lanes: 16}
	return writeBoth("enginekernel", folder, avx2, avx512, (*gen).buffers)
}

// writeBoth adds the functions that both instruction sets have, and writes a package's files.
func writeBoth(pkg, folder string, avx2, avx512 *gen, common func(*gen)) error {
	for name, g := range map[string]*gen{"avx2_amd64": avx2, "avx512_amd64": avx512} {
		common(g)
		if err := write(g.Context, pkg, filepath.Join(folder, name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// write writes NAME.s and NAME.go.
func write(c *build.Context, pkg, name string) error {
	file, err := c.Result()
	if err != nil {
		return err
	}
	if err := pass.Compile.Execute(file); err != nil {
		return err
	}
	cfg := printer.Config{Name: "scripts/kernels", Pkg: pkg}
	for ext, p := range map[string]printer.Printer{".s": printer.NewGoAsm(cfg), ".go": printer.NewStubs(cfg)} {
		text, err := p.Print(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name+ext, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
