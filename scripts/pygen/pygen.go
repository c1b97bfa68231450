// Package pygen translates the functions that turn jobs into launches from Go to Python, so that
// clients launch what the daemon launches.
//
// It knows the part of Go that these functions use, and panics with the position of anything else.
// Numbers become Python's, so sums must not wrap around, and only numbers that are not negative may
// be divided. Structs become dataclasses. Values of structs are references too, and are copied only
// where they are assigned to a variable. Errors become exceptions.
package pygen

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// translated has the files that are translated. What they use of the files in written is written
// again in launch.py, except for constants.
var (
	translated = []string{"tables.go", "rotate.go", "compose.go", "buffer.go", "attend.go"}
	written    = []string{"kernels.go", "words.go"}
)

const header = `# Code generated from gpuipc/cuda/kernels by pygen; DO NOT EDIT.
# fmt: off
# ruff: noqa
# mypy: ignore-errors
"""Functions that turn jobs into launches: %s of gpuipc/cuda/kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spliced_connector.errors import Code, SplicedError
from spliced_connector.gpu.launch import Addresses, Launch, RowTurns, Turn, Words, chunks, single
from spliced_connector.model import DType, Transition, packed_header
`

type translator struct {
	fset      *token.FileSet
	info      types.Info
	pkg       *types.Package
	out       strings.Builder
	indent    int
	self      types.Object // the receiver of the current method
	results   *types.Tuple // of the current function
	methods   map[string][]*ast.FuncDecl
	nilable   map[types.Object]bool // what is compared with nil
	fields    map[string]bool       // names of fields
	constants map[*types.Const]bool // that were used
}

// Translate returns the Python module for package kernels, which is in the folder dir.
func Translate(dir string) ([]byte, error) {
	t := &translator{
		fset: token.NewFileSet(), info: types.Info{
			Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
			Selections: map[*ast.SelectorExpr]*types.Selection{},
		},
		methods: map[string][]*ast.FuncDecl{}, nilable: map[types.Object]bool{}, fields: map[string]bool{}, constants: map[*types.Const]bool{},
	}
	var files []*ast.File
	for _, name := range slices.Concat(translated, written) {
		f, err := parser.ParseFile(t.fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: importer.ForCompiler(t.fset, "source", nil)}
	var err error
	if t.pkg, err = conf.Check("kernels", t.fset, files, &t.info); err != nil {
		return nil, err
	}
	files = files[:len(translated)]
	for _, f := range files {
		ast.Inspect(f, t.look)
	}
	for _, f := range files {
		for _, d := range f.Decls {
			t.declaration(d)
		}
	}
	body := t.out.String()
	t.out.Reset()
	t.line(header, strings.Join(translated, ", "))
	for _, c := range slices.SortedFunc(maps.Keys(t.constants), func(a, b *types.Const) int { return int(a.Pos() - b.Pos()) }) {
		t.line("%s = %s", upper(c.Name()), c.Val().ExactString())
	}
	return []byte(t.out.String() + body), nil
}

// look collects methods, names of fields, and what is compared with nil.
func (t *translator) look(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Recv != nil {
			of := named(n.Recv.List[0].Type)
			t.methods[of] = append(t.methods[of], n)
		}
	case *ast.BinaryExpr:
		if s, ok := n.X.(*ast.SelectorExpr); ok && isName(n.Y, "nil") {
			t.nilable[t.info.ObjectOf(s.Sel)] = true
		}
	case *ast.StructType:
		for _, f := range n.Fields.List {
			for _, id := range f.Names {
				t.fields[id.Name] = true
			}
		}
	}
	return true
}

// named returns the name of a type, or of the type that a pointer points to.
func named(e ast.Expr) string {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	return e.(*ast.Ident).Name
}

func (t *translator) declaration(d ast.Decl) {
	if fn, ok := d.(*ast.FuncDecl); ok {
		if fn.Recv == nil {
			t.function(fn, snake(fn.Name.Name), nil)
		}
		return
	}
	for _, spec := range d.(*ast.GenDecl).Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			st, ok := s.Type.(*ast.StructType)
			if ok {
				t.line("\n\n@dataclass(slots=True)\nclass %s:", class(s.Name.Name))
				t.indent++
				t.docstring(s.Name.Name, d.(*ast.GenDecl).Doc)
				t.members(st)
			}
			for _, m := range t.methods[s.Name.Name] {
				self := m.Recv.List[0].Names[0]
				if ok {
					t.self = t.info.Defs[self]
					t.function(m, snake(m.Name.Name), []string{"self"})
				} else { // a number has no methods
					t.function(m, snake(s.Name.Name+"_"+m.Name.Name), []string{self.Name + ": int"})
				}
			}
			t.indent = 0
		case *ast.ValueSpec:
			if d.(*ast.GenDecl).Tok == token.VAR {
				t.line("\n%s = %s", upper(s.Names[0].Name), t.expr(s.Values[0]))
			}
		}
	}
}

func (t *translator) members(st *ast.StructType) {
	for _, f := range st.Fields.List {
		names, note := f.Names, ""
		if len(names) == 0 {
			names = []*ast.Ident{{Name: named(f.Type)}}
		}
		if f.Doc != nil {
			t.line("# %s", t.prose(strings.ReplaceAll(strings.TrimSpace(f.Doc.Text()), "\n", "\n    # ")))
		}
		if f.Comment != nil {
			note = "  # " + t.prose(strings.TrimSpace(f.Comment.Text()))
		}
		of := t.info.TypeOf(f.Type)
		for _, id := range names {
			kind, value := annotation(of), zero(of)
			switch {
			case value == "[]" && t.nilable[t.info.Defs[id]]:
				kind, value = kind+" | None", "None"
			case value == "[]" && id.IsExported(): // nothing is appended to it
				value = "()"
			case strings.ContainsAny(value, "([{"):
				value = "field(default_factory=lambda: " + value + ")"
			}
			t.line("%s: %s = %s%s", snake(id.Name), kind, value, note)
		}
	}
}

func (t *translator) function(d *ast.FuncDecl, name string, parameters []string) {
	signature := t.info.Defs[d.Name].Type().(*types.Signature)
	t.results = signature.Results()
	for p := range signature.Params().Variables() {
		parameters = append(parameters, snake(p.Name())+": "+annotation(p.Type()))
	}
	var results []string
	for r := range t.results.Variables() {
		if !isError(r.Type()) {
			results = append(results, annotation(r.Type()))
		}
	}
	result := strings.Join(results, ", ")
	switch len(results) {
	case 0:
		result = "None"
	case 2, 3:
		result = "tuple[" + result + "]"
	}
	t.line("%sdef %s(%s) -> %s:", strings.Repeat("\n", 2-t.indent), name, strings.Join(parameters, ", "), result)
	t.indent++
	t.docstring(d.Name.Name, d.Doc)
	for r := range t.results.Variables() {
		if r.Name() != "" {
			t.line("%s = %s", snake(r.Name()), zero(r.Type()))
		}
	}
	t.indent--
	t.block(d.Body.List)
}

// docstring writes the comment of a type or function without the name that begins it.
func (t *translator) docstring(name string, doc *ast.CommentGroup) {
	if doc == nil {
		return
	}
	text := strings.ReplaceAll(strings.TrimSpace(doc.Text()), "\t", "    ")
	for _, before := range []string{"The method ", name + " ", "is "} {
		text = strings.TrimPrefix(text, before)
	}
	text = t.prose(strings.ToUpper(text[:1]) + text[1:])
	if strings.Contains(text, "\n") {
		text += "\n"
	}
	margin := "\n" + strings.Repeat("    ", t.indent)
	t.line(`"""%s"""`, strings.ReplaceAll(strings.ReplaceAll(text, "\n", margin), margin+"\n", "\n\n"))
}

var word = regexp.MustCompile(`(kernel\.|gpuipc\.)?\w+`)

// prose returns a comment with the names that its subjects have in Python.
func (t *translator) prose(text string) string {
	return word.ReplaceAllStringFunc(text, func(w string) string {
		switch t.pkg.Scope().Lookup(w).(type) {
		case *types.Const, *types.Var:
			return upper(w)
		case *types.Func:
			return snake(w)
		}
		switch {
		case w == "nil":
			return "None"
		case t.fields[w]:
			return snake(w)
		}
		return w
	})
}

// line writes a line, or several whose later ones are indented.
func (t *translator) line(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if t.indent > 0 {
		rest := strings.TrimLeft(text, "\n")
		text = text[:len(text)-len(rest)] + strings.Repeat("    ", t.indent) + rest
	}
	t.out.WriteString(text + "\n")
}

func (t *translator) unsupported(n ast.Node) string {
	return fmt.Sprintf("pygen: %s: %T has no translation", t.fset.Position(n.Pos()), n)
}
