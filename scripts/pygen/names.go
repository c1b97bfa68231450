package pygen

import (
	"go/ast"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// pythonNames has the names in Python that do not follow from those in Go.
var pythonNames = map[string]string{
	"Rotate": "rotate_launches", "Compose": "compose_launches", "Buffer": "buffer_launches", "Attend": "attend_launches",
	"From": "origin", "Type": "dtype", "TType": "t_dtype", "SType": "s_dtype", "QType": "q_dtype", "Rotation": "turn",
}

// reserved has words that are not names in Python, and builtins that generated code calls.
var reserved = strings.Fields("all any as bytes class def del from in is lambda len max min next pass range")

var capital = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)

// snake returns the name of a variable, field, function or method.
func snake(name string) string {
	if known, ok := pythonNames[name]; ok {
		return known
	}
	name = strings.ToLower(capital.ReplaceAllString(name, "${1}${3}_$2$4"))
	if slices.Contains(reserved, name) {
		name += "_"
	}
	return name
}

// upper returns the name of a constant.
func upper(name string) string { return strings.ToUpper(snake(name)) }

// class returns the name of a type.
func class(name string) string {
	switch name {
	case "Rotation":
		return "Turn"
	case "RowRotation":
		return "RowTurns"
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

var basics = map[types.BasicInfo]string{types.IsBoolean: "bool", types.IsInteger: "int", types.IsFloat: "float", types.IsString: "str"}

func annotation(t types.Type) string {
	switch u := types.Unalias(t).(type) {
	case *types.Pointer:
		if foreign(u.Elem()) {
			return annotation(u.Elem()) + " | None"
		}
		return annotation(u.Elem())
	case *types.Slice:
		return "Sequence[" + annotation(u.Elem()) + "]"
	case *types.Map: // its keys are bytes
		return "dict[bytes, " + annotation(u.Elem()) + "]"
	case *types.Named:
		if isNumber(u) && !foreign(u) {
			return "int"
		}
		return class(u.Obj().Name())
	case *types.Basic:
		return basics[u.Info()&^types.IsUnsigned]
	}
	panic("pygen: no annotation for " + t.String())
}

var zeros = map[string]string{"bool": "False", "int": "0", "float": "0.0", "str": `""`, "DType": "DType.NONE", "Transition": "Transition.NONE"}

// zero returns the zero value of a type.
func zero(t types.Type) string {
	switch u := types.Unalias(t).(type) {
	case *types.Pointer:
		return "None"
	case *types.Slice:
		return "[]"
	case *types.Map:
		return "{}"
	default:
		name := annotation(u)
		if value, ok := zeros[name]; ok {
			return value
		}
		return name + "()"
	}
}

// foreign reports whether a type is declared outside package kernels. Structs of such types are
// never changed.
func foreign(t types.Type) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Pkg().Name() != "kernels"
}

func isStruct(t types.Type) bool {
	_, ok := t.Underlying().(*types.Struct)
	return ok && !foreign(t)
}

func isNumber(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsInteger != 0
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

func isName(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}
