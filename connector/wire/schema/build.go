package schema

// Constructors that keep the tables of messages short.

type option func(*Field)

func doc(text string) option      { return func(f *Field) { f.Doc = text } }
func rows(column string) option   { return func(f *Field) { f.Rows = column } }
func divides(col string) option   { return func(f *Field) { f.Divides = col } }
func words(text string) option    { return func(f *Field) { f.Words = text } }
func python(name string) option   { return func(f *Field) { f.Python = name } }
func part(typeName string) option { return func(f *Field) { f.Type = typeName } }
func orNone(f *Field)             { f.OrNone = true }

func field(name string, k Kind, most, each string, options []option) Field {
	f := Field{Name: name, Kind: k, Most: most, Each: each}
	for _, o := range options {
		o(&f)
	}
	return f
}

func u8(name string, o ...option) Field   { return field(name, U8, "", "", o) }
func u16(name string, o ...option) Field  { return field(name, U16, "", "", o) }
func u32(name string, o ...option) Field  { return field(name, U32, "", "", o) }
func i32(name string, o ...option) Field  { return field(name, I32, "", "", o) }
func u64(name string, o ...option) Field  { return field(name, U64, "", "", o) }
func f64(name string, o ...option) Field  { return field(name, F64, "", "", o) }
func hash(name string, o ...option) Field { return field(name, Hash, "", "", o) }

func u8s(name, most string, o ...option) Field    { return field(name, U8s, most, "", o) }
func u16s(name, most string, o ...option) Field   { return field(name, U16s, most, "", o) }
func u32s(name, most string, o ...option) Field   { return field(name, U32s, most, "", o) }
func u64s(name, most string, o ...option) Field   { return field(name, U64s, most, "", o) }
func f64s(name, most string, o ...option) Field   { return field(name, F64s, most, "", o) }
func hashes(name, most string, o ...option) Field { return field(name, Hashes, most, "", o) }
func text(name, most string, o ...option) Field   { return field(name, Text, most, "", o) }

func texts(name, most, each string, o ...option) Field { return field(name, Texts, most, each, o) }
func blobs(name, most, each string, o ...option) Field { return field(name, Blobs, most, each, o) }

// body joins items and lists of items.
func body(parts ...any) []Item {
	var all []Item
	for _, p := range parts {
		switch p := p.(type) {
		case Item:
			all = append(all, p)
		case []Item:
			all = append(all, p...)
		default:
			panic("schema: no item")
		}
	}
	return all
}
