package schema

// Protocol is the whole description.
type Protocol struct {
	Constants  []Constant
	Enums      []Enum
	Structs    []Struct
	Messages   []Message
	Operations []Operation
}

// Constant is a number with a name: a bound, a size or a version.
type Constant struct {
	Name  string // as Go has it; Python has MAX_KEYS for MaxKeys
	Value int
	Doc   string
	Bound bool // listed in docs/protocol.md as a bound
}

// Enum is a set of named numbers. Those of the ops come from Operations.
type Enum struct {
	Name   string // of the Go type where Own, and in docs/protocol.md
	Prefix string // of the Go constants
	Type   string // the Go type underneath
	Own    bool   // a Go type of its own, else constants of Type
	Named  bool   // the Go type has String and Known
	Bits   bool   // a set of bits
	Python string // class in Python; "" = none
	Client bool   // the Python class is for callers of the client, else for the codec
	Doc    string // follows the name: "Code is", "Status is"
	Values []Value
}

// Value is one number of an Enum.
type Value struct {
	Name   string // without the prefix
	Number uint64
	Doc    string
	Then   string // codes: what a client does
	Python string // "" = as Name
}

// Struct is a Go type that several columns or scalars of a message make up.
// Python's messages are flat.
type Struct struct {
	Name   string
	Doc    string
	Fields []Field // without bounds: only Name, Kind and Doc count
}

// Message is the body of a frame: scalars, then columns, then sections.
type Message struct {
	Name string
	Doc  string // follows the name
	// Like names a message that this one embeds and whose layout it has.
	Like     string
	Body     []Item
	Sections []Section
}

// Section is what an optional part of a message holds. It ends its message, after
// the sections before it, and travels only between peers that agreed on Feature.
type Section struct {
	Name    string // of the field
	Struct  string // its Go type and Python class
	Feature string // value of the enum Feature; its bit is what the section begins with
	Doc     string
	Body    []Item
}

// Item is a Field or a Check.
type Item interface{ item() }

// Kind is how a field travels.
type Kind int

// Scalars, then columns.
const (
	U8 Kind = iota
	U16
	U32
	I32
	U64
	F64
	Hash
	U8s
	U16s
	U32s
	U64s
	F64s
	Hashes
	Text  // a column of bytes
	Texts // u32 lengths, then all bytes joined
	Blobs // the same, of bytes that are no text
)

// Column reports whether fields of k are columns.
func (k Kind) Column() bool { return k >= U8s }

// Field is one scalar or column.
type Field struct {
	// Name is the Go field. "Plan.Begin" is a field of a struct, "Memory[].Layer" a
	// column that is that field of every element.
	Name string
	Kind Kind
	Type string // of a Name with a dot: the struct's name
	Most string // columns: most elements, an expression of constants
	Each string // texts and blobs: most bytes of one
	// Rows is the column that has as many elements, OrNone that none at all are
	// right too. Divides is the column whose parts these counts are.
	Rows    string
	OrNone  bool
	Divides string
	Words   string // in errors and docs; "" = the words of Name
	Python  string // "" = as Words
	Doc     string
}

// Check is a rule that Rows and Divides cannot say. It holds at its place: after
// the fields before it, before those behind. Rows and Divides are checked after
// the last field of the body, Rows first.
type Check struct {
	Field string
	// One of these.
	Exactly string   // so many elements
	OneOf   []string // the scalar is one of these values
	Within  string   // the scalar is at most the elements of this column
	Only    *Only
	// OrNone, of Exactly: or none at all.
	OrNone bool
}

// Only says that a column belongs to one value of a scalar: Times elements for
// each of Rows then, none otherwise.
type Only struct {
	Scalar, Is  string
	Rows, Times string // Times "" = 1
}

func (Field) item() {}
func (Check) item() {}

// Operation is one op.
type Operation struct {
	Number         int
	Name           string // attach-device; Go has OpAttachDevice
	Request, Reply string
	// Tenant: the header names a tenant of the connection. Stopping: served while
	// the daemon stops, since it ends things.
	Tenant, Stopping bool
	// Descriptors that come along, in words; "" = none are allowed.
	RequestDescriptors, ReplyDescriptors string
}
