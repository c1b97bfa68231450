package jsonschema

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

// declaration is the text of a type's declaration, in terms of JSON.
type declaration struct {
	text    string
	pattern string            // of //openapi:pattern
	fields  map[string]string // comments by Go name
}

// named is an exported constant.
type named struct {
	name, text string
	value      constant.Value
}

// source has the comments, directives and constants of a package, which reflection cannot read
// from its types.
type source struct {
	types     map[string]*declaration
	constants []named // in the order of files and lines
}

func readSource(dir string) (*source, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	s := &source{types: map[string]*declaration{}}
	var specs []*ast.TypeSpec
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				for _, spec := range g.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						if g.Tok == token.CONST {
							s.addConstants(spec)
						}
					case *ast.TypeSpec:
						if spec.Doc == nil {
							spec.Doc = g.Doc
						}
						specs = append(specs, spec)
					}
				}
			}
		}
	}
	for _, spec := range specs {
		s.addType(spec)
	}
	return s, nil
}

// addConstants adds exported constants whose value does not depend on other declarations.
func (s *source) addConstants(spec *ast.ValueSpec) {
	for i, id := range spec.Names {
		if !id.IsExported() || i >= len(spec.Values) {
			continue
		}
		v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, types.ExprString(spec.Values[i]))
		if err == nil && v.Value != nil {
			s.constants = append(s.constants, named{id.Name, commentOf(spec.Doc, spec.Comment), v.Value})
		}
	}
}

func (s *source) addType(spec *ast.TypeSpec) {
	d := &declaration{fields: map[string]string{}}
	s.types[spec.Name.Name] = d
	json := map[string]string{}
	if body, ok := spec.Type.(*ast.StructType); ok {
		for _, f := range body.Fields.List {
			for _, id := range f.Names {
				json[id.Name] = jsonName(f)
				d.fields[id.Name] = commentOf(f.Doc, f.Comment)
			}
		}
	}
	for name, text := range d.fields {
		if rest, ok := strings.CutPrefix(text, name+" "); ok {
			text = json[name] + " " + rest
			for _, verb := range []string{"is ", "are "} {
				if after, ok := strings.CutPrefix(rest, verb); ok {
					text = after
				}
			}
		}
		d.fields[name] = s.translated(text, json, name)
	}
	d.text = s.translated(commentOf(spec.Doc), json, spec.Name.Name)
	if spec.Doc != nil {
		for _, line := range spec.Doc.List {
			if rest, ok := strings.CutPrefix(line.Text, "//openapi:pattern "); ok {
				d.pattern = strings.TrimSpace(rest)
			}
		}
	}
}

func jsonName(f *ast.Field) string {
	if f.Tag == nil {
		return ""
	}
	tag := regexp.MustCompile(`json:"([^",]+)`).FindStringSubmatch(f.Tag.Value)
	if tag == nil {
		return ""
	}
	return tag[1]
}

// commentOf joins the first paragraphs of comments to one line. Directives are no part of them.
func commentOf(groups ...*ast.CommentGroup) string {
	var parts []string
	for _, g := range groups {
		first, _, _ := strings.Cut(g.Text(), "\n\n")
		if text := strings.Join(strings.Fields(first), " "); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, " ")
}

var word = regexp.MustCompile(`\b(nil|[A-Z]\w*)\b`)

// translated replaces the Go names in the comment text: names of fields by their JSON names, and
// names of constants by their values. The parameter own is the name of the described type, field or
// constant. It is not replaced, since it is often a plain word.
func (s *source) translated(text string, json map[string]string, own string) string {
	return word.ReplaceAllStringFunc(text, func(w string) string {
		switch w {
		case own:
			return w
		case "nil":
			return "absent"
		}
		if name := json[w]; name != "" {
			return name
		}
		for _, c := range s.constants {
			if c.name == w {
				return c.plain()
			}
		}
		return w
	})
}

func (c *named) plain() string {
	if c.value.Kind() == constant.String {
		return constant.StringVal(c.value)
	}
	return c.value.String()
}

// enum returns the values that a tag lists, and their meanings from the comments of constants.
func (s *source) enum(tag string) (values []any, meanings string, err error) {
	prefix, constants := strings.CutSuffix(tag, "*")
	if !constants {
		for v := range strings.SplitSeq(tag, ",") {
			values = append(values, v)
		}
		return values, "", nil
	}
	var texts []string
	for _, c := range s.constants {
		after, ok := strings.CutPrefix(c.name, prefix)
		if !ok || c.value.Kind() != constant.String || after == "" || !unicode.IsUpper(rune(after[0])) {
			continue
		}
		values = append(values, c.plain())
		if c.text != "" {
			texts = append(texts, c.plain()+": "+s.translated(c.text, nil, c.name))
		}
	}
	if values == nil {
		return nil, "", fmt.Errorf("no constants are named %s", tag)
	}
	return values, strings.Join(texts, "; "), nil
}
