package pygen

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"strings"
)

// Strength of expressions in Python by their operators. Weaker operands need parentheses.
const (
	negation   = 3
	comparison = 4
	bitAnd     = 6
	sign       = 10
	atom       = 11
)

var strengths = map[token.Token]int{
	token.LOR: 1, token.LAND: 2, token.OR: 5, token.AND: bitAnd, token.SHL: 7, token.SHR: 7,
	token.EQL: comparison, token.NEQ: comparison, token.LSS: comparison, token.LEQ: comparison, token.GTR: comparison, token.GEQ: comparison,
	token.ADD: 8, token.SUB: 8, token.MUL: 9, token.QUO: 9, token.REM: 9,
}

// operators have other names in Python.
var operators = map[token.Token]string{token.LOR: "or", token.LAND: "and", token.QUO: "//"}

// library has functions of other packages.
var library = map[string]struct {
	format   string
	strength int
}{
	"slices.Max": {"max(%s)", atom}, "slices.Chunk": {"chunks(%s, %s)", atom}, "slices.Reverse": {"%s.reverse()", atom},
	"slices.Equal": {"%s == %s", comparison}, "slices.ContainsFunc": {"any(%[2]s in %[1]s)", atom}, "kernel.PackedHeader": {"packed_header(%s)", atom},
}

func (t *translator) expr(e ast.Expr) string {
	text, _ := t.strong(e)
	return text
}

func (t *translator) list(all []ast.Expr) string {
	parts := make([]string, len(all))
	for i, e := range all {
		parts[i] = t.expr(e)
	}
	return strings.Join(parts, ", ")
}

// operand returns an expression of at least the given strength.
func (t *translator) operand(e ast.Expr, strength int) string {
	text, own := t.strong(e)
	if own < strength {
		return "(" + text + ")"
	}
	return text
}

// strong returns an expression and its strength.
func (t *translator) strong(e ast.Expr) (string, int) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return t.strong(e.X)
	case *ast.StarExpr:
		return t.strong(e.X)
	case *ast.BasicLit:
		return e.Value, atom
	case *ast.Ident:
		return t.name(e), atom
	case *ast.SelectorExpr:
		if s, ok := t.info.Selections[e]; ok {
			return t.operand(e.X, atom) + embedded(s) + "." + snake(e.Sel.Name), atom
		}
		return t.name(e.Sel), atom
	case *ast.UnaryExpr:
		switch e.Op {
		case token.AND:
			return t.strong(e.X)
		case token.NOT:
			return "not " + t.operand(e.X, negation), negation
		case token.SUB:
			return "-" + t.operand(e.X, sign), sign
		}
	case *ast.BinaryExpr:
		return t.binary(e)
	case *ast.IndexExpr:
		return t.operand(e.X, atom) + "[" + t.expr(e.Index) + "]", atom
	case *ast.SliceExpr:
		low, high := "", ""
		if e.Low != nil {
			low = t.expr(e.Low)
		}
		if e.High != nil {
			high = t.expr(e.High)
		}
		return t.operand(e.X, atom) + "[" + low + ":" + high + "]", atom
	case *ast.CompositeLit:
		return t.composite(e), atom
	case *ast.KeyValueExpr:
		return snake(e.Key.(*ast.Ident).Name) + "=" + t.expr(e.Value), atom
	case *ast.FuncLit: // a predicate
		return t.list(e.Body.List[0].(*ast.ReturnStmt).Results) + " for " + e.Type.Params.List[0].Names[0].Name, atom
	case *ast.CallExpr:
		return t.call(e)
	}
	panic(t.unsupported(e))
}

func (t *translator) binary(e *ast.BinaryExpr) (string, int) {
	strength, ok := strengths[e.Op]
	if !ok {
		panic(t.unsupported(e))
	}
	text, left := e.Op.String(), strength
	if other, ok := operators[e.Op]; ok {
		text = other
	}
	if isName(e.Y, "nil") {
		text = map[token.Token]string{token.EQL: "is", token.NEQ: "is not"}[e.Op]
	}
	if left == comparison { // a < b < c has another meaning
		left++
	}
	return t.operand(e.X, left) + " " + text + " " + t.operand(e.Y, strength+1), strength
}

// name returns a name, or the value of a constant of another package.
func (t *translator) name(id *ast.Ident) string {
	obj := t.info.ObjectOf(id)
	global := obj.Parent() == t.pkg.Scope()
	switch o := obj.(type) {
	case *types.Nil:
		return "None"
	case *types.Const:
		switch {
		case o.Pkg() == nil: // true, false
			return strings.ToUpper(id.Name[:1]) + id.Name[1:]
		case foreign(o.Type()):
			return annotation(o.Type()) + "." + strings.ToUpper(id.Name)
		case global:
			t.constants[o] = true
		case o.Pkg() != t.pkg && o.Val().Kind() == constant.Float:
			v, _ := constant.Float64Val(o.Val())
			return fmt.Sprint(v)
		case o.Pkg() != t.pkg:
			return o.Val().ExactString()
		}
	}
	switch _, function := obj.(*types.Func); {
	case obj == t.self:
		return "self"
	case global && !function:
		return upper(id.Name)
	}
	return snake(id.Name)
}

// embedded returns the names of the embedded fields on the way to a field or method.
func embedded(s *types.Selection) string {
	path, at := "", s.Recv()
	for _, i := range s.Index()[:len(s.Index())-1] {
		if p, ok := at.Underlying().(*types.Pointer); ok {
			at = p.Elem()
		}
		f := at.Underlying().(*types.Struct).Field(i)
		path, at = path+"."+snake(f.Name()), f.Type()
	}
	return path
}

func (t *translator) composite(e *ast.CompositeLit) string {
	all := t.list(e.Elts)
	switch u := t.info.TypeOf(e); u.Underlying().(type) {
	case *types.Slice:
		return "[" + all + "]"
	case *types.Array:
		return "(" + all + ")"
	default:
		return annotation(u) + "(" + all + ")"
	}
}

func (t *translator) call(e *ast.CallExpr) (string, int) {
	switch {
	case t.info.Types[e.Fun].IsType():
		return t.conversion(e)
	case isName(e.Fun, "make"):
		return t.makes(e), atom
	}
	arguments := t.list(e.Args)
	if e.Ellipsis.IsValid() {
		arguments = "*" + arguments // only one is passed so
	}
	if f, ok := e.Fun.(*ast.Ident); ok {
		switch f.Name {
		case "append":
			return "[*" + arguments + "]", atom
		case "len", "max", "min":
			return f.Name + "(" + arguments + ")", atom
		}
		return snake(f.Name) + "(" + arguments + ")", atom
	}
	f := e.Fun.(*ast.SelectorExpr)
	if s, ok := t.info.Selections[f]; ok {
		return t.method(f, s, arguments), atom
	}
	name := f.X.(*ast.Ident).Name + "." + f.Sel.Name
	if known, ok := library[name]; ok {
		parts := make([]any, len(e.Args))
		for i, a := range e.Args {
			parts[i] = t.operand(a, comparison+1)
		}
		return fmt.Sprintf(known.format, parts...), known.strength
	}
	if name == "fmt.Sprintf" {
		return t.format(e), atom
	}
	panic(t.unsupported(e))
}

// conversion translates conversions between numbers, which change nothing except to float32 and of
// negative numbers, and from bytes to the key of a map.
func (t *translator) conversion(e *ast.CallExpr) (string, int) {
	kind := func(e ast.Expr) types.BasicKind {
		if b, ok := t.info.TypeOf(e).Underlying().(*types.Basic); ok {
			return b.Kind()
		}
		return types.Invalid
	}
	switch to, from := kind(e), kind(e.Args[0]); {
	case to == types.String:
		return "bytes(" + t.expr(e.Args[0]) + ")", atom
	case to == types.Float32, to == types.Float64 && from == types.Float32:
		return "single(" + t.expr(e.Args[0]) + ")", atom
	case to == types.Uint32 && from == types.Int32:
		return t.operand(e.Args[0], bitAnd) + " & 0xFFFFFFFF", bitAnd
	}
	return t.strong(e.Args[0])
}

func (t *translator) makes(e *ast.CallExpr) string {
	switch u := t.info.TypeOf(e).(type) {
	case *types.Slice:
		return "[" + zero(u.Elem()) + " for _ in range(" + t.expr(e.Args[1]) + ")]"
	case *types.Named: // bytes
		return annotation(u) + "(" + t.expr(e.Args[1]) + ")"
	}
	return zero(t.info.TypeOf(e))
}

func (t *translator) method(f *ast.SelectorExpr, s *types.Selection, arguments string) string {
	at, name, of := t.operand(f.X, atom), snake(f.Sel.Name), s.Recv()
	switch {
	case isNumber(of) && foreign(of): // DType.Size
		return at + "." + name
	case isNumber(of):
		return snake(of.(*types.Named).Obj().Name()) + "_" + name + "(" + strings.TrimSuffix(at+", "+arguments, ", ") + ")"
	}
	return at + embedded(s) + "." + name + "(" + arguments + ")"
}

var verb = regexp.MustCompile(`(: )?%(#x|[a-z])`)

// format translates a format and its arguments. The kind of an error is dropped, since it is always
// ErrInvalid, and an error that is wrapped is the one of the surrounding except.
func (t *translator) format(e *ast.CallExpr) string {
	args := e.Args[1:]
	text := verb.ReplaceAllStringFunc(e.Args[0].(*ast.BasicLit).Value, func(v string) string {
		arg := t.expr(args[0])
		args = args[1:]
		before, v, _ := strings.Cut(v, "%")
		switch {
		case arg == "err":
			return before + "{err.text}"
		case v == "w":
			return ""
		case v == "#x":
			return before + "{" + arg + ":#x}"
		}
		return before + "{" + arg + "}"
	})
	if strings.Contains(text, "{") {
		return "f" + text
	}
	return text
}
