package pygen

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

func (t *translator) block(list []ast.Stmt) {
	t.indent++
	if len(list) == 0 {
		t.line("pass")
	}
	for i := 0; i < len(list); i++ {
		if a, ok := list[i].(*ast.AssignStmt); ok && isName(a.Lhs[len(a.Lhs)-1], "err") {
			i++
			t.guarded(a, list[i].(*ast.IfStmt))
			continue
		}
		t.stmt(list[i])
	}
	t.indent--
}

func (t *translator) stmt(s ast.Stmt) {
	switch s := s.(type) {
	case *ast.AssignStmt:
		t.assign(s)
	case *ast.DeclStmt:
		t.declare(s.Decl.(*ast.GenDecl))
	case *ast.ExprStmt:
		t.line("%s", t.expr(s.X))
	case *ast.IncDecStmt:
		t.line("%s %s= 1", t.expr(s.X), s.Tok.String()[:1])
	case *ast.BranchStmt:
		t.line("%s", s.Tok)
	case *ast.ReturnStmt:
		t.returns(s)
	case *ast.IfStmt:
		t.branch(s)
	case *ast.SwitchStmt:
		t.choose(s)
	case *ast.RangeStmt:
		t.line("for %s:", t.ranges(s))
		t.block(s.Body.List)
	case *ast.ForStmt:
		t.loop(s)
	default:
		panic(t.unsupported(s))
	}
}

func (t *translator) declare(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		for i, id := range v.Names {
			if len(v.Values) > 0 {
				t.line("%s = %s", snake(id.Name), t.expr(v.Values[i]))
			} else {
				t.line("%s = %s", snake(id.Name), zero(t.info.TypeOf(v.Type)))
			}
		}
	}
}

func (t *translator) assign(s *ast.AssignStmt) {
	to := t.list(s.Lhs)
	switch op := s.Tok.String(); op {
	case "=", ":=":
	case "/=":
		t.line("%s //= %s", to, t.expr(s.Rhs[0]))
		return
	default:
		t.line("%s %s %s", to, op, t.expr(s.Rhs[0]))
		return
	}
	if call, ok := s.Rhs[0].(*ast.CallExpr); ok && isName(call.Fun, "append") && t.expr(call.Args[0]) == to {
		if call.Ellipsis.IsValid() {
			t.line("%s += %s", to, t.expr(call.Args[1]))
		} else {
			t.line("%s.append(%s)", to, t.expr(call.Args[1]))
		}
		return
	}
	if at, ok := s.Rhs[0].(*ast.IndexExpr); ok && len(s.Lhs) == 2 && len(s.Rhs) == 1 { // of a map
		m, key := t.expr(at.X), t.expr(at.Index)
		t.line("%s = %s.get(%s), %s in %s", to, m, key, key, m)
		return
	}
	right := make([]string, len(s.Rhs))
	for i, e := range s.Rhs {
		right[i] = t.copied(e)
		if isName(e, "nil") {
			right[i] = zero(t.info.TypeOf(s.Lhs[i]))
		}
	}
	t.line("%s = %s", to, strings.Join(right, ", "))
}

// copied returns the value of an expression that is assigned to a variable: a copy if it is a
// struct that others refer to.
func (t *translator) copied(e ast.Expr) string {
	text, of := t.expr(e), t.info.TypeOf(e)
	switch e.(type) {
	case *ast.Ident, *ast.SelectorExpr, *ast.IndexExpr, *ast.StarExpr:
	default:
		return text
	}
	if !isStruct(of) {
		return text
	}
	parts := ""
	for f := range of.Underlying().(*types.Struct).Fields() {
		if isStruct(f.Type()) {
			parts += ", " + snake(f.Name()) + "=replace(" + text + "." + snake(f.Name()) + ")"
		}
	}
	return "replace(" + text + parts + ")"
}

func (t *translator) branch(s *ast.IfStmt) {
	if a, ok := s.Init.(*ast.AssignStmt); ok {
		if isName(a.Lhs[len(a.Lhs)-1], "err") {
			t.guarded(a, s)
			return
		}
		t.assign(a)
	}
	t.line("if %s:", t.expr(s.Cond))
	t.block(s.Body.List)
	switch other := s.Else.(type) {
	case *ast.BlockStmt:
		t.line("else:")
		t.block(other.List)
	case *ast.IfStmt:
		t.line("else:")
		t.block([]ast.Stmt{other})
	}
}

// guarded translates a call that may fail, and the statement that returns its error. In Python the
// error is raised, so only one that is wrapped needs a statement.
func (t *translator) guarded(a *ast.AssignStmt, failed *ast.IfStmt) {
	text := t.expr(a.Rhs[0])
	if n := len(a.Lhs) - 1; n > 0 {
		text = t.list(a.Lhs[:n]) + " = " + text
	}
	results := failed.Body.List[0].(*ast.ReturnStmt).Results
	wrapped, ok := results[len(results)-1].(*ast.CallExpr)
	if !ok {
		t.line("%s", text)
		return
	}
	t.line("try:")
	t.line("    %s", text)
	t.line("except SplicedError as err:")
	t.line("    raise SplicedError(Code.INVALID, %s) from err", t.format(wrapped))
}

func (t *translator) returns(s *ast.ReturnStmt) {
	results := s.Results
	if n := t.results.Len(); n > 0 && isError(t.results.At(n-1).Type()) {
		last := results[len(results)-1]
		call, ok := last.(*ast.CallExpr)
		switch {
		case isName(last, "nil"):
			results = results[:len(results)-1]
		case ok && len(results) == 1 && !isErrorf(call):
			t.line("%s", t.expr(call))
			results = nil
		case ok:
			t.line("raise SplicedError(Code.INVALID, %s)", t.format(call))
			return
		default:
			panic(t.unsupported(s))
		}
	}
	parts := make([]string, len(results))
	for i, e := range results {
		parts[i] = t.expr(e)
		if isName(e, "nil") {
			parts[i] = zero(t.results.At(i).Type())
		}
	}
	t.line("%s", strings.TrimSpace("return "+strings.Join(parts, ", ")))
}

func isErrorf(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Errorf"
}

func (t *translator) choose(s *ast.SwitchStmt) {
	if s.Init != nil {
		t.stmt(s.Init)
	}
	word := "if"
	for _, c := range s.Body.List {
		c := c.(*ast.CaseClause)
		switch {
		case c.List == nil:
			t.line("else:")
		case s.Tag == nil:
			t.line("%s %s:", word, t.list(c.List))
		case len(c.List) == 1:
			t.line("%s %s == %s:", word, t.expr(s.Tag), t.list(c.List))
		default:
			t.line("%s %s in (%s):", word, t.expr(s.Tag), t.list(c.List))
		}
		word = "elif"
		t.block(c.Body)
	}
}

// ranges returns the head of a loop.
func (t *translator) ranges(s *ast.RangeStmt) string {
	over := t.expr(s.X)
	_, list := t.info.TypeOf(s.X).Underlying().(*types.Slice)
	switch {
	case isNumber(t.info.TypeOf(s.X)):
		return t.expr(s.Key) + " in range(" + over + ")"
	case !list:
		return t.expr(s.Key) + " in " + over
	case s.Value == nil:
		return t.expr(s.Key) + " in range(len(" + over + "))"
	case isName(s.Key, "_"):
		return t.expr(s.Value) + " in " + over
	}
	return t.expr(s.Key) + ", " + t.expr(s.Value) + " in enumerate(" + over + ")"
}

func (t *translator) loop(s *ast.ForStmt) {
	ast.Inspect(s.Body, func(n ast.Node) bool {
		if b, ok := n.(*ast.BranchStmt); ok && b.Tok == token.CONTINUE && s.Post != nil {
			panic(t.unsupported(b)) // it would skip the last statement
		}
		return true
	})
	if s.Init != nil {
		t.stmt(s.Init)
	}
	condition := "True"
	if s.Cond != nil {
		condition = t.expr(s.Cond)
	}
	t.line("while %s:", condition)
	t.block(s.Body.List)
	if s.Post != nil {
		t.indent++
		t.stmt(s.Post)
		t.indent--
	}
}
